"""The folder for generated code that older torches (2.9 among them) make while they are imported, put on sys.path, and
remove when the process ends."""

import atexit

from phalanx._bootstrap import hidden

_MODULE = "torch.distributed.nn.jit.instantiator"


def give_up():
    """In the zygote: made ahead of time it would be every worker's, and the first to end would remove it."""
    folder = _folder()
    if folder is not None:
        folder.cleanup()


def renew():
    """In a fork that is about to run a script: one of its own, in the same place of sys.path."""
    inherited = _folder()
    if inherited is None:
        return
    try:
        folder = type(inherited)()
    except OSError:
        return  # who wants to write there will say so
    atexit.register(folder.cleanup)
    module = hidden.find(_MODULE)
    module._TEMP_DIR, module.INSTANTIATED_TEMPLATE_DIR_PATH = folder, folder.name
    hidden.replace_path_entry(inherited.name, folder.name)


def _folder():
    return getattr(hidden.find(_MODULE), "_TEMP_DIR", None)
