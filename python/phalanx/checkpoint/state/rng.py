"""The state of Python's, NumPy's, torch's and CUDA's random numbers as plain values and tensors, which
torch.load(weights_only=True) reads."""

import importlib
import random
import struct
import sys

import torch

MARK = "phalanx_rng"


def capture(cuda=True, into=None):
    """What all generators of this process are at. NumPy's only where something has imported it, CUDA's (that of the
    current device) only where CUDA is in use.

    `into`: a dict, at first empty, whose tensors the state is written to from then on: what an earlier call with it
    has given changes as well.
    """
    kept = {} if into is None else into
    version, words, gauss = random.getstate()
    packed = bytearray(struct.pack(f"{len(words)}q", *words))
    found = {
        MARK: 1,
        "python": {"version": version, "words": _kept(_tensor(packed), kept, "python"), "gauss": gauss},
        "torch": _kept(torch.default_generator.get_state(), kept, "torch"),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found["numpy"] = _plain(numpy, numpy.random.get_state(legacy=False), kept, "numpy")
    if cuda and torch.cuda.is_initialized():
        found["cuda"] = _kept(torch.cuda.get_rng_state(), kept, "cuda")
    return found


def is_captured(value):
    return isinstance(value, dict) and MARK in value


def restore(found):
    """Sets the generators to what `capture` found, on whatever device that is; those that it did not find stay as they
    are."""
    python = found["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    torch.set_rng_state(found["torch"].cpu().clone())
    if "numpy" in found:
        try:
            numpy = importlib.import_module("numpy")
        except ImportError:
            numpy = None  # nothing here draws from it
        if numpy is not None:
            numpy.random.set_state(_as_numpy(numpy, found["numpy"]))
    if "cuda" in found and torch.cuda.is_available():
        torch.cuda.set_rng_state(found["cuda"].cpu().clone())


def _kept(tensor, kept, name):
    before = kept.get(name)
    # What was made in inference mode cannot be written to outside of it.
    if before is None or before.shape != tensor.shape or before.is_inference():
        kept[name] = tensor
        return tensor
    return before.copy_(tensor)


def _tensor(words):
    """Of int64, over memory that nobody else writes to. torch.tensor() looks at each number for itself, which took a
    tenth of a small save; torch.from_numpy() is not there for every numpy."""
    return torch.frombuffer(words, dtype=torch.int64)


def _plain(numpy, value, kept, name):
    if isinstance(value, dict):
        return {key: _plain(numpy, inner, kept, f"{name}.{key}") for key, inner in value.items()}
    if isinstance(value, numpy.ndarray):
        words = value.view(numpy.int64) if value.dtype == numpy.uint64 else value.astype(numpy.int64)
        return {"words": _kept(_tensor(words), kept, name), "dtype": str(value.dtype)}
    return value.item() if isinstance(value, numpy.generic) else value


def _as_numpy(numpy, value):
    if not isinstance(value, dict):
        return value
    if set(value) == {"words", "dtype"}:
        return numpy.array(value["words"].tolist(), dtype=numpy.int64).astype(value["dtype"])
    return {key: _as_numpy(numpy, inner) for key, inner in value.items()}
