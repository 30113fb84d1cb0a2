"""Whether what this package writes is what this torch reads: asked once in a process, before the first save; by the
zygote for all that it forks."""

import contextlib
import ctypes
import io
import os
import shutil
import struct
import tempfile
import zipfile
from collections import OrderedDict

import torch

from phalanx._library import LibraryMissing
from phalanx.checkpoint import native
from phalanx.checkpoint.formats import plan

_EPOCH = 1
_state = None  # "" once it has passed, else what is wrong


class WrongTorch(RuntimeError):
    """This torch writes or reads something else than this package."""


def ask_ahead():
    """Asks now, for this process and its forks. What is in the way here is left to them."""
    with contextlib.suppress(OSError, LibraryMissing, native.Failure):
        _ask()


def check():
    """Raises WrongTorch where the images of this process could not be trusted."""
    _ask()
    if _state:
        raise WrongTorch(
            f"phalanx.checkpoint cannot save with torch {torch.__version__}: {_state}. Use torch.save, and please "
            "report it"
        )


def _ask():
    global _state
    if _state is None:
        _state = _what_is_wrong(_zoo()) or ""


def _zoo():
    """A little of all that states are made of."""
    weight = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    module = OrderedDict(weight=weight, tied=weight, view=weight.t()[1:], scalar=torch.tensor(3.0))
    module._metadata = {"": {"version": 1}}
    return {
        "model": module,
        "optimizer": {"state": {0: {"step": torch.tensor(1.0), "m": torch.ones(3, dtype=torch.bfloat16)}}},
        "parameter": torch.nn.Parameter(torch.ones(2, 2)),
        "kinds": [torch.zeros(2, dtype=kind) for kind in (torch.int64, torch.bool, torch.complex64)],
        "empty": torch.empty(0, 5),
        "plain": (1, 2.5, "text", None, True, [1], {"a": 1}),
    }


def _what_is_wrong(state):
    image = plan.Describer().describe(state)
    stream = io.BytesIO()
    torch.save(state, stream)
    with zipfile.ZipFile(stream) as stock:
        names = stock.namelist()
        pickled = stock.read(next(name for name in names if name.endswith("/data.pkl")))
        records = sum(1 for name in names if "/data/" in name)
    if pickled != image.pickle:
        return "it pickles a state in another way"
    if records != len(image.storages):
        return "it keeps another number of storages"
    return _what_loads_wrong(state, image)


def _what_loads_wrong(state, image):
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="phalanx-selftest-", dir=shared)
    try:
        path = write_image(folder, image)
        if native.check_file(path) is not None:
            return "an image fails its own check"
        for mmap in (False, True):
            loaded = torch.load(path, map_location="cpu", mmap=mmap, weights_only=True)
            if not _same(state, loaded):
                return "torch.load gives other values than were saved"
        return None
    finally:
        shutil.rmtree(folder)


def write_image(folder, image):
    """Writes the image through the native side into a slot of its own; the path of the file."""
    file_bytes = native.layout(image.sizes, len(image.pickle))[0]
    path = os.path.join(folder, "slot-0-0.1")
    with open(path, "wb") as file:
        file.truncate(file_bytes)
    control = os.path.join(folder, "control-0")
    with open(control, "wb") as file:
        file.write(control_page(1, file_bytes, _EPOCH))
    slots = native.Slots(control, _EPOCH)
    try:
        save, kept = request(image, file_bytes, step=0)
        slots.begin(save)
        del kept
    finally:
        slots.close()
    return path


def control_page(count, slot_bytes, epoch):
    """The page as an agent would write it, with file number 1 for each slot."""
    page = bytearray(4096)
    struct.pack_into("<8sIIQQQ", page, 0, b"PHXSLOTS", 3, count, slot_bytes, epoch, 1)
    for slot in range(count):
        struct.pack_into("<Q", page, 256 + 256 * slot + 128, 1)
    return bytes(page)


def request(image, file_bytes, step):
    """A synchronous save of the image, and what must live until it has begun."""
    save = native.Save(step=step, rank=0, world_size=1, n=len(image.sizes), file_bytes=file_bytes, notify_fd=-1)
    when = bytearray([native.NOW]) * len(image.sizes)
    save.bytes, save.source = native.address(image.sizes), native.address(image.pointers)
    save.when = native.address(when)
    save.pickle, save.pickle_bytes = image.pickle, len(image.pickle)
    info = b"{}"
    save.info, save.info_bytes = ctypes.c_char_p(info), len(info)
    return save, (image, when, info)


def _same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a.detach(), b.detach())
    if isinstance(a, dict):
        return list(a) == list(b) and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b))
    return a == b
