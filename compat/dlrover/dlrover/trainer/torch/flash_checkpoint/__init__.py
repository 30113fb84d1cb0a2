"""DLRover's flash checkpoint on phalanx.checkpoint, under the names that ms-swift and scripts import."""

KNOWN = {
    "FlashCkptTrainer": "give ms-swift or transformers' own Trainer phalanx.checkpoint.adapters",
    "FsdpShardCheckpointer": "use phalanx.checkpoint.dcp.Checkpointer",
    "FsdpFullCheckpointer": "use phalanx.checkpoint.dcp.Checkpointer",
    "MegatronCheckpointer": "use phalanx.checkpoint.files.Checkpointer",
}


def missing(module, name):
    """The error for a name that is not offered."""
    instead = KNOWN.get(name)
    if name.startswith("__") or instead is None:
        return AttributeError(f"module {module!r} has no attribute {name!r}: phalanx-dlrover does not offer it")
    return ImportError(f"phalanx-dlrover does not offer {module}.{name}: {instead}")
