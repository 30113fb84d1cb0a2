"""A plain safetensors file, byte for byte as the safetensors package writes it: the layout of
docs/formats/checkpoint-safetensors.md without anything of ours in it. Pure."""

import json

from phalanx.checkpoint.formats import framed, named
from phalanx.checkpoint.state import refuse

_LENGTH_BYTES = 8
_METADATA = "__metadata__"
# The order of the data: the package's own, wider types first.
_IN_ORDER = (
    *("U64", "I64", "F64", "C64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16"),
    *("F8_E5M2FNUZ", "F8_E4M3FNUZ", "F8_E8M0", "F8_E4M3", "F8_E5M2", "I8", "U8", "BOOL"),
)
_PLACES = {name: place for place, name in enumerate(_IN_ORDER)}


class Describer:
    """Makes files of one name. Keep it from save to save: the header is the same while names, types and shapes are."""

    def __init__(self):
        self._key = self._header = None

    def describe(self, tensors, metadata):
        """The File of `tensors`, {name: tensor}. CannotSave names the tensor that no such file can hold."""
        for name, tensor in tensors.items():
            _check(name, tensor)
        ordered = sorted(tensors.items(), key=lambda item: (_PLACES[named.NAMES[item[1].dtype]], item[0]))
        parts = [framed.Part.of(tensor) for _, tensor in ordered]
        key = [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in ordered], metadata
        if key != self._key:
            self._key, self._header = key, _header(key[0], metadata, parts)
        return File(self._header, parts)


class File:
    """`frame`, `records`, `patches` and `length` as of zipped.Zipped; `parts`: the memory of its tensors."""

    __slots__ = ("frame", "length", "parts", "patches", "records")
    classes = ()  # that a reader would have to know

    def __init__(self, header, parts):
        self.frame, self.parts, self.patches = header, parts, ()
        self.records, at = [], len(header)
        for part in parts:
            self.records.append(at)
            at += part.nbytes()
        self.length = at


def _check(name, tensor):
    if not isinstance(name, str) or name == _METADATA:
        raise refuse.CannotSave(f"[{name!r}]: tensors in a safetensors file are named by texts")
    try:
        refuse.unless_savable(tensor)
    except refuse.Refused as refused:
        raise refuse.CannotSave(f"[{name!r}]: {refused}") from None
    if tensor.dtype not in named.NAMES:
        raise refuse.CannotSave(f"[{name!r}]: safetensors files have no {tensor.dtype}")


def _header(key, metadata, parts):
    entries, at = ({_METADATA: metadata} if metadata is not None else {}), 0
    for (name, dtype, shape), part in zip(key, parts):
        entries[name] = {"dtype": named.NAMES[dtype], "shape": shape, "data_offsets": (at, at + part.nbytes())}
        at += part.nbytes()
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    if len(text) > named.HEADER_BYTES_MAX:
        raise refuse.CannotSave(f"the header of a safetensors file may have {named.HEADER_BYTES_MAX} bytes")
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text
