"""Saves without an agent: under torchrun, Slurm or plain Python. Two threads answer a Checkpointer as an agent would
(docs/formats/checkpoint-socket.md): one at once, one when the ranks and the disk have done a step. A child process, the
host, has the memory and writes the files.

A step is on disk, or it is not: no memory outlives this process, so that a save is committed when it is stored.
"""

import collections
import contextlib
import json
import os
import queue
import socket
import threading
import time

from phalanx import _door as door
from phalanx.checkpoint import people, stored
from phalanx.checkpoint.formats import forms
from phalanx.checkpoint.link import host
from phalanx.checkpoint.ranks import together

EPOCH = 1  # of all saves of a process, as the host has it
NOT_TO_MEMORY = (
    "without phalanx-run no memory outlives this process: save with storage=Storage.DISK, or start the script by "
    "`phalanx-run script.py`; where PYTHON_EXEC names its interpreter, PHALANX_BOOTSTRAP_DIR is to name the folder "
    "phalanx/_bootstrap of that one"
)
_BEHIND = "it is stored, but "
_THREADS_WAIT_S = 5  # a thread may wait for a rank that has died
_SETTLED_MAX = 1024  # whose outcome is known, and remembered for who asks late


class _Save:
    def __init__(self, step, branch, group):
        self.step, self.branch, self.group = step, branch, group
        self.pages = set()  # that are sealed
        self.why = None  # this rank has given it up
        self.is_queued = False
        self.outcome = None  # {"state": .., "why": ..}

    @property
    def key(self):
        return self.step, self.branch


