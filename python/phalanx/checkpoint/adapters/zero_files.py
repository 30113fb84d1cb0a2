"""Which ranks and which stage of ZeRO have saved, by the names of the files alone."""

import re

MODEL_STATES = "_model_states.pt"  # how one file at least of each step's ends
_MODEL = re.compile(r"mp_rank_\d+_model_states\.pt")
_MODEL_OF_3 = re.compile(r"zero_pp_rank_(\d+)_mp_rank_\d+_model_states\.pt")
_OPTIMIZER = re.compile(r"(bf16_)?zero_pp_rank_(\d+)_mp_rank_\d+_?optim_states\.pt")


_NAMES = ("no ZeRO", "ZeRO 1 or 2", "ZeRO 1 or 2", "ZeRO 3")


def why_not_any(names, stage):
    """Why an engine of ZeRO `stage` (0: without ZeRO) cannot go on from the files of those names, whatever is done to
    them, in a sentence, or None."""
    saved, ranks, of_3 = _known(names)
    if saved is None:
        return "it has no *_model_states.pt, so DeepSpeed has not saved it, or not all of it"
    if (saved == 0) != (stage == 0):
        return f"it was saved with {_NAMES[saved]}, and this engine has {_NAMES[stage]}. Use the same"
    return _why_not_of_ranks(ranks | of_3, ranks, of_3 if saved == 3 else ranks) if saved else None


def why_not(names, stage, size, is_bf16):
    """Why an engine of ZeRO `stage` and `size` data-parallel ranks cannot load them as they are, in a sentence, or
    None. `is_bf16`: what it trains in."""
    never = why_not_any(names, stage)
    if never is not None or stage == 0:
        return never
    saved, ranks, _ = _known(names)
    if _NAMES[saved] != _NAMES[stage]:
        return f"it was saved with {_NAMES[saved]}, and this engine has {_NAMES[stage]}"
    saved_by = max(ranks) + 1
    if saved_by != size:
        return f"it was saved by {saved_by} data-parallel rank{'s' * (saved_by > 1)}, and this job has {size}"
    return _why_not_of_type(names, is_bf16)


def _known(names):
    """(the stage of ZeRO that saved them, None: none has; ranks of optim_states; ranks of ZeRO 3's model_states)."""
    ranks = {int(found[2]) for found in map(_OPTIMIZER.fullmatch, names) if found}
    of_3 = {int(found[1]) for found in map(_MODEL_OF_3.fullmatch, names) if found}
    if not of_3 and not any(map(_MODEL.fullmatch, names)):
        return None, ranks, of_3
    return 3 if of_3 else 1 if ranks else 0, ranks, of_3


def _why_not_of_ranks(known, optimizers, models):
    saved = max(known) + 1
    for who, there in (("optim_states", optimizers), ("model_states", models)):
        missing = sorted(set(range(saved)) - there)
        if missing:
            return f"the {who} of data-parallel rank {missing[0]} of {saved} are missing"
    return None


def _why_not_of_type(names, is_bf16):
    if all(bool(found[1]) == is_bf16 for found in map(_OPTIMIZER.fullmatch, names) if found):
        return None
    words = ("fp16 or fp32", "bf16")
    return f"it was saved of an engine in {words[not is_bf16]}, and this engine is in {words[is_bf16]}"
