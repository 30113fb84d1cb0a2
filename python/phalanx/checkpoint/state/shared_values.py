"""What is to be the same on all ranks, and is saved of one of them: its values as they are compared.

The text of a value, of which the CRC-32 is told (docs/formats/checkpoint-socket.md): its type's letter and what it is.
"""

import struct
import zlib

LEAVES_MAX = 1000  # of a value; what has more is not compared
_NAMES_MAX = 64
_NAME_BYTES_MAX = 200


def checksums(state):
    """{name: CRC-32} of what stands at the top of the state: numbers, texts, bytes, None, and lists, tuples and dicts
    of these. What else there is, tensors and objects, is not compared."""
    found = {}
    for name, value in state.items() if isinstance(state, dict) else ():
        if type(name) is not str or len(found) == _NAMES_MAX or not name.isprintable():
            continue
        if len(name.encode("utf-8", "replace")) > _NAME_BYTES_MAX:
            continue
        text = []
        if _add(text, value):
            found[name] = zlib.crc32(b"".join(text))
    return found


def _add(text, value):
    """Whether all of it is plain, and not more than LEAVES_MAX."""
    if len(text) > LEAVES_MAX:
        return False
    write = _TEXTS.get(type(value))
    if write is not None:
        text.append(write(value))
        return True
    if type(value) in (list, tuple):
        text.append(b"l%d;" % len(value))
        return all(_add(text, inner) for inner in value)
    if type(value) is dict:
        return _add_dict(text, value)
    return False


def _add_dict(text, value):
    """In the order of the keys' own texts: ranks may have put them in by another."""
    text.append(b"m%d;" % len(value))
    entries = []
    for key, inner in value.items():
        if type(key) not in _TEXTS or len(entries) > LEAVES_MAX:
            return False
        entries.append((_TEXTS[type(key)](key), inner))
    entries.sort(key=lambda entry: entry[0])
    for key, inner in entries:
        text.append(key)
        if not _add(text, inner):
            return False
    return True


def _of_bytes(letter, data):
    return b"%s%d;%s" % (letter, len(data), data)


_TEXTS = {
    type(None): lambda value: b"n",
    bool: lambda value: b"t" if value else b"f",
    int: lambda value: b"i%x;" % value,
    float: lambda value: b"d" + struct.pack("<d", value),
    str: lambda value: _of_bytes(b"s", value.encode("utf-8", "surrogatepass")),
    bytes: lambda value: _of_bytes(b"b", value),
}
