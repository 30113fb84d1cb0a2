"""A zip file of torch's in pieces: all bytes but the data of its tensors. A .distcp file is a row of such files, each
with one tensor or one other value."""

import array

from phalanx.checkpoint import native


class Zipped:
    """`frame`: the bytes that are no tensor's, in the file's order. `records`: where the data of each tensor lies.
    `patches`: where the CRC of a tensor's data stands, still zero, and the tensor's number, after each other. All
    places are those in the zip file, which is `length` bytes long."""

    __slots__ = ("frame", "length", "patches", "records")

    def __init__(self, frame, records, patches, length):
        self.frame, self.records, self.patches, self.length = frame, records, patches, length


def zipped(pickled, sizes, length=0):
    """The file that torch.load reads as `pickled`, whose storages are of `sizes`. `length`: of the file, with zeros in
    front of its directory; 0, or what is not enough: as short as can be."""
    return Zipped(*native.zip_frame(pickled, array.array("Q", sizes), length))
