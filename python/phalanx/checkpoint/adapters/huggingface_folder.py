"""What lies in a checkpoint folder of Hugging Face's Trainer, whoever has written it."""

import contextlib
import os
import re
import zipfile

import transformers
from safetensors import SafetensorError, safe_open

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
    there = _shapes_in(folder, {_whole_name(name) for name in weights})
    if there is None:
        return f"{folder} has no {min(weights)}, in which this model's weights lie: it is of another model"
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


def _whole_name(name):
    """Of a file of weights, without its number among several: how many there are is a matter of their size."""
    return _SHARD.sub("", name)


def _shapes_in(folder, whole_names):
    """{name: shape} of the tensors in the safetensors files of these names, or of their parts. {}: the weights are
    pickled; None: there are none of these names."""
    names = os.listdir(folder) if os.path.isdir(folder) else ()
    files_there = [name for name in names if _whole_name(name) in whole_names]
    if not files_there:
        return {} if any(name.endswith(".bin") and name != "training_args.bin" for name in names) else None
    return {tensor: shape for name in files_there for tensor, shape in _shapes(os.path.join(folder, name)).items()}


def _shapes(path):
    """{name: shape} of a safetensors file."""
    with safe_open(path, framework="pt") as file:
        return {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - it is no dict
