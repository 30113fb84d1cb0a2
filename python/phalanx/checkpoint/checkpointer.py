"""Checkpointer: saves that nobody feels, restores from memory. docs/checkpoint.md is for users."""

import atexit
import contextlib
import functools
import math
import os
import re
import sys
import threading
import time
import weakref

import torch

import phalanx
from phalanx import _door as door
from phalanx._bootstrap import board, rescale
from phalanx.checkpoint import native, people, selftest, stored
from phalanx.checkpoint.copying import writer
from phalanx.checkpoint.formats import disk, forms, mapped, named, plan
from phalanx.checkpoint.handle import SaveHandle, Storage
from phalanx.checkpoint.link import absent, alone, telling
from phalanx.checkpoint.ranks import peers, place, safe_point, together, way
from phalanx.checkpoint.state import loadable, states

TRACKERS = ("latest", "dlrover_latest.txt")
_STORAGE_WAIT_S = 600  # of close(); a job's end waits as long
_FAILED_S = 30  # of the same, without an agent, where the script has failed
_TELL_S = 2  # for functions that are to hear of earlier saves, before nodes join or leave
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # pathlib has made one slash of two
_open = weakref.WeakSet()


class Checkpointer:
    """Saves the state of this rank into memory that outlives it, and from there to `directory`. Without an agent, under
    torchrun or Slurm say, saves to disk are made, and those to memory are skipped.

    Every rank of the job makes one for the same directory and saves the same steps. It belongs to the thread that
    trains; handles may be waited for in any. Forked children of a rank (data loaders) save nothing.
    """

    kind = "full"
    layouts = ("torch", "safetensors")
    layouts_on_disk = ("torch-zip", "safetensors")

    def __init__(
        self,
        directory,
        keep_last=None,
        keep_every=None,
        save_at_breakpoint=False,
        memory_budget=None,
        slots=3,
        verify="always",
        overlap=True,
        trackers=TRACKERS,
        weights_only=True,
        layout="torch",
        archive=None,
        archive_every=None,
    ):
        """`keep_last`, `keep_every`: which steps stay on disk; neither: all. `save_at_breakpoint`: the newest step in
        memory goes to disk when a worker fails or the job is drained. `memory_budget`: bytes of memory that this
        directory may take on this node. `verify`: "always" reads all of the state's memory once more behind the copy,
        and commits only what is the same; "never" trusts that nobody writes meanwhile. `overlap=False` copies all of it
        before save() returns. `weights_only`: as in torch.load. `layout`: "torch" for files of torch.save,
        "safetensors"; either loads both. `archive`: another directory, to which what is stored is copied behind that:
        the newest step, or with `archive_every` each that it divides. It is asked where `directory` has nothing to
        restore, and nothing is deleted there.
        """
        _check("slots", slots, slots in (2, 3), "2 or 3")
        _check("layout", layout, layout in self.layouts, " or ".join(repr(known) for known in self.layouts))
        _check("verify", verify, verify in ("always", "never"), "'always' or 'never'")
        numbers = {"keep_last": keep_last, "keep_every": keep_every, "memory_budget": memory_budget}
        numbers["archive_every"] = archive_every
        for name, value in numbers.items():
            _check(name, value, value is None or (type(value) is int and value > 0), "None or a number above 0")
        self.directory = os.path.abspath(_path("directory", directory))
        self.archive = _archive_of(self.directory, archive, archive_every)
        self.weights_only = weights_only
        self.source = None  # of the last load(): "memory", "disk" or None
        self.why = None  # of the last load(): what was decided, and which sources were passed over
        self._here = self._place()
        self._pid = os.getpid()
        self._way = way.of(self.directory)
        self._peers = None  # for who asks no agent
        self._closed = self._has_failed = self._has_said = False
        self._saver = None  # the thread that saves at this moment
        self._closes_behind = False  # behind the save within which a signal handler closes
        self._memory_budget = memory_budget or 0
        self._layout = layout
        self._describer = self._new_describer()
        # An image of random numbers is complete before save() returns, and a describer knows their memory again.
        self._rng = {}
        self._loadable = loadable.Classes()
        self._door = self._writer = self._alone = None
        self._teller = telling.Teller(self._what_became)
        self._safe_points = safe_point.SafePoints()
        self._patience = absent.Patience()
        self._storage_wait_s = _STORAGE_WAIT_S
        # A script that just ends waits until each `on_stored` was called, as close() does: they put files in place.
        self.waits_at_exit = False
        self._settings = {
            "keep_last": keep_last or 0,
            "keep_every": keep_every or 0,
            **({"archive": self.archive, "archive_every": archive_every or 0} if self.archive else {}),
            "save_at_breakpoint": bool(save_at_breakpoint),
            "trackers": list(trackers),
            "slots_wanted": slots,
            "memory_budget": self._memory_budget,
        }
        self._how = bool(overlap), verify
        self._has_agent = self._agent_fd() >= 0
        if self._has_agent:
            self._connect(self._agent_fd())

    def _connect(self, fd):
        selftest.check()
        _make_directory(self.directory)
        self._door = door.Door(fd)
        try:
            answer = self._door.ask("open", dir=self.directory, kind=self.kind, **self._settings)
            self._make_writers(answer, self._settings["slots_wanted"], *self._how)
        except (door.Refusal, door.Gone, native.Failure) as error:
            self._door.close()
            raise RuntimeError(f"phalanx.checkpoint: {self.directory}: {error}") from None
        _open.add(self)

    def _must_be_who_it_was(self):
        """Without an agent the process group says which rank this is, once there is one."""
        here = self._place()
        if (here.rank, here.world_size) != (self._here.rank, self._here.world_size):
            raise RuntimeError(
                f"phalanx.checkpoint: this Checkpointer was made as rank {self._here.rank} of {self._here.world_size}, "
                f"and the process group says rank {here.rank} of {here.world_size}: call init_process_group() first"
            )

    def _begin_alone(self):
        """Before the first save without an agent: who only loads needs no more than the files."""
        self._here.epoch = alone.EPOCH
        try:
            self._alone = alone.Alone(self.directory, self.kind, self._here, self._way)
        except (door.Gone, OSError) as error:
            raise RuntimeError(f"phalanx.checkpoint: {self.directory}: {error}") from None
        fd = self._alone.take_socket()
        try:
            self._connect(fd)
        except Exception:
            self._alone.end()
            self._alone = self._writer = None  # that of one page may have been made
            raise
        finally:
            os.close(fd)

    def _writer_of(self, page, control, kind, slots, overlapping, verify):
        budget = self._budget_of(page)
        return writer.Writer(
            self._door,
            control,
            self.directory,
            page,
            kind,
            forms.OF_KIND[self.kind],
            self._here,
            slots,
            budget,
            overlapping,
            verify,
        )

    # What classes for other strategies change.

    def _place(self):
        return place.here()

    def _agent_fd(self):
        return place.agent_fd()

    def _new_describer(self):
        return named.Describer() if self._layout == "safetensors" else plan.Describer()

    def _make_writers(self, answer, slots, overlapping, verify):
        self._writer = self._writer_of("own", answer["control"], self.kind, slots, overlapping, verify)

    def _write(self, handle, state, began_ns):
        self._writer.write(handle, *self._described(state), began_ns)

    def _budget_of(self, page):
        """What of the memory_budget is this page's; 0: no limit. The images of all ranks are of about one size."""
        share = self._memory_budget // self._here.local_world_size
        return max(share, 1) if self._memory_budget else 0

    def _is_lent(self):
        """Whether the next world takes it from memory, when nodes come or go: else the save before that is to disk."""
        return False

    def part_of(self, state):
        """What this rank saves of `state`."""
        return state

    def read(self, found, map_location="cpu"):
        """The state as it was saved, from the files that were found."""
        if found.own is None:
            raise RuntimeError(
                f"phalanx.checkpoint: step {found.step} in {self.directory} has nothing of rank {self._here.rank}: it "
                f"was saved by a world of {found.world_size}. Go on with as many ranks; a state that is the same on "
                "all ranks is for phalanx.checkpoint.ddp, which worlds of any size load"
            )
        if found.world_size > self._here.world_size:
            first, last = self._here.world_size, found.world_size - 1
            who = f"rank {last}" if first == last else f"ranks {first} to {last}"
            left = f"what {who} had saved is left out: this world is smaller"
            self.why = f"{self.why}; {left}" if self.why else left
        return self.read_image(found, found.own, map_location)

    # --- saving

    def prepare(self, state, waits=True):
        """Plans for a state of this structure and has the memory for it made ready: the first save then costs what the
        tenth does. Returns None, or why there is less memory than was asked for.

        `waits=False`: returns None as soon as it has begun. The memory is made ready while the training goes on; the
        next save waits for what is left of that, and its handle says why there is less.
        """
        self._must_be_able_to_save()
        return self._writer.prepare(*self._described(state), waits)

    def _begin(self, handle, write, began_ns):
        """`write()` begins the copy of what is saved."""
        self._must_be_open()
        if self._has_agent:
            self._save(handle, write, began_ns)
        else:
            self._save_alone(handle, write, began_ns)

    def _save_alone(self, handle, write, began_ns):
        """Without an agent. What is in the way of all ranks costs this save."""
        if handle.storage is Storage.MEMORY:
            return self._pass_over(handle, alone.NOT_TO_MEMORY)
        try:
            self._must_have_host(handle.step, handle.branch)
            if not self._alone.begins(handle.step, handle.branch):
                return self._pass_over(handle, f"step {handle.step} was saved before")
        except together.Apart as error:
            return self._pass_over(handle, str(error))
        return self._save(handle, write, began_ns)

    def _must_have_host(self, step, branch):
        """Or together.Apart, on all ranks, says why there is none."""
        self._must_be_who_it_was()
        why = self._why_no_host()
        if why is not None:  # the others are not to wait for this rank
            together.meet(self._here, alone.meeting(self.directory, step, branch), why)

    def _why_no_host(self):
        """None: there is one."""
        try:
            if self._writer is None:
                self._begin_alone()
        except (RuntimeError, OSError) as error:
            return str(error)
        return None

    def _pass_over(self, handle, why):
        handle.is_over = True
        handle.explain(why)
        if why is not alone.NOT_TO_MEMORY:
            people.say(f"rank {self._here.rank}: step {handle.step} of {self.directory} is not stored: {why}")
        elif self._here.rank == 0 and not self._has_said:
            self._has_said = True  # once: it is so for each of them
            people.say(why)
        _tell_step(handle)

    def save(self, step, state, storage=Storage.MEMORY, on_stored=None):
        """Saves `state` as that of `step` and returns a SaveHandle, in general before all of it is copied.

        Modules, optimizers and whatever else has a state_dict() stand for it; "rng": True stands for the state of all
        random numbers. Raises CannotSave for what no checkpoint can hold. Whatever else is in the way costs this save,
        never the training: the handle's `why` says it.

        `on_stored`: of a save to disk, called once with a StoreResult when it is known what became of it, in a thread
        of its own, one save after another. What it raises is reported by threading.excepthook, and ends nothing.

        Does not return where nodes are about to join or leave on purpose, and this is the save that all ranks go on
        from: this process is ended when all have it.
        """
        began_ns = time.monotonic_ns()
        storage = checked_storage(storage, on_stored)
        self._must_be_open()
        step = int(step)
        is_last = self._has_agent and self._may_be_last(step, began_ns) and self._safe_points.is_due()
        to_memory = is_last and self._is_lent()
        if is_last and not to_memory:
            storage = Storage.DISK
        handle = SaveHandle(self, step, storage, self._way.saves(step))
        self._begin(handle, lambda: self._write(handle, state, began_ns), began_ns)
        if on_stored is not None:
            self._teller.tell(handle, on_stored)
        if is_last:
            self._end_behind(handle, handle.wait_committed if to_memory else handle.wait_stored)
        return handle

    def _may_be_last(self, step, now_ns):
        """Whether this save is all that the rank has to save. Where several of these save it is not."""
        if self._saver is not None or not safe_point.is_here():
            return False
        self._safe_points.saves(step, now_ns)
        is_alone = not any(each._safe_points.has_saved for each in _open if each is not self)
        if not is_alone:
            safe_point.hear(0)
        return is_alone

    def _end_behind(self, handle, wait):
        """Returns where not all ranks have it: then behind the next one. Where the job's own grace is over before
        (--rescale-grace) it ends them all."""
        try:
            is_safe = wait(timeout=safe_point.PATIENCE_S)
        except TimeoutError:
            return self._safe_points.give_up()
        if is_safe:
            self._teller.finish(_TELL_S)
            rescale.come_to_safe_point(handle.step)

    def _save(self, handle, write, began_ns):
        try:
            self._save_and_hold(handle, write, began_ns)
        finally:
            if self._closes_behind and self._saver is None:
                self.close()

    def _save_and_hold(self, handle, write, began_ns):
        with self._writer.lock, phalanx.saving():
            self._must_be_open()  # close() may have been faster than a thread that saves
            if self._saver is not None:  # a signal handler's save within another
                self._writer.give_up(handle, "another save was under way in this thread")
                return
            self._saver = threading.get_ident()
            try:
                self._writer.finish()
                write()
            except torch.cuda.OutOfMemoryError as error:
                # A tensor with gaps is copied to be described.
                self._writer.give_up(handle, f"rank {self._here.rank}: {error}")
            except BaseException as error:
                # The others do not wait for this rank's part, and hear why there is none.
                why = str(error) if isinstance(error, Exception) else type(error).__name__
                self._writer.give_up(handle, f"rank {self._here.rank}: {why}")
                raise
            finally:
                self._saver = None
        handle.held_ns += time.monotonic_ns() - began_ns
        _tell_step(handle)

    def wait(self):
        """Waits until nothing of the last save is read any more: to be called before anything but an optimizer's step()
        or load_state_dict() writes parameters or optimizer states."""
        if self._is_able_to_save():
            self._writer.finish()

    def finish_telling(self, timeout_s=None):
        """Waits until each `on_stored` of earlier saves was called, or that long. Whether they all were."""
        if self._teller.is_here():
            return True
        until_ns = None if timeout_s is None else time.monotonic_ns() + int(timeout_s * 1e9)
        # A copy that has come to nothing is given up by who waits for it, and there may be no step any more.
        if not self.finish(None, until_ns):
            return False
        return self._teller.finish(None if until_ns is None else max(0, until_ns - time.monotonic_ns()) / 1e9)

    def close(self):
        """Waits for the last copy, and until each `on_stored` was called: ten minutes for storage, and as long as those
        calls take. What is in memory stays with the agent."""
        if self._saver == threading.get_ident():
            self._closes_behind = True
        elif self._is_able_to_save():
            self._closed = True
            safe_point.hear(0)
            with self._writer.lock:
                self._close_writers()
            is_stored = self._alone is not None and self._alone.finish(self._storage_wait_s or self._patience_alone_s())
            # Where all is known no question waits; it is not to find the door closed.
            self._teller.finish(None if is_stored else self._storage_wait_s)
            self._door.close()
            if self._alone is not None:
                self._alone.end()
            self._teller.finish()
            _open.discard(self)

    def _close_writers(self):
        self._writer.close()

    def _patience_alone_s(self):
        """Of a script that just ends, where no agent goes on storing: as long as storage may take; but not of one that
        has failed, for which the others may never come."""
        return _FAILED_S if self._has_failed or _script_has_failed() else _STORAGE_WAIT_S

    def __enter__(self):
        return self

    def __exit__(self, kind, *error):
        if kind is not None:
            self._has_failed = True
            self._storage_wait_s = 0  # whoever fails is awaited by the others
        self.close()

    def finish(self, handle, until_ns=None):
        """For a handle: waits for the end of its copy; None: of any. False where time.monotonic_ns() came to `until_ns`
        before."""
        return not self._is_able_to_save() or self._writer.finish(handle, until_ns)

    def ask_wait(self, handle, until, timeout_s=None):
        """For a handle: True once its step is committed or stored, False where it cannot be any more, or ranks do not
        come to it. Raises TimeoutError. `timeout_s`: None is that of absent.py, infinity none."""
        others_s = absent.OTHERS_S if self._has_others() else math.inf
        if until == "stored" and timeout_s is None and others_s != math.inf:
            # Ranks are waited for until it is committed, and storage for as long as it takes.
            if not self._await(handle, "committed", self._patience, None, others_s):
                return False
            others_s = math.inf
        patience = self._patience if until == "committed" else absent.Patience()
        return self._await(handle, until, patience, timeout_s, others_s)

    def _await(self, handle, until, patience, timeout_s, others_s):
        ask = functools.partial(self._ask_wait, handle, until)
        is_so, why = absent.wait(self._door, patience, self._named_save(handle), ask, timeout_s, others_s)
        handle.explain(why)
        return is_so

    def _has_others(self):
        """Whether there are ranks of which this node's agent does not know what they save."""
        return self._has_agent and self._here.world_size > self._here.local_world_size

    def who_is_late(self, handle):
        """For a handle that was not committed in time: a sentence, or None."""
        late = absent.who_is_late(self._door, self._named_save(handle)) if self._has_agent else None
        return f"{late}, ranks of other nodes have not" if late == absent.ALL_ARE_HERE and self._has_others() else late

    def _ask_wait(self, handle, until, timeout_s=None):
        """(whether it is so, why)."""
        try:
            return self._answer_to_wait(handle, until, timeout_s)
        except (door.Refusal, door.Gone) as error:
            return False, str(error)

    def _answer_to_wait(self, handle, until, timeout_s=None):
        """The agent's, which is final. Refusal, Gone: it has given none."""
        answer = self._door.ask("wait", timeout_s, until=until, **self._named_save(handle))
        return answer.get("state") in (until, "stored"), answer.get("why") or None

    def _named_save(self, handle):
        return {"dir": self.directory, "step": handle.step, "branch": handle.branch}

    def _what_became(self, handle):
        """For the teller. The copy is not waited for here: that would hold its lock, and so the training. The agent
        answers when the copy is sealed and stored, or was given up."""
        if handle.is_over and not handle.is_sealed:
            return telling.StoreResult(handle.step, False, handle.why)
        try:
            return telling.StoreResult(handle.step, *self._answer_to_wait(handle, "stored"))
        except (door.Refusal, door.Gone) as error:
            return telling.StoreResult(handle.step, False, str(error), may_come=True)

    def _is_able_to_save(self):
        return self._writer is not None and not self._closed and os.getpid() == self._pid

    @property
    def is_open(self):
        """close() was not called."""
        return not self._closed

    def _must_be_open(self):
        if os.getpid() != self._pid:
            raise RuntimeError("phalanx.checkpoint: a child process of a rank cannot save; the rank itself can")
        if self._closed:
            raise RuntimeError(f"phalanx.checkpoint: the Checkpointer of {self.directory} is closed")

    def _must_be_able_to_save(self):
        self._must_be_open()
        if not self._has_agent:
            self._must_be_who_it_was()
        if self._writer is None:
            self._begin_alone()

    def _described(self, state):
        with plan.without_collector():
            expanded = states.expand(self.part_of(state), rng_into=self._rng)
            image = self._describer.describe(expanded.state)
        if self.weights_only:
            self._loadable.check(image.classes, expanded.state)
        return expanded, image

    # --- restoring

    def load(self, default=None, step=None, timeline=None, map_location="cpu"):
        """(state, step) of the newest step that every rank has at this moment, the same step on all ranks, which call
        it together: from memory where that has outlived the last life, or this one has saved it, else from disk.
        (default, 0) where there is none. What is saved behind it is newer than all before, also where its steps are
        lower.

        `map_location`: as in torch.load; all tensors are on the CPU where it is not given. Files of safetensors do not
        say where a tensor was: a device may be named for all, None is the CPU, and a dict or a function is a TypeError.
        `step`: that one, from disk, of the timeline in which it was stored last; `timeline`: that one's newest step, or
        its `step`. LookupError, on all ranks, where it is not there or not whole.

        Random numbers that were saved are set: call it when the model is built, and before data is drawn. `source` says
        where the state came from, `why` in a sentence what was decided, and which sources were passed over.
        """
        map_location = loadable.location(map_location)
        found = self._find(step, timeline)
        if found.source is None:
            return default, 0
        return states.restore(self.read(found, map_location)), found.step

    def _find(self, step=None, timeline=None):
        if step is not None or timeline is not None:
            found = self._find_exactly(number("step", step), number("timeline", timeline))
        elif self._asks_agent():
            found = self._ask_for_files()
        else:
            self._go_back_alone()
            found = disk.find(self._on_disk(), self._here.rank, self._agree, self._find_in())
        self.why, self.source = found.why, found.source
        if found.source != "memory" and os.getpid() == self._pid:
            self._way.goes_on_from(found.folder())
        if found.source is not None:
            board.restored_step(found.step)
        return found

    def _asks_agent(self):
        """What there is to load; else the ranks look at the disk."""
        return self._is_able_to_save() and self._has_agent

    def _find_exactly(self, step, timeline):
        """No agent is asked: the ranks know which step is meant. What they save behind it is of a new branch, also
        where it is not found, so that all count alike."""
        if self._asks_agent():
            self._writer.finish()
            self._way.goes_back()
        else:
            self._go_back_alone()
        try:
            return disk.find_exactly(self._on_disk(), self._here.rank, self._agree, step, timeline, self._find_in())
        except disk.NotThere as error:
            raise LookupError(f"phalanx.checkpoint: {error}") from None

    def _on_disk(self):
        return disk.Places(self.directory, self.archive)

    def _go_back_alone(self):
        """Behind what this life is storing: that is the newest then."""
        if os.getpid() == self._pid:
            self._way.goes_back()
        if self._is_able_to_save():
            self._writer.finish()
            self._alone.finish_storing(_STORAGE_WAIT_S)

    def _find_in(self):
        """What looks at the manifests of this strategy's layouts; None: disk's own."""
        return None

    def _agree(self, step, why, sequence=0, only=False):
        """Whether all ranks take that step from disk, where no agent decides it: by a collective. Without a process
        group they come to the same by themselves, unless one of them finds its own part damaged: then it goes no
        further, but where it will fail because that step is the `only` one."""
        if self._here.world_size == 1:
            return step < 0 or why is None
        if place.is_together():
            if self._peers is None:
                self._peers = peers.Peers(self._here, self.directory, "/load")
            try:
                return self._peers.all_take(step, why is None, sequence)
            except peers.NotTogether as error:
                raise RuntimeError(f"phalanx.checkpoint: {self.directory}: {error}") from None
        if why is not None and not only:
            raise RuntimeError(
                f"phalanx.checkpoint: {why}. The ranks can only go on from an older step together: call "
                "torch.distributed.init_process_group() before load()"
            )
        return why is None

    def _ask_for_files(self):
        self._writer.finish()
        branch = self._way.goes_back()
        found = disk.from_answer(self._ask("restore", branch=branch))
        found.branch = branch
        why_not = disk.why_no_layout(found.layout, self.layouts_on_disk)
        if found.kind is not None and forms.OF_KIND.get(found.kind) != forms.OF_KIND[self.kind]:
            why_not = f"in memory it is of kind {found.kind}, and this Checkpointer is of kind {self.kind}"
        if why_not is not None:
            raise RuntimeError(f"phalanx.checkpoint: step {found.step} of {self.directory}: {why_not}")
        return found

    def _ask(self, request, **fields):
        try:
            return self._door.ask(request, dir=self.directory, **fields)
        except (door.Refusal, door.Gone) as error:
            raise RuntimeError(f"phalanx.checkpoint: {self.directory}: {error}") from None

    def read_image(self, found, path, map_location="cpu"):
        """Memory is mapped and not read where the agent promises that it stays as it is: a page becomes this process's
        own once it is written. Files on disk may be recycled for later steps, and are read."""
        mmap = found.source == "memory" and found.stable
        try:
            if named.is_one(path):
                return named.load(path, mmap, self.weights_only, loadable.device_of_all(path, map_location))
            if mmap and map_location == "cpu":
                with contextlib.suppress(mapped.NotPlain):
                    return mapped.load(path)
            return torch.load(path, map_location=map_location, mmap=mmap, weights_only=self.weights_only)
        except (OSError, RuntimeError, ValueError) as error:
            raise RuntimeError(f"phalanx.checkpoint: step {found.step}: {path} cannot be read: {error}") from error

    # --- what is stored

    def steps(self):
        """[StoredStep] of what lies whole in the directory, or in its archive alone, at this moment, that which
        was stored last first. An archive that cannot be read is a RuntimeWarning, and left out. What is
        damaged, or not all there yet, is not in it. Any process may ask, with an agent or without."""
        return stored.steps(self._on_disk())

    def delete(self, step, timeline=None):
        """Removes that step from disk, also from the archive, of all timelines or of that one: True where this call has
        done so, False where there is none, or another call was faster. Any process may call it, one rank or all.

        Also the newest: trackers then name the one before. Memory keeps what it holds of the step, and so load() may
        give it. RuntimeError says what the file system has refused.
        """
        step, timeline = step_number(step), number("timeline", timeline)
        try:
            # What has been deleted here is not copied any more.
            deleted = [stored.delete(place, step, timeline) for place in filter(None, (self.directory, self.archive))]
            return any(deleted)
        except OSError as error:
            raise RuntimeError(
                f"phalanx.checkpoint: step {step} of {self.directory} is not deleted: "
                f"{error.filename}: {error.strerror}"
            ) from error


