"""An image that is laid out here and not by the native side: bytes that are given, and memory that is copied between
them."""

import array
import ctypes

import torch

from phalanx.checkpoint import native
from phalanx.checkpoint.formats import plan

_OF_BYTES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Part:
    """A piece of a storage's memory. To those who copy and watch it looks as a storage does."""

    __slots__ = ("_cdata", "_offset", "_size", "_storage", "_storage_size", "copied")

    def __init__(self, tensor, source=None):
        """The memory of a contiguous tensor; `source`: what it was copied from, where that is another."""
        self.copied = None if source is None else (source, tensor)
        self._storage = tensor.untyped_storage()
        self._cdata = self._storage._cdata
        self._offset = tensor.storage_offset() * tensor.element_size()
        self._size = tensor.numel() * tensor.element_size()
        self._storage_size = self._storage.nbytes()

    @classmethod
    def of(cls, tensor):
        """The memory of any tensor: of a copy where its elements do not lie one behind the other, as they are."""
        if tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj():
            return cls(tensor)
        tensor = tensor.detach()
        return cls(_values(tensor).contiguous(), tensor)

    def is_outdated(self):
        """Whether this is a copy of something that has other bits by now. Not of a device's: that would be waited
        for."""
        if self.copied is None or self.device.type != "cpu":
            return False
        source, copy = self.copied
        return not torch.equal(_bits(_values(source)), _bits(copy))

    @property
    def device(self):
        return self._storage.device

    def nbytes(self):
        """0 as soon as the storage is not as large any more as it was."""
        return self._size if self._storage.nbytes() == self._storage_size else 0

    def data_ptr(self):
        return self._storage.data_ptr() + self._offset if self._size else 0

    def whole(self):
        """The storage, and where the piece begins."""
        return self._storage, self._offset


def _values(tensor):
    return tensor.resolve_conj().resolve_neg()


def _bits(tensor):
    """As whole numbers: NaN is not NaN."""
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return tensor.view(_OF_BYTES[tensor.element_size()])


class Image:
    """As plan.Image, but laid out. Made by adding pieces in the file's order."""

    pickle = b""
    tensors = None  # there may be several in a record, or parts of one

    def __init__(self):
        self.frame = bytearray()
        self.storages = []
        self.copies = []  # (number, Part) of those of which the memory is a copy
        self.sizes, self.pointers = array.array("Q"), array.array("Q")
        self.record_at = array.array("Q")
        self.patches = array.array("Q")  # (place, record) after each other
        self.spans = array.array("Q")  # (place, bytes) after each other, of files in the image
        self.length = 0

    def add(self, at, zipped, parts):
        """A zip file at that place, behind everything so far. Where its frame lies in that of the image."""
        self.frame += bytes(at - self.length)
        begin = len(self.frame)
        self.frame += zipped.frame
        self.record_at.extend(at + record for record in zipped.records)
        shifts = at, len(self.storages)
        self.patches.extend(word + shifts[index & 1] for index, word in enumerate(zipped.patches))
        self.add_memory(parts)
        self.length = at + zipped.length
        return begin

    def add_memory(self, parts):
        """The memory of the next records."""
        for part in parts:
            if type(part) is Part and part.copied is not None:
                self.copies.append((len(self.storages), part))
            self.storages.append(part)
            self.sizes.append(part.nbytes())
            self.pointers.append(part.data_ptr())

    def without_memory(self):
        """The same frame for other memory of the same sizes."""
        other = Image()
        other.frame, other.length = self.frame, self.length
        other.record_at, other.patches, other.spans = self.record_at, self.patches, self.spans
        return other

    def add_bytes(self, data):
        self.frame += data
        self.length += len(data)

    def identities(self):
        return [part._cdata for part in self.storages]

    def key(self):
        """Images with the same have their records at the same places."""
        return self.sizes.tobytes() + self.record_at.tobytes() + b"%d" % self.length

    def file_bytes(self):
        return -(-max(self.length, 1) // 4096) * 4096

    def fits(self, slot_bytes):
        return plan.fits(self.file_bytes(), slot_bytes)

    def offsets(self, file_bytes):
        return self.record_at

    def native_frame(self, file_bytes, info):
        """phx_ckpt_frame. What it points to lives as long as the image and is not to be added to."""
        if not self.frame:
            self.add_bytes(b"\0")  # this rank saves nothing
        frame = native.Frame(byte_count=len(self.frame), patch_count=len(self.patches) // 2)
        frame.bytes = ctypes.addressof(ctypes.c_uint8.from_buffer(self.frame))
        frame.record_at, frame.patches = native.address(self.record_at), native.address(self.patches)
        frame.spans, frame.span_count = native.address(self.spans), len(self.spans) // 2
        return frame
