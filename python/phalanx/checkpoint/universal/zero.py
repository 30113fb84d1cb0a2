"""Which files a universal checkpoint has, and which parts of ZeRO's partitions each is made of. Pure: what is read is
given, and what is to be written comes back. docs/formats/universal.md has both."""

import re

import torch

from phalanx.checkpoint.formats import plan
from phalanx.checkpoint.state import refuse
from phalanx.checkpoint.universal import pickles

STATES = ("fp32", "exp_avg", "exp_avg_sq")
_OPTIMIZER = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_?optim_states\.pt")
_MODEL = re.compile(r"mp_rank_(\d+)_model_states\.pt")
_MODEL_OF_3 = re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d+)_model_states\.pt")
_INFO, _INFO_VERSION = "universal_checkpoint_info", "universal_checkpoint_version"
_OTHERS = ("ds_autoep_layers", "autoep_layers")  # of experts
_OF_RANKS = ("base_optimizer_state", "param_slice_mappings", "single_partition_of_fp32_groups")
_GLOBAL = ("loss_scaler", "dynamic_loss_scale", "overflow", "clip_grad", "ds_version")
_CAT_DIM = (("cat_dim", 0),)
_ALL_WEIGHTS_SINCE = (0, 19, 8)
_BATCH_BYTES = 64 << 20
_STOCK = "DeepSpeed's ds_to_universal.py may convert it"


class Refused(Exception):
    """What cannot be converted here; the text says why."""


class Piece:
    """`count` elements of a flat tensor, from `start` on; it keeps their memory."""

    __slots__ = ("count", "start", "tensor")

    def __init__(self, tensor, start, count):
        self.tensor, self.start, self.count = tensor, start, count

    def address(self):
        return self.tensor.data_ptr() + self.start * self.tensor.element_size()

    def nbytes(self):
        return self.count * self.tensor.element_size()


class File:
    """To be written as `name`: a zip of torch.save's with that pickle and `records`, a list of pieces each; without a
    pickle the one record as it stands. `link`: the path of a file that holds just that."""

    __slots__ = ("link", "name", "pickle", "records")

    def __init__(self, name, pickle, records, link=None):
        self.name, self.pickle, self.records, self.link = name, pickle, records, link


class Step:
    """What lies in a folder global_stepN, by its names. `stage`: 1 also of ZeRO 2. `optimizers`: of each rank."""

    __slots__ = ("models", "optimizers", "stage")

    def __init__(self, stage, models, optimizers):
        self.stage, self.models, self.optimizers = stage, models, optimizers


# --- what is there


def step_of(names):
    """The Step of the files of these names. Refused."""
    optimizers = [found for found in map(_OPTIMIZER.fullmatch, names) if found]
    of_3 = [found for found in map(_MODEL_OF_3.fullmatch, names) if found]
    models = [found for found in map(_MODEL.fullmatch, names) if found]
    if not (of_3 or models):
        raise Refused("it has no *_model_states.pt, so DeepSpeed has not saved it, or not all of it")
    if not optimizers:
        raise Refused("it has no *_optim_states.pt of ZeRO: it was saved without ZeRO, or not all of it is there")
    parallel = {int(found[2]) for found in (*optimizers, *of_3)} | {int(found[1]) for found in models}
    if parallel != {0}:
        raise Refused(f"it has {len(parallel)} model-parallel ranks, which are not joined here. {_STOCK}")
    by_rank = {int(found[1]): found[0] for found in optimizers}
    of_model = {int(found[1]): found[0] for found in of_3}
    size = max(*by_rank, *of_model, 0) + 1
    _must_be_whole("optim_states", by_rank, size)
    if of_3:
        _must_be_whole("model_states", of_model, size)
    in_order = [by_rank[rank] for rank in range(size)]
    return Step(3 if of_3 else 1, [of_model[rank] for rank in sorted(of_model)] or [models[0][0]], in_order)


def _must_be_whole(what, by_rank, size):
    missing = sorted(set(range(size)) - set(by_rank))
    if missing:
        raise Refused(f"the {what} of data-parallel rank {missing[0]} of {size} are missing")


