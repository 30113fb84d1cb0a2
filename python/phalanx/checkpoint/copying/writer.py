"""From an image to a slot: the plan, which memory is copied when, and the copy under way."""

import array
import functools
import json
import os
import threading
import time
import warnings
import weakref

from phalanx import _door as door
from phalanx.checkpoint import describing, native
from phalanx.checkpoint.copying import cuda, device, flight, overlap, reservation
from phalanx.checkpoint.handle import Storage
from phalanx.checkpoint.state import refuse

SMALL_BYTES = 64 << 10  # what is no larger is copied at once: threads would win nothing
_SMALL_BYTES_MAX = 4 << 20  # of these together; of more, only counters are
_COUNTER_BYTES = 64
_REASON_CHARS = 4096  # of a packet
_FSDP = "FSDP frees and moves parameters during the forward and backward pass"
_OBSTACLES = (door.Refusal, door.Gone, native.Failure, device.Refused)
_SLOTS_MAX = 3
_PAGE_BYTES = 4096
_GROWTH_BYTES_MAX = 1 << 20  # of what is no tensor, between the first step and the first save


class Writer:
    """The slots of this rank for one directory. One copy is under way at a time.

    All methods may be called by any thread; a signal handler may call them within one another.
    """

    def __init__(
        self,
        checkpoint_door,
        control_path,
        directory,
        page,
        kind,
        form,
        here,
        slots_wanted,
        budget,
        overlapping,
        verify,
    ):
        """`page`: "own" or "main", which of the rank's images this is; `kind`: what the image says that it is; `form`:
        who needs which image of a save, a number of formats/forms.py;
        `budget`: bytes that its slots may take, 0: no limit."""
        self._door, self._directory, self._page = checkpoint_door, directory, page
        self._here, self._form = here, form
        self._slots_wanted, self._budget = slots_wanted, budget
        self._proves = verify == "always"
        self.lock = threading.RLock()
        self._slots = native.Slots(control_path, here.epoch)
        self._copier = device.Copier(cuda.Driver())
        self._held = _Held(self._slots, self._copier)
        self._flight = None
        self._guard = overlap.Guard(self._before_step)
        if not overlapping:
            self._guard.off = "overlap=False"
        self._plan = None
        self._slot_bytes = 0
        self._tells_itself = False  # that the image under way is sealed: the native side must not, behind what is kept
        self._reservation = None  # that of slots which are made ready at this moment, or were since the last save
        self._pinned_at = -1  # what native.Slots.changes() was when the slots were pinned
        info = {"version": 1, "epoch": here.epoch, "rank": here.rank}
        info.update(world_size=here.world_size, kind=kind, job_id=here.job_id)
        self._info_begins = json.dumps(info).encode("utf-8", "surrogateescape")[:-1] + b", "
        self._sealed_begins = door.packet(type="sealed", dir=directory, page=page)[:-1]
        # An image that nobody waits for any more is sealed all the same. The flight lives until then.
        weakref.finalize(self, self._held.let_go).atexit = False

    def prepare(self, expanded, image, waits=True):
        """Slots that fit. Why there are fewer than asked for, or None. Where it does not wait the next save does, for
        what is left of it, and says why."""
        with self.lock:
            self.finish()
            self._guard.mark(expanded.optimizers)
            if not waits:
                return self._reserve(image)
            try:
                why = self._plan_for(expanded, image)
                self._slots.map()
                return (self._pin() if self._copier.records_of(image) else None) or why
            except _OBSTACLES as error:
                return str(error)

    def write(self, handle, expanded, image, began_ns):
        """Begins the copy, or skips it with a reason. `began_ns`: when save() was called."""
        try:
            handle.explain(self._plan_for(expanded, image))
            try:
                self._begin(handle, expanded, image, began_ns)
            except native.Failure as failure:
                if failure.code != native.NO_ROOM:
                    raise
                self._plan, self._slot_bytes = None, 0  # the pickle has grown, or the agent has changed the slots
                handle.explain(self._plan_for(expanded, image))
                self._begin(handle, expanded, image, began_ns)
        except _OBSTACLES as error:
            self.give_up(handle, str(error))

    def give_up(self, handle, why):
        """This save will not be committed by this rank."""
        handle.is_over, handle.is_sealed = True, False
        handle.explain(why)
        save = {"step": handle.step, "branch": handle.branch}
        self._door.tell(door.packet(type="skipped", dir=self._directory, why=why[:_REASON_CHARS], **save))

    def finish(self, handle=None, until_ns=None):
        """Waits for the end of the copy under way, if there is one (`handle`: only if it is that one's). False where
        time.monotonic_ns() came to `until_ns` before."""
        left_s = -1 if until_ns is None else max(0, until_ns - time.monotonic_ns()) / 1e9
        if not self.lock.acquire(timeout=left_s):
            return False
        try:
            current = self._flight
            if current is not None and handle in (None, current.handle):
                outcome = current.wait(self._slots, until_ns)
                if until_ns is not None and outcome.state == native.COPYING:
                    return False
                self._end(current, outcome)
            return True
        finally:
            self.lock.release()

    def close(self):
        with self.lock:
            self.finish()
            if self._reservation is not None:
                self._reservation.drop()
            self._guard.close()
            self._held.let_go()

    # --- the plan

    def _plan_for(self, expanded, image):
        """Brings the plan up to the image, and the slots up to the plan."""
        why = self._take_reserved()
        key = image.key()
        if self._plan is not None and self._plan.key == key:
            return why
        if not image.fits(self._slot_bytes):
            self._slot_bytes, why = self._ask_for_slots(image.file_bytes())
        buffers = overlap.buffer_storages(expanded.modules)
        offsets = image.offsets(self._slot_bytes)
        at_once = self._at_once_bytes(image)
        self._plan = _Plan(key, self._slot_bytes, offsets, buffers, overlap.fsdp1_in(expanded.modules), at_once)
        return why

    def _at_once_bytes(self, image):
        """How large a record is at most that is copied at once whatever it is. Devices gather small ones themselves."""
        if image.tensors is None or self._copier.records_of(image):
            return SMALL_BYTES
        small_bytes = sum(size for size in image.sizes if size <= SMALL_BYTES)
        return SMALL_BYTES if small_bytes <= _SMALL_BYTES_MAX else _COUNTER_BYTES

    def _ask_for_slots(self, wanted_bytes):
        """(bytes of each, why there are fewer than asked for)."""
        answer = self._door.ask(
            "prepare",
            dir=self._directory,
            page=self._page,
            bytes=wanted_bytes,
            slots=self._slots_wanted,
            memory_budget=self._budget,
        )
        why = answer.get("why") or None
        if not answer.get("slots"):
            raise door.Refusal(why or "the agent has made no slots")
        return answer["bytes"], why

    def _reserve(self, image):
        """Begins what _plan_for() would wait for."""
        self._take_reserved()
        if image.fits(self._slot_bytes):
            return
        ask = functools.partial(self._ask_for_slots, _with_growth(image.file_bytes()))
        take = functools.partial(self._take_slots, self._copier.device_of(image))
        self._reservation = reservation.Reservation(ask, take, _OBSTACLES)

    def _take_slots(self, on_device, answer):
        """In the reservation's thread: nobody else touches the slots before it is over. `on_device`: where memory of
        the state lies; None: nowhere."""
        self._slot_bytes, why = answer
        self._slots.map()
        if on_device is None:
            return why
        self._copier.enter_thread(on_device)
        return self._pin() or why

    def _take_reserved(self):
        """Waits for the slots that are made ready. Why there are fewer than asked for, or None: also where there are
        none at all, since whoever needs them asks once more."""
        made, self._reservation = self._reservation, None
        return made.result() if made is not None else None

    def _choose(self, expanded, image):
        """(when each record is copied, what watches those that are copied while training goes on, why the others are
        not)."""
        self._plan.when = when = bytearray([native.NOW]) * len(image.sizes)
        if max(image.sizes, default=0) <= self._plan.at_once_bytes:
            return when, None, None
        optimizers, others, why = self._guard.trusted(expanded.optimizers)
        if optimizers and self._plan.fsdp1:
            optimizers, why = [], _FSDP
        if not optimizers:
            return when, None, f"copied before save() returned: {why}"
        written = overlap.guarded_tensors(optimizers)
        if len(optimizers) == len(expanded.optimizers):
            written += expanded.behind_steps
        found = self._guarded(image, written, others)
        alarms = overlap.Alarms(*found, image) if found[0] else None
        return when, alarms, why and f"copied in part before save() returned: {why}"

    def _guarded(self, image, written, others):
        """(numbers of records, tensors of `written`, their version counters), one by one: the tensors take all of their
        storage between them, and `others` write nothing of it. Marks those records as copied later."""
        plan, records, tensors, versions = self._plan, array.array("Q"), [], array.array("Q")
        shared = plan.buffers | overlap.storages_of(overlap.guarded_tensors(others))
        if image.tensors is not None:
            records, tensors, versions, written = describing.guards(
                image, written, shared, plan.at_once_bytes, plan.when
            )
        if written:
            found = plan.guarded_again(image, written, shared)
            if found is None:
                found = plan.remember_guarded(image, written, shared, self._pairs(image, written, shared))
            for index in found[0]:
                plan.when[index] = native.LATER
            records.extend(found[0])
            tensors += found[1]
            versions.extend(describing.versions(found[1]))
        return records, tensors, versions

    def _pairs(self, image, written, shared):
        """What _guarded() gives, of tensors of whatever kind, and of records that several of them take."""
        in_storage = {}
        for index, identity in enumerate(image.identities()):
            if image.sizes[index] > 0 and identity not in shared and self._plan.when[index] == native.NOW:
                in_storage.setdefault(identity, []).append(index)
        # Only what is large is looked up: with a counter for each parameter a quarter of all is small.
        above = self._plan.at_once_bytes
        in_storage = {
            identity: records
            for identity, records in in_storage.items()
            if max(image.sizes[index] for index in records) > above
        }
        memory = overlap.Written(tensor for tensor in written if refuse.storage_identity(tensor) in in_storage)
        return [pair for found in in_storage.items() for pair in _guards_of(image, memory, above, *found)]

    # --- the copy

    def _begin(self, handle, expanded, image, began_ns):
        when, alarms, why = self._choose(expanded, image)
        on_device = self._copier.records_of(image)
        not_pinned = self._pin() if on_device else None
        guarded = {index for index in on_device if when[index] == native.LATER}
        for index in on_device:
            when[index] = native.FILLED
        is_host_later = native.LATER in when
        overlapping = bool(is_host_later or on_device)
        save = self._request(handle, image, when)
        save.threads = copy_threads(self._here) if overlapping else 0
        save.verify = int(self._proves)
        save.consent = int(alarms is not None or bool(image.copies))
        slot = self._slots.begin(save, image.native_frame(self._plan.file_bytes, save.info))
        current = None
        try:
            handle.explain(why)
            handle.explain(not_pinned)
            held_ns = time.monotonic_ns() - began_ns
            copies = None
            if on_device:
                # A file that the agent replaced since is mapped anew, and nobody has pinned that.
                pinned = not_pinned is None and self._slots.changes() == self._pinned_at
                copies = self._copy_from_devices(slot, image, on_device, guarded, pinned)
                handle.explain(copies.why)
            self._look_at_copied(image, is_last=alarms is None and copies is None)
            current = flight.Flight(handle, image, alarms, held_ns, expanded.state, copies, is_host_later)
            self._guard.mark(expanded.optimizers)
            self._flight, self._held.landed = current, current.landed
            current.begin(self._slots)
        except BaseException:  # also of a signal handler: the next save must find the slot free
            self._slots.give_up(0)
            if current is not None:
                current.cut_off()
            raise
        if not overlapping:
            return self.finish()
        self._guard.armed = True
        current.hooks = self._hooks_for_loading(expanded)
        return None

    def _look_at_copied(self, image, is_last):
        """What lies in the slot of a tensor with gaps is a copy of a copy: the tensor itself is looked at again, behind
        the copies that are made at once. `is_last`: nobody else is asked whether the image may be sealed."""
        outdated = next((number for number, part in image.copies if part.is_outdated()), None) if self._proves else None
        if outdated is not None:
            self._slots.give_up(outdated)
        if image.copies and is_last:
            self._slots.filled()

    def _copy_from_devices(self, slot, image, on_device, guarded, pinned):
        offsets, address = self._plan.offsets, self._slots.slot_data(slot)
        records = [
            (index, image.storages[index], image.pointers[index], image.sizes[index], offsets[index], index in guarded)
            for index in on_device
        ]
        return self._copier.copy(address, records, pinned, self._proves, self._slots.wait_copied)

    def _request(self, handle, image, when):
        here = self._here
        info = self._info(handle)
        notify = self._sealed(handle)
        save = native.Save(step=handle.step, branch=handle.branch, form=self._form, rank=here.rank)
        save.world_size, save.n = here.world_size, len(image.sizes)
        save.bytes, save.source = native.address(image.sizes), native.address(image.pointers)
        save.when = native.address(when)
        save.pickle, save.pickle_bytes = image.pickle, len(image.pickle)
        save.info, save.info_bytes = info, len(info)
        save.file_bytes = self._plan.file_bytes
        self._tells_itself = not self._door.tell_kept()  # of earlier saves comes first
        save.notify_fd = -1 if self._tells_itself else self._door.fileno()
        save.notify, save.notify_bytes = notify, len(notify)
        return save

    def _info(self, handle):
        return self._info_begins + b'"step": %d, "branch": %d}' % (handle.step, handle.branch)

    def _sealed(self, handle):
        to_disk = b"true" if handle.storage is Storage.DISK else b"false"
        save = b',"step":%d,"branch":%d,"disk":%s' % (handle.step, handle.branch, to_disk)
        values = b',"values":' + json.dumps(handle.values).encode() if handle.values else b""
        return self._sealed_begins + save + values + b"}"

    def _pin(self):
        """Has CUDA pin the slots as they are now. Why it does not, or None."""
        self._pinned_at = self._slots.changes()
        files = {slot: (self._slots.file_number(slot), self._slot_bytes) for slot in range(_SLOTS_MAX)}
        self._copier.unpin(but=files)  # before the native side unmaps them
        self._slots.map()
        addresses = {slot: self._slots.slot_data(slot) for slot in files}
        mapped = {slot: (address, self._slot_bytes, files[slot]) for slot, address in addresses.items() if address}
        return self._copier.pin(mapped)

    # --- while it is under way

    def _before_step(self):
        """Before every optimizer step while a copy is under way."""
        while True:
            current = self._flight
            if current is None:
                return
            with self.lock:
                self._protect(current)
                if self._flight in (None, current):  # else a signal handler has saved meanwhile
                    return

    def _protect(self, current):
        if self._flight is not current:
            return
        if overlap.is_capturing():
            # What is captured writes nothing now, and calls no hook when it does.
            current.changed = 0, "an optimizer's step was captured into a CUDA graph while it was copied"
            self._slots.give_up(0)
            return
        began_ns = time.monotonic_ns()
        outcome = current.protect(self._slots)
        current.handle.held_ns += time.monotonic_ns() - began_ns
        if outcome.state == native.COPYING:
            changed = self._look_for_alarms(current)  # what they watch changes from now on
            if changed is not None:
                self._slots.give_up(changed)
        else:
            self._end(current, outcome)

    def _end(self, current, outcome):
        if self._flight is not current:
            return
        self._flight = None
        self._guard.armed = False
        current.release()
        handle = current.handle
        if outcome.state == native.COPYING:
            self._slots.give_up(0)  # nobody will say that all is there
        if handle.is_over:
            return  # an alarm has given it up
        handle.is_over = True
        handle.is_sealed = outcome.state == native.SEALED
        if handle.is_sealed:
            handle.staged_ns = current.began_ns + outcome.copy_ns
            self._tell_again(handle)
            self._look_for_alarms(current)
            return
        self.give_up(handle, flight.reason(outcome, current))
        if outcome.state == native.CHANGED and current.is_by_the_script:
            self._distrust(handle.why)

    def _tell_again(self, handle):
        """The native side waits for no room in the socket: what it could not send is sent here, or kept."""
        is_told = not self._tells_itself and self._slots.notify_error() == 0
        if not is_told and not self._door.tell(self._sealed(handle)):
            handle.explain("the agent could not be told of it yet")

    def _look_for_alarms(self, current):
        """The number of a record that was perhaps torn, or None."""
        changed = current.look_for_alarms()
        if changed is None:
            return None
        why = current.changed[1]
        self.give_up(current.handle, why)
        self._distrust(why)
        return changed

    def _distrust(self, why):
        """From now on everything is copied before save() returns."""
        if self._guard.off is not None:
            return
        self._guard.off = f"an earlier save has found that {why}"
        warnings.warn(
            f"phalanx.checkpoint: {why}. From now on save() copies everything before it returns. What writes "
            "parameters in another way than an optimizer's step() must call Checkpointer.wait() first",
            RuntimeWarning,
            stacklevel=2,
        )

    def _hooks_for_loading(self, expanded):
        """load_state_dict() of what is being copied waits for the copy."""
        reference = weakref.WeakMethod(self.finish)

        def wait():
            finish = reference()
            if finish is not None:
                finish()

        return overlap.Loading(expanded.modules, expanded.optimizers, wait)