class Alone:
    """Of one Checkpointer."""

    def __init__(self, directory, kind, here, way):
        """Raises door.Gone where there is no host to be had."""
        self._directory, self._kind, self._here, self._way = directory, kind, here, way
        self._stored = {}  # folder of the newest step that was stored, by branch
        self._shared_page = "main" if forms.is_shared(kind) and here.leads else ""
        self._host = host.Host()
        self._group = None
        self._settings, self._layout = {}, None
        # What both threads and the training's touch, held for a moment; _settled tells of each save that is over.
        self._lock = threading.RLock()
        self._settled = threading.Condition(self._lock)
        self._saves = collections.OrderedDict()
        self._unsettled = 0
        self._is_copying = False  # to the archive
        self._waiting = []  # (id, key) of who waits for an outcome
        self._to_store = queue.SimpleQueue()
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._threads = [
            threading.Thread(target=work, name=f"phalanx-{name}", daemon=True)
            for name, work in (("saves", self._serve), ("storing", self._store_all))
        ]
        for thread in self._threads:
            thread.start()

    def take_socket(self):
        """The Checkpointer's end, once: threads end when all who have it have closed it."""
        return self._ours.detach()

    def begins(self, step, branch):
        """A save begins: for all ranks together the first time, and where they have lost each other. Raises Apart where
        it cannot come to anything, and returns False where that step of that branch was saved before."""
        with self._lock:
            if (step, branch) in self._saves:
                return False
        self.meet(step, branch)
        with self._lock:
            self._saves[step, branch] = _Save(step, branch, self._group)
            self._unsettled += 1
        return True

    def meet(self, step, branch):
        """The ranks find each other, which makes a process group: before a save that another thread begins. Raises
        Apart."""
        if self._group is None or self._group.is_lost():
            self._group = None
            self._group = together.meet(self._here, meeting(self._directory, step, branch))

    def finish(self, timeout_s=None):
        """Waits until each save that has begun is stored, or will not be, and copied to the archive where there is one;
        at most that long."""
        with self._settled:
            return self._settled.wait_for(lambda: self._unsettled == 0 and not self._is_copying, timeout_s)

    def finish_storing(self, timeout_s):
        """The same, whatever its archive does."""
        with self._settled:
            return self._settled.wait_for(lambda: self._unsettled == 0, timeout_s)

    def end(self):
        """The Checkpointer has closed its end. What is not settled never counts."""
        if self._saves and self._unsettled == 0 and not self._is_copying and self._here.rank == 0:
            with contextlib.suppress(door.Gone, door.Refusal):  # files that the next run of the job writes over
                self._host.storage.ask("tidy", dir=self._directory)
        with contextlib.suppress(OSError):
            self._theirs.shutdown(socket.SHUT_RDWR)  # forked children may have the other end, too
        self._host.end()
        # While the interpreter is whole: gloo's threads drop what they have exchanged, and take its lock for that.
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_THREADS_WAIT_S)
        self._group = None
        self._saves.clear()

    # --- the first thread

    def _serve(self):
        """Answers packets until the other end is closed."""
        while True:
            data = self._theirs.recv(door.PACKET_BYTES_MAX)
            if not data:
                break
            packet = json.loads(data.decode("utf-8", "surrogateescape"))
            try:
                answer = self._on(packet)
            except (door.Gone, door.Refusal) as error:
                answer = {"error": str(error)}
            if answer is not None and "id" in packet:
                self._answer(packet["id"], answer)
        self._to_store.put(None)

    def _answer(self, number, answer):
        with contextlib.suppress(OSError):  # who has asked is gone
            self._theirs.send(door.packet(id=number, **answer), socket.MSG_NOSIGNAL)

    def _on(self, packet):
        """The answer; None where there is none, or not yet."""
        request = packet.get("type")
        if request == "open":
            self._settings = packet
            return self._host.memory.ask("open", dir=self._directory, shared=self._shared_page)
        if request == "prepare":
            wanted = {key: packet[key] for key in ("bytes", "slots", "memory_budget")}
            return self._host.memory.ask("prepare", dir=self._directory, page=self._page(packet), **wanted)
        if request in ("sealed", "skipped"):
            return self._hear(packet)
        if request == "wait":
            return self._await(packet)
        if request == "absent":
            return {"unopened": [], "unsaved": []}
        return {"error": f"without phalanx-run there is no '{request}'"}

    def _page(self, packet):
        return self._shared_page if packet.get("page") == "main" else "own"

    def _hear(self, packet):
        with self._lock:
            save = self._saves.get((packet["step"], packet["branch"]))
            if save is None or save.outcome is not None:
                return None
            if packet["type"] == "skipped":
                save.why = save.why or packet["why"]
            else:
                save.pages.add(self._page(packet))
            wanted = {"own", self._shared_page} - {""}
            if not save.is_queued and (save.why is not None or save.pages >= wanted):
                save.is_queued = True
                self._to_store.put(save)
        return None

    def _await(self, packet):
        key = packet["step"], packet["branch"]
        with self._lock:
            save = self._saves.get(key)
            if save is None:
                return {"error": f"step {key[0]} was not saved here, or long ago"}
            if save.outcome is None:
                self._waiting.append((packet["id"], key))
                return None
            return save.outcome

    # --- the second thread

    def _store_all(self):
        save = None
        try:
            while True:
                save = self._to_store.get()
                if save is None:
                    return
                try:
                    state, why = self._store(save)
                except together.Apart as error:
                    self._drop(save)
                    state, why = "failed", str(error)
                self._settle(save, state, why)
                self._archive()
        finally:  # nobody waits for what this thread does not do any more
            self._is_copying = False
            for left in [each for each in self._saves.values() if each.outcome is None] if save is not None else ():
                self._settle(left, "failed", "the thread that stores has failed")

    def _settle(self, save, state, why):
        if why and self._here.rank == 0:
            became = "stored" if state == "stored" else "not stored"
            people.say(f"step {save.step} of {self._directory} is {became}: {why}")
        with self._settled:
            save.outcome, save.group = {"state": state, "why": why or ""}, None
            asked = [number for number, key in self._waiting if key == save.key]
            self._waiting = [entry for entry in self._waiting if entry[1] != save.key]
            self._unsettled -= 1
            self._is_copying = state == "stored" and self._here.rank == 0 and "archive" in self._settings
            while len(self._saves) > _SETTLED_MAX and next(iter(self._saves.values())).outcome is not None:
                self._saves.popitem(last=False)
            self._settled.notify_all()
        for number in asked:
            self._answer(number, save.outcome)

    def _archive(self):
        """Behind a step that was stored, before the next one is. Rank 0 does it for all."""
        if not self._is_copying:
            return
        archive = self._settings["archive"]
        try:
            done = self._host.storage.ask("archive", dir=self._directory, trackers=self._settings["trackers"])
            said = [f"step {step} of {self._directory} is copied to {archive}" for step in done["steps"]]
            why = done["why"]
        except (door.Gone, door.Refusal) as error:
            said, why = [], str(error)
        if why:
            said.append(f"{self._directory} is not copied to {archive}: {why}; it is tried again with the next step")
        for text in said:
            people.say(text)
        with self._settled:
            self._is_copying = False
            self._settled.notify_all()

    def _store(self, save):
        """(state, why), the same on all ranks that come to it. All make the same three exchanges, or one, or the group
        is broken: nothing in between raises anything but Apart."""
        why, name = save.why, None
        if why is None and self._here.rank == 0:
            why, name = self._claim(save)
        votes = self._exchange(save, why=why, name=name)
        why = _first_reason(votes)
        if why is not None:
            self._drop(save)
            if name is not None:
                with contextlib.suppress(OSError):  # nobody has written there
                    os.unlink(os.path.join(self._directory, name, stored.UNFINISHED))
                    os.rmdir(os.path.join(self._directory, name))
            return "dropped", why
        shards, why = self._write(save, votes[0]["name"])
        told = self._exchange(save, why=why, shards=shards)
        why = _first_reason(told)
        if why is None and self._here.rank == 0:
            why = self._close(save, votes[0]["name"], [shard for one in told for shard in one["shards"]])
        ends = self._exchange(save, why=why)
        why = ends[0]["why"]
        return ("failed" if why and not why.startswith(_BEHIND) else "stored"), why

    def _exchange(self, save, why, **more):
        """What each rank tells of this save. Where they do not all tell of the same one they are out of step, and meet
        anew at the next."""
        found = save.group.exchange({"save": list(save.key), "why": together.reason(why), **more})
        others = [(rank, one["save"][0]) for rank, one in enumerate(found) if one["save"] != list(save.key)]
        if others:
            rank, step = others[0]
            save.group.breaks(f"the ranks save different steps: rank {rank} saves {step}, this one {save.step}")
            return save.group.exchange(None)  # raises it
        return found

    def _drop(self, save):
        with contextlib.suppress(door.Gone, door.Refusal):  # whose memory is gone has nothing to write over
            self._host.memory.ask("drop", dir=self._directory, step=save.step, branch=save.branch)

    def _claim(self, save):
        """(why not, the name of a folder)."""
        try:
            return None, self._host.storage.ask("claim", dir=self._directory, step=save.step, epoch=EPOCH)["name"]
        except (door.Gone, door.Refusal) as error:
            return str(error), None

    def _write(self, save, name):
        """(shards of this rank, why not)."""
        shards, fields = [], {"dir": self._directory, "step": save.step, "branch": save.branch}
        try:
            self._host.memory.ask("commit", **fields)
            for page in sorted(save.pages):
                held = self._host.memory.ask("hold", page=page, **fields)
                try:
                    self._layout, written = self._host.write(held, dir=self._directory, name=name)
                    shards.extend(written)
                finally:
                    self._host.memory.ask("release", page=page, **fields)
        except (door.Gone, door.Refusal) as error:
            return [], f"rank {self._here.rank}: {error}"
        return shards, save.why

    def _close(self, save, name, shards):
        """Why the step does not count, or what went wrong behind that."""
        kept = {key: self._settings[key] for key in ("trackers", "keep_last", "keep_every")}
        kept.update({key: self._settings.get(key, nothing) for key, nothing in (("archive", ""), ("archive_every", 0))})
        try:
            warnings = self._host.close_step(
                shards,
                dir=self._directory,
                name=name,
                step=save.step,
                branch=save.branch,
                epoch=EPOCH,
                world_size=self._here.world_size,
                kind=self._kind,
                layout=self._layout,
                job_id=self._here.job_id,
                written_unix_ms=time.time_ns() // 1_000_000,
                goes_on_from=[self._stored.get(save.branch, self._way.began_from(save.branch))],
                **kept,
            )
        except (door.Gone, door.Refusal) as error:
            return str(error)
        self._stored[save.branch] = name
        return _BEHIND + "; ".join(warnings) if warnings else None


def meeting(directory, step, branch):
    """What ranks call it when they meet at a save."""
    return f"{directory}/{branch}/{step}"


def _first_reason(votes):
    """The first rank's that has one; None: all are at one."""
    return next((vote["why"] for vote in votes if vote["why"] is not None), None)
