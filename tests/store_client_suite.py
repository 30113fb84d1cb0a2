#!/usr/bin/env python3
"""Every call of torch's TCPStore against a c10d store server; runs under any torch >= 2.2.

    python tests/store_client_suite.py HOST PORT [--no-libuv] [--job RANKS]

Ends with "N checks passed" and 0, or with the first failure. --job also forms a gloo group of so many processes whose
store is that server. The server should be fresh.
"""

from __future__ import annotations

import argparse
import inspect
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
SHORT = timedelta(milliseconds=150)
LONG = timedelta(seconds=20)
StoreError = getattr(dist, "DistStoreError", RuntimeError)


class Suite:
    def __init__(self, host: str, port: int, use_libuv: bool) -> None:
        self.host, self.port, self.use_libuv = host, port, use_libuv
        self.checks = 0
        self.store = self.connect()

    def connect(self, **more) -> dist.TCPStore:
        return dist.TCPStore(
            self.host,
            self.port,
            is_master=False,
            timeout=LONG,
            wait_for_workers=False,
            use_libuv=self.use_libuv,
            **more,
        )

    def equal(self, got: object, expected: object) -> None:
        assert got == expected, f"got {got!r}, expected {expected!r}"
        self.checks += 1

    def raises(self, kind: type[Exception], call: Callable[[], object]) -> None:
        try:
            got = call()
        except kind:
            self.checks += 1
            return
        raise AssertionError(f"{kind.__name__} expected, got {got!r}")

    def has(self, key: str) -> bool:
        """check() of one key, which Python has not in torch 2.2."""
        if hasattr(self.store, "check"):
            return self.store.check([key])
        try:
            self.store.wait([key], timedelta(0))
        except StoreError:
            return False
        return True

    def released(self, blocked: Callable[[dist.TCPStore], object], release: Callable[[], object]) -> object:
        """What `blocked` returns, which blocks on a store of its own until `release` has been called."""
        result: list[object] = []
        store = self.connect()
        thread = threading.Thread(target=lambda: result.append(blocked(store)), daemon=True)
        thread.start()
        release()
        thread.join(timeout=20)
        assert not thread.is_alive(), "still blocked"
        return result[0]

    def run(self) -> None:
        for name, test in inspect.getmembers(self, inspect.ismethod):
            if name.startswith("test_"):
                before = time.monotonic()
                test()
                assert time.monotonic() - before < 60, f"{name} took {time.monotonic() - before:.1f} s"

    # -- keys and values

    def test_set_get(self) -> None:
        s = self.store
        for key, value in [("k", "text"), ("k", "replaced"), ("", "empty key"), ("empty", ""), ("größe/ä b", "ü\n")]:
            s.set(key, value)
            self.equal(s.get(key), value.encode())
        s.set("bytes", b"\x00\xff\x00")
        self.equal(s.get("bytes"), b"\x00\xff\x00")
        s.set("long" + "k" * 8000, "v" * 2_000_000)
        self.equal(len(s.get("long" + "k" * 8000)), 2_000_000)

    def test_get_blocks_until_set(self) -> None:
        self.equal(self.released(lambda s: s.get("late"), lambda: self.store.set("late", "v")), b"v")

    def test_add(self) -> None:
        s = self.store
        self.equal(s.add("n", 3), 3)
        self.equal(s.add("n", -10), -7)
        self.equal(s.add("n", 0), -7)
        self.equal(s.get("n"), b"-7")
        s.set("n", "12")
        self.equal(s.add("n", 1), 13)
        self.equal(self.released(lambda t: t.get("counter"), lambda: s.add("counter", 1)), b"1")

    def test_check(self) -> None:
        if not hasattr(self.store, "check"):
            return
        self.store.set("c1", "")
        self.store.set("c2", "")
        self.equal(self.store.check(["c1", "c2"]), True)
        self.equal(self.store.check(["c1", "none"]), False)
        self.equal(self.store.check([]), True)

    def test_compare_set(self) -> None:
        s = self.store
        self.equal(s.compare_set("cas", "", "a"), b"a")
        self.equal(s.compare_set("cas", "a", "b"), b"b")
        self.equal(s.compare_set("cas", "a", "c"), b"b")
        self.equal(s.compare_set("cas-none", "x", "y"), b"x")
        self.equal(self.has("cas-none"), False)
        self.equal(self.released(lambda t: t.get("cas-late"), lambda: s.compare_set("cas-late", "", "z")), b"z")

    def test_delete_and_count(self) -> None:
        s = self.store
        before = s.num_keys()
        s.set("doomed", "")
        self.equal(s.num_keys(), before + 1)
        self.equal(s.delete_key("doomed"), True)
        self.equal(s.delete_key("doomed"), False)
        self.equal(s.num_keys(), before)

    def test_append(self) -> None:
        if not hasattr(self.store, "append"):
            return
        self.store.append("log", "one ")
        self.store.append("log", "two")
        self.equal(self.store.get("log"), b"one two")
        self.equal(self.released(lambda t: t.get("log2"), lambda: self.store.append("log2", "x")), b"x")

    def test_multi(self) -> None:
        s = self.store
        keys = [f"multi/{i}" for i in range(1000)]
        s.multi_set(keys, [f"value {i}" for i in range(1000)])
        self.equal(s.multi_get(keys[::-1]), [f"value {i}".encode() for i in reversed(range(1000))])
        self.equal(
            self.released(lambda t: t.multi_get(["m1", "m2"]), lambda: s.multi_set(["m1", "m2"], ["a", "b"])),
            [b"a", b"b"],
        )

    def test_list_keys(self) -> None:
        if not hasattr(self.store, "list_keys"):
            return
        self.store.set("listed", "")
        self.equal("listed" in self.store.list_keys(), True)
        self.equal(any(key.startswith("init") for key in self.store.list_keys()), False)

    def test_prefix_store(self) -> None:
        inner = dist.PrefixStore("outer", dist.PrefixStore("inner", self.store))
        inner.set("k", "v")
        self.equal(inner.get("k"), b"v")
        self.equal(self.store.get("inner/outer/k"), b"v")

    # -- waiting

    def test_wait(self) -> None:
        s = self.store
        s.set("w0", "")
        s.wait(["w0"])
        self.released(lambda t: t.wait(["w0", "w1", "w2"], LONG), lambda: (s.set("w1", ""), s.add("w2", 1)))
        self.checks += 2

    def test_timeouts_leave_the_connection_usable(self) -> None:
        s = self.store
        for timeout in (SHORT, timedelta(0), SHORT):
            self.raises(StoreError, lambda t=timeout: s.wait(["never"], t))
            self.equal(s.add("after timeout", 0), 0)
        s.set("never", "came")
        self.equal(s.get("never"), b"came")

    def test_get_timeout(self) -> None:
        s = self.connect()
        s.set_timeout(SHORT)
        self.raises(StoreError, lambda: s.get("never got"))
        s.set("never got", "v")
        self.equal(s.get("never got"), b"v")

    def test_many_wait_for_one(self) -> None:
        stores = [self.connect() for _ in range(20)]
        got: list[bytes] = []
        threads = [threading.Thread(target=lambda s=s: got.append(s.get("start")), daemon=True) for s in stores]
        for thread in threads:
            thread.start()
        self.store.set("start", "go")
        for thread in threads:
            thread.join(timeout=20)
        self.equal(got, [b"go"] * 20)

    def test_leaving_while_waiting(self) -> None:
        for _ in range(5):
            store = self.connect()
            self.raises(StoreError, lambda s=store: s.wait(["gone"], timedelta(milliseconds=10)))
            del store
        self.store.set("gone", "")
        self.equal(self.store.get("gone"), b"")

    # -- newer calls

    def test_queues(self) -> None:
        s = self.store
        if not hasattr(s, "queue_push"):
            return
        if not self.use_libuv:
            self.raises(NotImplementedError, lambda: s.queue_push("q", "x"))  # torch's client itself refuses
            return
        self.equal(s.queue_len("q"), 0)
        self.raises(dist.QueueEmptyError, lambda: s.queue_pop("q", block=False))
        s.queue_push("q", "first")
        s.queue_push("q", "second")
        self.equal(s.queue_len("q"), 2)
        self.equal(s.check(["q"]), True)
        self.equal(s.queue_pop("q", block=False), b"first")
        self.equal(s.queue_pop("q"), b"second")
        self.equal(s.check(["q"]), False)
        self.equal(self.released(lambda t: t.queue_pop("q2"), lambda: s.queue_push("q2", "item")), b"item")

    def test_barrier(self) -> None:
        s = self.store
        if not hasattr(s, "barrier"):
            return
        s.barrier("alone", 1)
        self.released(lambda t: t.barrier("pair", 2), lambda: s.barrier("pair", 2))
        self.raises(StoreError, lambda: s.barrier("never full", 3, SHORT))
        self.equal(s.get("never full"), b"1")

    def test_clone(self) -> None:
        if not hasattr(self.store, "clone"):
            return
        clone = self.store.clone()
        clone.set("from clone", "v")
        self.equal(self.store.get("from clone"), b"v")

    # -- refusals

    def test_too_long_keys_cost_the_connection_alone(self) -> None:
        store = self.connect()
        store.set("k" * 8191, "longest")
        self.equal(self.store.get("k" * 8191), b"longest")

        def too_long() -> None:
            store.set("k" * 8192, "v")
            store.get("k")

        self.raises(RuntimeError, too_long)
        self.equal(self.has("k" * 8000), False)

    def test_rendezvous_join(self) -> None:
        dist.TCPStore(self.host, self.port, world_size=1, is_master=False, timeout=LONG, use_libuv=self.use_libuv)
        self.checks += 1


