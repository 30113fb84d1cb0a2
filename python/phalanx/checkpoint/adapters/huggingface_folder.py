"""What lies in a checkpoint folder of Hugging Face's Trainer, whoever has written it."""

import contextlib
import os
import re
import zipfile

import transformers
from safetensors import SafetensorError, safe_open

from phalanx.checkpoint.adapters.published import path_of

STATE = "trainer_state.json"
_SHARD = re.compile(r"-\d+-of-\d+(?=\.safetensors\Z)")


def changed(folder):
    """When it was written, in seconds since 1970; 0: it is none."""
    with contextlib.suppress(OSError):
        return os.stat(os.path.join(folder, STATE)).st_mtime
    return 0.0


def why_not_whole(folder):
    """None: all that a resume reads is there. What the Trainer was writing when it was killed is not."""
    try:
        transformers.TrainerState.load_from_json(os.path.join(folder, STATE))
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if name.endswith(".safetensors"):
                _shapes(path)
            elif name.endswith((".pt", ".pth", ".bin")) and not zipfile.is_zipfile(path):
                return f"{name} is cut off"
    except FileNotFoundError as error:
        return f"it has no {os.path.basename(error.filename or STATE)}"
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def why_another_model(folder, weights):
    """None: the weights there have the names and shapes of these, {name: Safetensors}, in however many files; or they
    are in a format that this does not read, and the Trainer may."""
    paths = [path_of(name) for name in weights]
    if not paths:
        return None
    try:
        there = _shapes_in(folder, set(map(_whole_name, paths)))
    except (OSError, SafetensorError) as error:
        return f"the weights in {folder} cannot be read: {error}"
    if there is None:
        return f"{folder} has no {min(paths)}, in which this model's weights lie: it is of another model"
    here = {tensor: list(value.shape) for file in weights.values() for tensor, value in file.tensors.items()}
    differs = sorted(each for each in {*there, *here} if there.get(each) != here.get(each)) if there else []
    if not differs:
        return None
    first = differs[0]
    return (
        f"{folder} is of another model: {first!r} is {there.get(first, 'not there')}, and "
        f"{here.get(first, 'not there')} in this one: give another output_dir, or begin anew without "
        "resume_from_checkpoint"
    )


def _whole_name(path):
    """Of a file of weights, without its number among several: how many there are is a matter of their size."""
    return _SHARD.sub("", path)


def _shapes_in(folder, whole_names):
    """{name: shape} of the tensors in the safetensors files of these names, or of their parts. {}: the weights are
    pickled; None: there are none of these names."""
    parents = [each for each in sorted(map(os.path.dirname, whole_names)) if os.path.isdir(os.path.join(folder, each))]
    paths = [os.path.join(each, name) for each in parents for name in os.listdir(os.path.join(folder, each))]
    found = [path for path in paths if _whole_name(path) in whole_names]
    if not found:
        return {} if any(path.endswith(".bin") and path != "training_args.bin" for path in paths) else None
    return {tensor: shape for path in found for tensor, shape in _shapes(os.path.join(folder, path)).items()}


def _shapes(path):
    """{name: shape} of a safetensors file."""
    with safe_open(path, framework="pt") as file:
        return {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - it is no dict
