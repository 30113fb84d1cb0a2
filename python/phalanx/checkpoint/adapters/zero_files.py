"""Which ranks and which stage of ZeRO have saved, by the names of the files alone."""

import re

_MODEL = re.compile(r"mp_rank_\d+_model_states\.pt")
_MODEL_OF_3 = re.compile(r"zero_pp_rank_(\d+)_mp_rank_\d+_model_states\.pt")
_OPTIMIZER = re.compile(r"(bf16_)?zero_pp_rank_(\d+)_mp_rank_\d+_?optim_states\.pt")
_CONVERT = "DeepSpeed's ds_to_universal.py makes a universal checkpoint of it, which any engine loads"


def why_not(names, stage, size, is_bf16):
    """Why an engine of ZeRO `stage` (0: without ZeRO) and `size` data-parallel ranks cannot load the files of those
    names, in a sentence, or None. `is_bf16`: what it trains in."""
    names = sorted(names)
    optimizers = [found for found in map(_OPTIMIZER.fullmatch, names) if found]
    ranks = {int(found[2]) for found in optimizers}
    of_3 = {int(found[1]) for found in map(_MODEL_OF_3.fullmatch, names) if found}
    has_model = any(map(_MODEL.fullmatch, names))
    if not (of_3 or has_model):
        return "it has no *_model_states.pt, so DeepSpeed has not saved it, or not all of it"
    saved = 3 if of_3 else 1 if ranks else 0
    if _NAMES[saved] != _NAMES[stage]:
        return f"it was saved with {_NAMES[saved]}, and this engine has {_NAMES[stage]}. Use the same; {_CONVERT}"
    if stage == 0:
        return None
    return _why_not_of_ranks(ranks | of_3, ranks, of_3 if stage == 3 else ranks, size) or _why_not_of_type(
        optimizers, is_bf16
    )


_NAMES = ("no ZeRO", "ZeRO 1 or 2", "ZeRO 1 or 2", "ZeRO 3")


def _why_not_of_ranks(known, optimizers, models, size):
    saved = max(known) + 1
    for who, there in (("optim_states", optimizers), ("model_states", models)):
        missing = sorted(set(range(saved)) - there)
        if missing:
            return f"the {who} of data-parallel rank {missing[0]} of {saved} are missing"
    if saved != size:
        return (
            f"it was saved by {saved} data-parallel ranks, and this job has {size}. Go on with {saved}: ZeRO's "
            f"partitions are not shared out anew; {_CONVERT}"
        )
    return None


def _why_not_of_type(optimizers, is_bf16):
    if all(bool(found[1]) == is_bf16 for found in optimizers):
        return None
    words = ("fp16 or fp32", "bf16")
    return f"it was saved of an engine in {words[not is_bf16]}, and this engine is in {words[is_bf16]}. Use the same"