def rank_main(rank: int, ranks: int, host: str, port: int, results: multiprocessing.Queue) -> None:
    os.environ.update(
        MASTER_ADDR=host,
        MASTER_PORT=str(port),
        RANK=str(rank),
        WORLD_SIZE=str(ranks),
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_MAX_RESTARTS="0",
        TORCHELASTIC_RUN_ID="suite",
    )
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ones = torch.ones(4) * (rank + 1)
    dist.all_reduce(ones)
    group = dist.new_group([0, ranks - 1])
    if rank in (0, ranks - 1):
        dist.barrier(group=group)
    dist.monitored_barrier()
    dist.destroy_process_group()
    results.put((rank, ones[0].item()))


def run_job(host: str, port: int, ranks: int) -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    workers = [context.Process(target=rank_main, args=(r, ranks, host, port, results)) for r in range(ranks)]
    for worker in workers:
        worker.start()
    got = sorted(results.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join(timeout=20)
    assert got == [(rank, ranks * (ranks + 1) / 2) for rank in range(ranks)], got
    print(f"gloo group of {ranks} formed")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--no-libuv", action="store_true", help="ask torch's client for its legacy backend")
    parser.add_argument("--job", type=int, default=0, metavar="RANKS")
    args = parser.parse_args()
    if args.job:  # before any thread of torch runs here: the ranks are forked
        run_job(args.host, args.port, args.job)
    suite = Suite(args.host, args.port, not args.no_libuv)
    suite.run()
    print(f"torch {torch.__version__}: {suite.checks} checks passed")


if __name__ == "__main__":
    main()
