"""What a state is as an image: the pickle that torch.save would write, and the memory of each storage, uncopied."""

import array
import contextlib
import gc

from phalanx.checkpoint import native
from phalanx.checkpoint.formats import pickled
from phalanx.checkpoint.state import refuse

_GROWTH_BYTES = 4096  # of a pickle from save to save, mostly


class Image:
    """A state, pickled, with its storages in the order of their records. Holding it keeps their memory alive."""

    __slots__ = ("classes", "pickle", "pointers", "sizes", "storages", "tensors", "versions")
    copies = ()  # torch.save writes a tensor's storage as it is

    def __init__(self, written, storages, tensors, pointers, sizes, versions, classes):
        self.pickle = written
        self.storages = storages
        self.tensors = tensors  # one that takes all of each storage, or None
        self.pointers = array.array("Q", pointers)
        self.sizes = array.array("Q", sizes)
        self.versions = array.array("Q", versions)  # counters of those tensors
        self.classes = classes  # functions and classes that the pickle names

    def key(self):
        """Images with the same have their records at the same places."""
        return self.sizes.tobytes()

    def file_bytes(self):
        """The length of the file, with room to grow."""
        return native.layout(self.sizes, len(self.pickle))[0]

    def fits(self, slot_bytes):
        """Whether slots of that size do: not too small, and not so large that much of them is wasted."""
        return fits(self.file_bytes(), slot_bytes)

    def offsets(self, file_bytes):
        """Where the records lie in a file of that length."""
        return native.layout(self.sizes, len(self.pickle))[1]

    def native_frame(self, file_bytes, info):
        """None: the native side lays it out."""
        return None

    def identities(self):
        """Which storage each record is; two tensors that share memory share it."""
        return [storage._cdata for storage in self.storages]


def fits(wanted, slot_bytes):
    return wanted <= slot_bytes <= wanted + wanted // 4


@contextlib.contextmanager
def without_collector():
    """For thousands of small objects that all stay: looking through them costs as much as making them."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class Describer:
    """Makes images. Keep it from save to save: it remembers how large they are."""

    def __init__(self):
        self._pickle_bytes = self._records = 0

    def describe(self, state):
        """The image of `state`. CannotSave names the tensor that no image can hold."""
        with without_collector():
            try:
                image = Image(*pickled.dump(state, self._pickle_bytes, self._records))
            except refuse.Refused as refused:
                raise refuse.named(state, refused) from None
        self._pickle_bytes, self._records = len(image.pickle) + _GROWTH_BYTES, len(image.sizes)
        return image