def must_fit(step, model):
    """What names alone do not tell: Refused, where the model's file says that more belongs to the step."""
    if set(model.get(_INFO) or ()) - {_INFO_VERSION}:
        raise Refused(f"it says by {_INFO} how its parameters are to be joined, which is not done here. {_STOCK}")
    if any(model.get(key) for key in _OTHERS) or model.get("num_experts") not in (None, 0, [], [1]):
        raise Refused(f"its experts (MoE) are not joined here. {_STOCK}")
    size = model.get("dp_world_size", len(step.optimizers))
    if size > len(step.optimizers):
        raise Refused(f"the optim_states of data-parallel rank {len(step.optimizers)} of {size} are missing")
    if size < len(step.optimizers):
        raise Refused(
            f"it has the optim_states of {len(step.optimizers)} data-parallel ranks and its model was saved by {size}: "
            "its files are of several saves"
        )


def wants_universal(model):
    """Whether the engine that saved it would load nothing else."""
    config = model.get("ds_config")
    section = config.get("checkpoint") if isinstance(config, dict) else None
    return bool(isinstance(section, dict) and section.get("load_universal"))


# --- what is written


def batches(step, model, shards, stage):
    """Lists of File, all of them but for the copies of model files; of those behind the first each list has memory of
    its own, so that one is to be written before the next is asked for. `model`: what the first file of Step.models
    holds, `shards`: those of Step.optimizers; `stage`: of ZeRO, 1 or 3, that is to load it. Refused."""
    optimizers = [shard["optimizer_state_dict"] for shard in shards]
    try:
        parameters_of = _of_3 if step.stage == 3 else _of_1
        found = parameters_of(model["param_shapes"], optimizers)
        has_all = stage == step.stage == 1 and _writes_all_weights(model)
        if not has_all:
            _must_have_parts(found)
        files = [file for each in found if each.parts for file in _files_of(each, stage)]
        files.append(_described("zero/optimizer_state.pt", _common(step.stage, stage, optimizers[0], model)))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise Refused(
            f"it has not what files of Adam under ZeRO hold ({type(error).__name__}: {error}): before its first step, "
            f"or of another optimizer? {_STOCK}"
        ) from error
    yield files
    if has_all:
        yield from _batches_of_weights(model["module"], {file.name for file in files})


def models_of(step, stage):
    """[(name of a file of the step, its name in a universal checkpoint that ZeRO `stage` loads)]."""
    if stage == step.stage:
        return [(name, name) for name in step.models]
    # Engines of ZeRO 3 read that of rank 0, whichever rank they have.
    of_rank = "zero_pp_rank_0_" if stage == 3 else ""
    return [(step.models[0], f"{of_rank}mp_rank_00_model_states.pt")]


class _Parameter:
    """`parts`: {state: Piece} of the ranks that have one, in their order; `step`: what its optimizer counts."""

    __slots__ = ("name", "parts", "shape", "step")

    def __init__(self, name, shape, parts, step):
        self.name, self.shape, self.parts, self.step = name, tuple(shape), parts, step


def _files_of(parameter, stage):
    name, shape = parameter.name, parameter.shape if stage == 1 else (_numel(parameter.shape),)
    files = []
    for key in STATES:
        pieces = [part[key] for part in parameter.parts]
        files.append(_whole_file(name, key, pieces, shape, _CAT_DIM if stage == 1 else None))
    if stage == 1 and parameter.step is not None:
        files.append(_described(f"zero/{name}/step.pt", parameter.step))
    return files


def _must_have_parts(parameters):
    without = [each.name for each in parameters if not each.parts]
    if without:
        raise Refused(f"no rank has a part of {without[0]}")


def _common(saved, stage, optimizer, model):
    """What is the same on all ranks, as an engine of ZeRO `stage` wants it."""
    if saved == 3:
        groups = optimizer["optimizer_state_dict"]["param_groups"]
        if stage == 3:
            return {**optimizer, "param_groups": groups}
        common = {key: optimizer[key] for key in _GLOBAL if key in optimizer}
        return {**common, "ds_version": model["ds_version"], "param_groups": groups}
    base = optimizer["base_optimizer_state"]
    common = {key: value for key, value in optimizer.items() if key not in _OF_RANKS}
    if stage == 3:
        steps = {group: {"step": state["step"]} for group, state in base["state"].items() if "step" in state}
        common["optimizer_state_dict"] = {"state": steps, "param_groups": base["param_groups"]}
    return {**common, "param_groups": base["param_groups"]}


def _of_1(shapes, shards):
    found = []
    for name, shape in _flat(shapes).items():
        fragments = _fragments(shards, name)
        found.append(_Parameter(name, shape, fragments, _same_step(name, fragments)))
    return found