def _guards_of(image, memory, above, identity, records):
    """(record, tensor) for the records in a storage that are larger than `above`. Nothing where a part of one, or of a
    small one, was not written by optimizers: whoever writes that moves the version counters of all."""
    found = []
    for index in records:
        begin, size = image.pointers[index], image.sizes[index]
        tensors = memory.tensors_over(identity, begin, begin + size)
        if not tensors:
            return []
        if size > above:
            found.extend((index, tensor) for tensor in tensors)
    return found


def _with_growth(file_bytes):
    """Of whole pages, as all slots are."""
    return file_bytes + min(file_bytes // 8, _GROWTH_BYTES_MAX) // _PAGE_BYTES * _PAGE_BYTES


class _Held:
    """What is to be let go when its Writer is: also when nobody has closed that."""

    def __init__(self, slots, copier):
        self._slots, self._copier = slots, copier
        self.landed = None  # threading.Event of the last flight

    def let_go(self):
        """Waits for a copy under way, which is sealed all the same."""
        if self.landed is not None:
            self.landed.wait()
        self._copier.unpin()
        self._slots.close()


class _Plan:
    """Where the records of a state lie in the slots, and what else is the same for all states of this structure."""

    __slots__ = (
        "_guards",
        "_records",
        "_written",
        "at_once_bytes",
        "buffers",
        "file_bytes",
        "fsdp1",
        "key",
        "offsets",
        "when",
    )

    def __init__(self, key, file_bytes, offsets, buffers, fsdp1, at_once_bytes):
        self.key, self.file_bytes, self.offsets = key, file_bytes, offsets
        self.buffers, self.fsdp1 = buffers, fsdp1
        self.at_once_bytes = at_once_bytes  # of records that are copied at once whatever they are, at most
        self.when = bytearray()  # each record of the last save was copied: native.LATER where optimizers alone write it
        self._written = None  # ids of all that they have written, and the storages that others write
        # Those of remember_guarded(), once for each tensor; which, and where it was.
        self._records, self._guards = [], []

    def remember_guarded(self, image, written, shared, pairs):
        self._written = list(map(id, written)), shared
        self._records = [index for index, _ in pairs]
        tensors = [tensor for _, tensor in pairs]
        self._guards = [(image.pointers[index], weakref.ref(each), *_place(each)) for index, each in pairs]
        return self._records, tensors

    def guarded_again(self, image, written, shared):
        """What was remembered; None where other tensors are written, or they or the records lie somewhere else."""
        if self._written != (list(map(id, written)), shared):
            return None
        tensors, pointers = [], image.pointers
        for index, (pointer, reference, *place) in zip(self._records, self._guards):
            tensor = reference()
            if tensor is None or pointers[index] != pointer or _place(tensor) != place:
                return None
            tensors.append(tensor)
        return self._records, tensors


def _place(tensor):
    local = refuse.local_part(tensor)
    return [local.data_ptr(), local.numel()]


def copy_threads(here):
    """A few of the processors that this rank has for itself: one copies as fast as memory is, on small machines."""
    processors = len(os.sched_getaffinity(0)) // here.local_world_size
    return max(1, min(4, processors // 4))