def _archive_of(directory, archive, every):
    """Its absolute path, or None."""
    _check("archive_every", every, every is None or archive is not None, "None where no archive is given")
    if archive is None:
        return None
    path = os.path.abspath(_path("archive", archive))
    places = [os.path.realpath(path), os.path.realpath(directory)]
    is_apart = os.path.commonpath(places) not in places
    _check("archive", archive, is_apart, f"a directory that is not {directory}, nor in it or around it")
    return path


def _make_directory(path):
    """Where it cannot be made, saves go to memory alone, and those to disk say what is wrong. One that is there is only
    looked at: a disk that hangs would hold whoever writes to it."""
    if not os.path.isdir(path):
        with contextlib.suppress(OSError):
            os.makedirs(path, exist_ok=True)


def _check(name, value, is_right, what):
    if not is_right:
        raise ValueError(f"phalanx.checkpoint: {name} is {value!r}; expected {what}")


def _path(name, value):
    """A URL would be a folder of that name here, on a disk that ends with this machine."""
    path = os.fsdecode(value)
    is_path = _URL.match(path) is None
    _check(name, value, is_path, "a path in a file system that all nodes see: mount what is behind a URL")
    return path


def checked_storage(storage, on_stored=None):
    storage = Storage(storage)
    if on_stored is not None and not callable(on_stored):
        raise TypeError(f"phalanx.checkpoint: on_stored is {on_stored!r}; expected a function of a StoreResult")
    if on_stored is not None and storage is not Storage.DISK:
        raise ValueError(
            f"phalanx.checkpoint: on_stored is given with {storage}; expected storage=Storage.DISK, whose saves alone "
            "are stored"
        )
    return storage


def step_number(value):
    _check("step", value, value is not None, "a whole number of 0 or more")
    return number("step", value)


def number(name, value):
    """A whole number of 0 or more, of whatever type; None stays None."""
    is_right = value is None or (hasattr(value, "__index__") and not isinstance(value, bool) and int(value) >= 0)
    _check(name, value, is_right, "None or a whole number of 0 or more")
    return value if value is None else int(value)


def _tell_step(handle):
    """Not where safe points go by the optimizer's steps: two ways of counting would be mixed."""
    if handle.tells_step and (board.tells_steps() or board.on_step is None):
        board.saved_step(handle.step)


def _script_has_failed():
    return getattr(sys, "last_value", None) is not None


def _close_all():
    """So that the last save of a script is not lost at its end. Who asks it to stop then does not want to wait."""
    for checkpointer in list(_open):
        if not checkpointer.waits_at_exit or _script_has_failed():
            checkpointer._storage_wait_s = 0
        with contextlib.suppress(KeyboardInterrupt):
            checkpointer.close()


atexit.register(_close_all)
