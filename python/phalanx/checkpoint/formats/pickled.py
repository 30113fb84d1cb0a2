"""A state as torch.save pickles it, byte for byte: libphalanx_describe.so writes it, and asks here what anything but
plain tensors, dicts, lists, tuples, texts and numbers reduces to."""

import codecs
import copyreg
import functools
import itertools
import pickle
import sys
import types

import torch
from torch.serialization import location_tag, normalize_storage_type

from phalanx.checkpoint import describing
from phalanx.checkpoint.state import refuse

_STORAGES = frozenset((*torch._storage_classes, torch.storage.TypedStorage))
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType)
_PIECES, _BARE, _REDUCED, _NEW_OBJECT, _STORAGE = range(5)
_PUT = pickle.BINPUT + b"\0" + pickle.STOP  # what ends the pickle of a global
_NOTHING = (None, None, None, None)
_SINGLETONS = {type(each): each for each in (None, Ellipsis, NotImplemented)}  # whose types have no names
_DEPTH_MAX = 10_000  # of what stands in each other: a level takes some 300 bytes of stack


def dump(state, pickle_bytes=0, records=0):
    """(pickle, [storage of each record], [a tensor that takes all of it, or None], their addresses, their sizes, the
    tensors' version counters, what it names): numbers are u64 in bytes; what it names are functions and classes.
    Refused, for a tensor or a storage that no image can hold. `pickle_bytes`, `records`: how much and how many there
    will be, about."""
    named = []
    asks = functools.partial(_reduce, named), _location, _clash
    depth = min(sys.getrecursionlimit(), _DEPTH_MAX)
    return (*describing.describe(state, asks, depth, pickle_bytes, records), named)


def _location(storage):
    """Where it lies, as torch.save says it, and whether that is one object for all that lie there."""
    location = location_tag(storage)
    return location, location_tag(storage) is location


def _clash(storage, dtype, before):
    raise refuse.Refused(storage, f"{dtype} and {before} tensors over the same memory are not supported")


def _reduce(named, obj):
    """As pickle.Pickler of C does in protocol 2, where all else is done natively."""
    kind = type(obj)
    if kind in _STORAGES:
        return _STORAGE, _storage(obj)
    if isinstance(obj, torch.Tensor):
        refuse.unless_savable(obj)
    elif isinstance(obj, _NAMED):
        named.append(obj)
    elif kind in _BY_KIND:
        return _BY_KIND[kind](obj)
    if kind is type and obj in _SINGLETONS:
        return _REDUCED, (type, (_SINGLETONS[obj],), *_NOTHING)
    reduce = copyreg.dispatch_table.get(kind)
    if kind is type or kind is types.FunctionType or (reduce is None and issubclass(kind, type)):
        return _global(obj, obj.__qualname__)
    reduced = obj.__reduce_ex__(2) if reduce is None else reduce(obj)
    if isinstance(reduced, str):
        return _global(obj, reduced)
    if not isinstance(reduced, tuple) or not 2 <= len(reduced) <= 6:
        raise pickle.PicklingError(f"__reduce__ of {kind.__qualname__} gave neither a text nor a tuple of 2 to 6")
    return _new_or_called(obj, *reduced, *(None,) * (6 - len(reduced)))


def _new_or_called(obj, function, args, *rest):
    name = getattr(function, "__name__", "")
    if name == "__newobj_ex__":
        cls, args, keywords = args
        function, args = functools.partial(cls.__new__, cls, *args, **keywords), ()
    elif name == "__newobj__":
        if obj.__class__ is not args[0]:
            raise pickle.PicklingError("args[0] from __newobj__ args has the wrong class")
        return _NEW_OBJECT, (args[0], args[1:], *rest)
    return _REDUCED, (function, args, *rest)


def _global(obj, name):
    """By its name. What stands in a class is got from that; a number that copyreg has for it stands for itself."""
    text = pickle.dumps(obj, 2)[2:]
    if text[:1] != pickle.GLOBAL:
        return _BARE, text[: -len(pickle.STOP)]
    if text.endswith(_PUT) and text.count(b"\n") == 2:
        return _PIECES, (text[: -len(_PUT)],)
    names = name.split(".")
    outermost = getattr(sys.modules[pickle.whichmodule(obj, name)], names[0])
    if sys.version_info < (3, 13):
        return _REDUCED, (getattr, (functools.reduce(getattr, names[1:-1], outermost), names[-1]), *_NOTHING)
    called = ((each, pickle.TUPLE2 + pickle.REDUCE) for each in names[1:])
    _, (text,) = _global(outermost, names[0])
    return _PIECES, (*(getattr,) * len(names[1:]), text, *itertools.chain.from_iterable(called))


def _text_of(obj):
    return _BARE, pickle.dumps(obj, 2)[2 : -len(pickle.STOP)]


def _bytes(obj):
    return _REDUCED, (codecs.encode, (obj.decode("latin-1"), "latin1"), *_NOTHING) if obj else (bytes, (), *_NOTHING)


def _bytearray(obj):
    return _REDUCED, (bytearray, (bytes(obj),) if obj else (), *_NOTHING)


def _set(obj):
    return _REDUCED, (type(obj), (list(obj),), *_NOTHING)


_BY_KIND = {
    int: _text_of,  # a long one
    str: _text_of,  # one that is too long, which pickle says
    bytes: _bytes,
    bytearray: _bytearray,
    set: _set,
    frozenset: _set,
}


def _storage(obj):
    """(storage, data type, class, location, length) of what torch.save writes as a storage."""
    if not isinstance(obj, torch.storage.TypedStorage):
        return obj, torch.uint8, normalize_storage_type(type(obj)), location_tag(obj), obj.nbytes()
    storage = obj._untyped_storage
    try:
        storage_class = getattr(torch, obj._pickle_storage_type())
    except KeyError:
        raise refuse.Refused(storage, f"torch {torch.__version__} cannot save {obj.dtype}") from None
    return storage, obj.dtype, storage_class, location_tag(storage), obj._size()
