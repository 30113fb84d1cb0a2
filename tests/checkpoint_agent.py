"""The agent's end of the checkpoint socket, small and in Python, for tests of phalanx.checkpoint in one process.

A real socket, real control pages and slots. It serves one local rank in a thread, and commits what is sealed at once
(`commits`) or when it is told to.
"""

import contextlib
import json
import os
import shutil
import socket
import tempfile
import threading
import zlib

from control_page import BRANCH, COMMITTED, FILE_NUMBER, SEALED, ControlPage

TIMEOUT_S = 30


class CheckpointAgent:
    """Use as a context manager. `rank_fd` is the rank's end of the socket."""

    def __init__(self, commits=True, slots=3, epoch=1):
        self.folder = tempfile.mkdtemp(prefix="phalanx-test-", dir="/dev/shm")
        self.control_path = os.path.join(self.folder, "control-0")
        self.page = ControlPage(self.control_path, epoch)
        self.commits, self.slots, self.epoch = commits, slots, epoch
        self.slot_bytes = self.count = 0
        self.next_file = 1
        self.refuses = {}  # type of request -> error
        self.was_asked = threading.Event()  # by a `prepare`
        self.lets_answer = threading.Event()  # of `prepare`: cleared, it waits
        self.lets_answer.set()
        self.stable = True
        self.layout = "torch-zip"  # of what is saved, for what goes to disk
        self.main = None  # another, whose page and slots are those of the image that the node's ranks share
        self.restores = None  # the answer to `restore`; None: the newest that is committed here
        self.restored = set()  # slots whose files a rank may have mapped
        self.news = threading.Condition()
        self.log = []  # packets, as they came
        self.waiting = []
        self.gone = set()  # steps that others have skipped
        self.skipped = set()  # (step, branch) that the rank has
        self.once_committed = set()  # steps, also those whose slots hold newer ones by now
        self.stopped = threading.Lock()  # who holds it keeps the agent from whatever comes behind the next packet
        self.absent = {"unopened": [], "unsaved": [], "behind": []}  # ranks, as texts
        self.connect()

    def connect(self):
        """A socket for a (new) life of the rank."""
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.rank_fd = theirs.detach()
        self.thread = threading.Thread(target=self._serve, args=(self.ours,), daemon=True)
        self.thread.start()

    def new_life(self):
        self.epoch += 1
        self.page.set_epoch(self.epoch)
        self.connect()

    def __enter__(self):
        return self

    def leave(self):
        """As an agent that has ended: the rank finds its socket closed."""
        with contextlib.suppress(OSError):
            self.ours.shutdown(socket.SHUT_RDWR)
        self.thread.join(TIMEOUT_S)
        self.ours.close()  # nobody reads from it any more

    def __exit__(self, *unused):
        self.leave()
        self.page.map.close()
        shutil.rmtree(self.folder)

    def packets(self, kind):
        return [packet for packet in list(self.log) if packet["type"] == kind]

    def wait_packet(self, kind, count=1):
        with self.news:
            assert self.news.wait_for(lambda: len(self.packets(kind)) >= count, TIMEOUT_S), (kind, self.log)
        return self.packets(kind)[count - 1]

    def slot_path(self, index):
        return os.path.join(self.folder, f"slot-0-{index}.{self.page.slot(index)[1][0]}")

    def sealed(self):
        """{step: slot} of what is sealed."""
        slots = {index: self.page.slot(index)[0] for index in range(self.count)}
        return {fields[1]: index for index, fields in slots.items() if fields[0] & 0xFF == SEALED}

    def committed(self):
        """[(epoch, step, slot)], oldest first."""
        found = []
        for index in range(self.count):
            rank, agent = self.page.slot(index)
            if rank[0] & 0xFF == SEALED and agent[1] == rank[0] >> 8:
                found.append((rank[2], rank[BRANCH], rank[1], index))
        return [(epoch, step, index) for epoch, _, step, index in sorted(found)]

    def commit(self, step):
        slot = self.sealed()[step]
        self.page.set(slot, COMMITTED, self.page.slot(slot)[0][0] >> 8)
        self.once_committed.add(step)
        for index in self.restored - {slot}:
            self._replace(index)
        self.restored &= {slot}
        self._answer_waiting()

    def _serve(self, ours):
        try:
            self._answer_all(ours)
        finally:
            with contextlib.suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)  # whatever went wrong here, nobody waits for it

    def _answer_all(self, ours):
        while True:
            try:
                data = ours.recv(1 << 16)
            except ConnectionResetError:  # the rank has gone without reading an answer
                return
            if not data:
                return
            packet = json.loads(data)
            with self.stopped:
                pass
            error = self.refuses.get(packet["type"])
            if error is not None:
                self._send(ours, packet, error=error)
            else:
                served = self.main if packet.get("page") == "main" else self
                getattr(served, "_on_" + packet["type"])(ours, packet)
            with self.news:
                self.log.append(packet)
                self.news.notify_all()

    def _send(self, ours, packet, **fields):
        with contextlib.suppress(OSError):
            ours.send(json.dumps({"id": packet["id"], **fields}).encode())

    def _on_open(self, ours, packet):
        main = self.main.control_path if self.main is not None else None
        self._send(ours, packet, control=self.control_path, main=main)

    def _on_prepare(self, ours, packet):
        if packet["bytes"] != self.slot_bytes:
            self.slot_bytes = packet["bytes"]
            self.count = min(packet["slots"], self.slots)
            for index in range(self.count):
                self._replace(index)
        why = "" if self.count == packet["slots"] else f"memory for {self.count} slots"
        self.was_asked.set()
        assert self.lets_answer.wait(TIMEOUT_S), "nobody lets it answer"
        self._send(ours, packet, slots=self.count, bytes=self.slot_bytes, why=why)

    def _replace(self, index):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.slot_path(index))
        path = os.path.join(self.folder, f"slot-0-{index}.{self.next_file}")
        with open(path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, self.slot_bytes)
        self.page.clear(index)
        self.page.set(index, FILE_NUMBER, self.next_file)
        self.next_file += 1
        self.page.change(self.count, self.slot_bytes)

    def _on_sealed(self, ours, packet):
        if packet["disk"]:
            self.store(packet["dir"], packet["step"])
        if self.commits:
            self.commit(packet["step"])

    def _on_skipped(self, ours, packet):
        self.skipped.add((packet["step"], packet["branch"]))
        self._answer_waiting()

    def _on_restored(self, ours, packet):
        pass  # nobody lends here

    def _on_wait(self, ours, packet):
        self.waiting.append((ours, packet))
        self._answer_waiting()

    def _answer_waiting(self):
        for ours, packet in list(self.waiting):
            is_dropped = packet["step"] in self.gone or (packet["step"], packet["branch"]) in self.skipped
            if is_dropped or packet["step"] in self.once_committed:
                self.waiting.remove((ours, packet))
                state = "dropped" if is_dropped else packet["until"]
                self._send(ours, packet, state=state, why="")

    def _on_absent(self, ours, packet):
        self._send(ours, packet, **self.absent)

    def _on_restore(self, ours, packet):
        if self.restores is not None:
            return self._send(ours, packet, **self.restores)
        committed = self.committed()
        if not committed:
            return self._send(ours, packet, step=-1, source="none", files={}, world_size=0, why="nothing is committed")
        _, step, slot = committed[-1]
        if self.stable:
            self.restored.add(slot)
        main = self.main.slot_path(self.main.sealed()[step]) if self.main is not None else None
        files = {"own": self.slot_path(slot), "main": main}
        self._send(ours, packet, step=step, source="memory", files=files, world_size=1, why="", stable=self.stable)

    def store(self, directory, step, name=None):
        """The slot of a step as it goes to disk, with its manifest."""
        slot = self.sealed()[step]
        folder = os.path.join(directory, name or str(step))
        os.makedirs(folder)
        name = "rank_0.pt" if self.layout == "torch-zip" else "rank_0.safetensors"
        shutil.copyfile(self.slot_path(slot), os.path.join(folder, name))
        rank = self.page.slot(slot)[0]
        shard = {"rank": 0, "file": name, "bytes": rank[3], "crc32": rank[7], "needed_by": "owner"}
        write_manifest(folder, step, rank[2], [shard], layout=self.layout)


def write_manifest(folder, step, epoch, shards, kind="full", world_size=1, layout="torch-zip", **fields):
    manifest = {"format": "phalanx-manifest", "version": 2, "step": step, "epoch": epoch, "world_size": world_size}
    manifest.update(kind=kind, layout=layout, shards=shards)
    manifest.update({"job_id": "test", "written_unix_ms": 0, "sequence": 0, **fields})
    text = json.dumps(manifest).encode() + b"\n"
    with open(os.path.join(folder, "manifest.json"), "wb") as file:
        file.write(text + b"crc32 %08x\n" % zlib.crc32(text))
