#!/usr/bin/env python3
"""A node is lost -> the survivors' first step: phalanx-run beside torchrun, and a network cut for phalanx-run alone.

    python bench/node_loss.py [--rounds 5] [--peer-rounds 1] [--who phalanx,torchrun-own-store] [--no-cut] [--json F]

Jobs of --nnodes=1:2, one rank a node. SIGKILL goes to everything of one node at once: of group rank 1, and of group
rank 0, which holds the store. phalanx-run has a master that stands alone; torchrun loses only the node that does not
hold its rendezvous, as a job that loses that one ends. For the cut the lost node lives in a network namespace of its
own and the link there is taken down: no packet tells of it, so its lease of 3 s has to run out.

The last rows are of jobs without a service: a node hosts the master, and is lost with it. Of torchrun's two
other nodes it is measured until they have ended.
"""

import argparse
import ctypes
import os
import socket
import subprocess
import threading
import time
from pathlib import Path

from support.arguments import amount, count, count_or_zero, names
from support.job import Job, measured
from support.peers import phalanx, phalanx_with_master, torchrun, torchrun_own_store
from support.results import Results, finish

LINK, SUBNET = "phxbench0", "10.213.77"
CLONE_NEWNET = 0x40000000


def lose(results, launcher, group_rank, options):
    what = f"all of a node killed (group rank {group_rank}) to the survivor's first step"
    job = Job(launcher, 2, 1, flags=["--max-restarts=100"], nnodes="1:2")
    with measured(job, results, what):
        life, _ = job.wait_whole_life()
        job.settle(life, options.settle)
        # torchrun's rendezvous is held by the node that was started first.
        ours = launcher.name == "phalanx-run"
        began = job.kill_node(job.node_of(job.pid(group_rank, life)) if ours else 1)
        results.add(what, launcher.name, job.wait_first_steps(began, 1, options.limit) - began)


class Namespace:
    """A network namespace with one link to ours."""

    name = f"phxbench{os.getpid()}"

    def __enter__(self):
        commands = f"""
            ip netns add {self.name}
            ip link add {LINK} type veth peer name {LINK}p
            ip link set {LINK}p netns {self.name}
            ip -n {self.name} link set {LINK}p name {LINK}
            ip addr add {SUBNET}.1/24 dev {LINK}
            ip link set {LINK} up
            ip -n {self.name} addr add {SUBNET}.2/24 dev {LINK}
            ip -n {self.name} link set {LINK} up
            ip -n {self.name} link set lo up"""
        for command in commands.strip().splitlines():
            subprocess.run(command.split(), check=True)
        return self

    def cut(self):
        began = time.monotonic()
        subprocess.run(["ip", "-n", self.name, "link", "set", LINK, "down"], check=True)
        return began

    def listen(self, job):
        """Takes the job's events from within: abstract sockets belong to a network namespace."""
        outer = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)  # threads are where the one that starts them is
        thread = threading.Thread(target=self._listen, args=(job, outer))
        thread.start()
        thread.join()

    def _listen(self, job, outer):
        with open(f"/run/netns/{self.name}") as place:
            if ctypes.CDLL(None, use_errno=True).setns(place.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        inner.bind(f"\0{job.name}")
        threading.Thread(target=self._pass_on, args=(inner, outer, job), daemon=True).start()

    @staticmethod
    def _pass_on(inner, outer, job):
        while job.listening:
            outer.sendto(inner.recv(1 << 16), f"\0{job.name}")

    def __exit__(self, *_):
        subprocess.run(["ip", "link", "del", LINK], check=False)
        subprocess.run(["ip", "netns", "del", self.name], check=True)


def master_of(job):
    return next(pid for pid in job.processes() if Path(f"/proc/{pid}/comm").read_text() == "phalanx-master\n")


def lose_host(results, launcher, nodes, options):
    """The one that hosts what the job's nodes meet at: nobody else knows of the job."""
    ours = launcher.name == "phalanx-run"
    others = nodes - 1
    if ours:
        what = f"the master's node of {nodes} killed to the first step of the other{'s' if others > 1 else ''}"
    else:
        what = f"the rendezvous' node of {nodes} killed to the end of the others"
    job = Job(launcher, nodes, 1, flags=["--max-restarts=100"], nnodes=f"1:{nodes}")
    with measured(job, results, what):
        life, _ = job.wait_whole_life(limit_s=options.limit)
        job.settle(life, options.settle)
        # On one machine the endpoint is an address of all nodes: the one that was faster hosts our master.
        began = job.kill_node(job.node_of(master_of(job)) if ours else 0)
        if ours:
            return results.add(what, launcher.name, job.wait_first_steps(began, others, options.limit) - began)
        codes = [node.wait(options.limit) for node in job.nodes[1:]]
        remark = f"they end, exit codes {' and '.join(map(str, codes))}"
        results.add(what, launcher.name, time.monotonic() - began, remark)


def lose_by_cut(results, what, launcher, places, options):
    """A job of a node at each place; the one in the namespace, the second address of the subnet, is cut off."""
    nodes = len(places)
    with Namespace() as namespace:
        inside = ["ip", "netns", "exec", namespace.name]
        job = Job(
            launcher,
            nodes,
            1,
            flags=["--max-restarts=100"],
            nnodes=f"1:{nodes}",
            places=[(f"{SUBNET}.{host}", inside if host == 2 else []) for host in places],
            environment={"GLOO_SOCKET_IFNAME": LINK},
            on_start=namespace.listen,
        )
        try:
            life, _ = job.wait_whole_life()
            job.settle(life, options.settle)
            began = namespace.cut()
            results.add(what, "phalanx-run", job.wait_first_steps(began, nodes - 1, options.limit) - began)
        finally:
            job.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--peer-rounds", type=count_or_zero, default=1)
    parser.add_argument("--settle", type=amount, default=2.0, help="seconds of training before each loss")
    parser.add_argument("--limit", type=amount, default=120.0, help="seconds after which a launcher is cut")
    parser.add_argument("--who", type=names(("phalanx", "torchrun-own-store")), default="phalanx,torchrun-own-store")
    parser.add_argument("--no-cut", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    results = Results("s", options.limit)
    for round_number in range(options.rounds):
        for group_rank in (1, 0):
            if "phalanx" in options.who:
                lose(results, phalanx_with_master(), group_rank, options)
        if round_number < options.peer_rounds and "torchrun-own-store" in options.who:
            lose(results, torchrun_own_store(), 1, options)
        if not options.no_cut:
            what = "network cut (lease 3 s) to the survivor's first step"
            lose_by_cut(results, what, phalanx_with_master(), (1, 2), options)
        for nodes in (2, 3):
            if "phalanx" in options.who:
                lose_host(results, phalanx(), nodes, options)
        if round_number < options.peer_rounds and "torchrun-own-store" in options.who:
            lose_host(results, torchrun(), 3, options)
        if not options.no_cut:
            what = "the master's node of 3 cut off (lease 3 s) to the first step of the others"
            lose_by_cut(results, what, phalanx(), (2, 1, 1), options)
    finish(options.json, "node_loss", results)


if __name__ == "__main__":
    main()
