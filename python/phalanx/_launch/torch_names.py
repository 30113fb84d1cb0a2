"""Names that programs import from torch's launching modules, as attributes of ours: torch's own objects, so that
results and exceptions are those of the torch that is installed. torch is imported when one is asked for, never before.
"""

import importlib

# What torch.distributed.run has, in some torch from 2.2 on, and phalanx.run has not of its own.
RUN = (
    *("get_args_parser", "parse_args", "parse_min_max_nnodes", "determine_local_world_size", "get_rdzv_endpoint"),
    *("get_use_env", "config_from_args", "run_script_path", "DefaultLogsSpecs", "Std", "record", "macros"),
)
LAUNCH = ("get_args_parser", "parse_args")


def find(name, ours, theirs, names):
    """The attribute `name` for the module `ours`, from the module `theirs`; `names`: those it may have. AttributeError
    for others, ImportError where there is no torch."""
    if name not in names:
        known = f"; of {theirs} it has {', '.join(names)}" if not name.startswith("__") else ""
        raise AttributeError(f"module {ours!r} has no attribute {name!r}{known}")
    try:
        module = importlib.import_module(theirs)
    except ImportError as error:
        raise ImportError(f"{ours}.{name} is torch's, and torch cannot be imported: {error}") from error
    try:
        return getattr(module, name)
    except AttributeError:
        raise AttributeError(f"module {ours!r} has no attribute {name!r}: {theirs} of this torch has none") from None