def _fragments(shards, name):
    """[{state: Piece of that parameter}] of the ranks that have one, in their order."""
    found = []
    for shard in shards:
        for group, mapping in enumerate(shard["param_slice_mappings"]):
            at = mapping.get(name)
            if at is None:
                continue
            state = shard["base_optimizer_state"]["state"][group]
            flat = {**state, "fp32": shard["single_partition_of_fp32_groups"][group]}
            pieces = {key: _piece(flat[key], at.start, at.numel) for key in STATES}
            found.append({**pieces, "step": flat.get("step")})
    return found


def _same_step(name, fragments):
    steps = [part["step"] for part in fragments]
    if any(step is not None and float(step) != float(steps[0]) for step in steps):
        told = ", ".join(str(float(step)) for step in steps)
        raise Refused(f"its ranks have made {told} steps of {name}: its files are of several saves")
    return steps[0] if steps else None


def _of_3(shapes, shards):
    flats = [_flats_of_3(shard) for shard in shards]
    if len(shapes) != len(flats[0]) == 1:
        shapes = [_flat(shapes)]
    found = []
    for group, shapes_of_group in enumerate(shapes):
        begins = [0] * len(shards)
        for name, shape in shapes_of_group.items():
            parts, numel = [], _numel(shape)
            for rank, shard in enumerate(shards):
                place, count = _partition_of(shard, group, rank, len(shards))
                length = -(-numel // count)
                own = max(0, min(length, numel - place * length))
                parts.append({key: _piece(flats[rank][group][key], begins[rank], own) for key in STATES})
                parts[-1]["step"] = flats[rank][group].get("step")
                begins[rank] += length
            found.append(_Parameter(name, shape, parts, _same_step(name, parts)))
    return found


def _flats_of_3(shard):
    states = shard["optimizer_state_dict"]["state"]
    return [{**states[group], "fp32": flat} for group, flat in enumerate(shard["fp32_flat_groups"])]


def _partition_of(shard, group, rank, size):
    """(which part of that group's parameters the rank has, how many parts there are)."""
    told = shard.get("ds_zero_partition_groups") or ()
    own = told[group] if group < len(told) else {}
    return own.get("partition_rank", rank), own.get("partition_count", size)


def _flat(shapes):
    return {name: shape for group in shapes for name, shape in group.items()}


def _numel(shape):
    count = 1
    for length in shape:
        count *= length
    return count


def _piece(tensor, start, count):
    if start + count > tensor.numel():
        raise Refused(
            f"a partition of {tensor.numel()} elements is to have {count} from {start} on: its files are of several "
            "saves, or damaged"
        )
    return Piece(tensor if tensor.is_contiguous() else tensor.contiguous(), start, count)


def _whole_file(name, key, pieces, shape, keys):
    numel, found = _numel(shape), sum(piece.count for piece in pieces)
    if found != numel:
        raise Refused(f"{name} has {numel} elements and its ranks have {found} of {key}: a part of it is missing")
    dtypes = {piece.tensor.dtype for piece in pieces}
    if len(dtypes) > 1 or not all(map(pickles.can_hold, dtypes)):
        raise Refused(f"{name}: its ranks have {key} as {', '.join(map(str, sorted(dtypes, key=str)))}")
    return File(f"zero/{_folder(name)}/{key}.pt", pickles.of_whole(dtypes.pop(), shape, keys), [pieces])


def _folder(name):
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise Refused(f"a parameter is called {name!r}, which is no name for a folder")
    return name


def _described(name, state):
    """Any state, of any tensors."""
    try:
        image = plan.Describer().describe(state)
    except refuse.CannotSave as error:
        raise Refused(f"{name}: {error}") from None
    records = [[Piece(torch.empty(0, dtype=torch.uint8).set_(each), 0, each.nbytes())] for each in image.storages]
    return File(name, image.pickle, records)


# --- DeepSpeed 0.19.8 writes the weights of all that has no partition too, as fp32


def _writes_all_weights(model):
    numbers = re.findall(r"\d+", str(model.get("ds_version", "")))[:3]
    return tuple(map(int, numbers)) >= _ALL_WEIGHTS_SINCE


def _batches_of_weights(module, written):
    batch, size = [], 0
    for name, tensor in (module or {}).items():
        path = f"zero/{_folder(name)}/fp32.pt"
        if not isinstance(tensor, torch.Tensor) or path in written:
            continue
        weights = tensor.detach().float().contiguous()
        pickled = pickles.of_whole(weights.dtype, weights.shape, ())
        batch.append(File(path, pickled, [[Piece(weights, 0, weights.numel())]]))
        size += weights.numel() * weights.element_size()
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
