"""What happens inside a Python below phalanx.shim. Cheap: every Python below it starts with this."""

import os
import sys

from phalanx._bootstrap.watching import load_watch
from phalanx.shim import notice

_RUN = "torch.distributed.run"
_LAUNCH = "torch.distributed.launch"
_API = "torch.distributed.launcher.api"
_ACCELERATE = "accelerate.commands.launch"


def start():
    """For sitecustomize: becomes phalanx-run where this is `python -m torch.distributed.run` or `.launch`, else
    installs."""
    module = module_to_run(sys.argv, _command_line())
    if module in (_RUN, _LAUNCH):
        from phalanx import launch, run

        sys.stderr.flush()
        os._exit((run if module == _RUN else launch).become_command(sys.argv[1:]))
    notice.watch()
    install()


def install():
    """Patches torch's launching modules, and accelerate's: those that are there now, the others when they are
    imported."""
    names = (_API, _RUN, _LAUNCH, _ACCELERATE)
    load_watch.when_loaded({name: _patch for name in names if not load_watch.is_awaited(name)})


def module_to_run(argv, command_line):
    """The M of `python -m M ...`, None where this Python does something else. Before the module is found, argv[0] is
    "-m"; the words of the command line before the module's own arguments end in its name."""
    if argv[:1] != ["-m"] or len(command_line) < len(argv):
        return None
    word = command_line[len(command_line) - len(argv)]
    return word[word.index("m") + 1 :] if word.startswith("-") and "m" in word else word


def _command_line():
    if hasattr(sys, "orig_argv"):
        return sys.orig_argv
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    except OSError:
        return []


def _patch(module):
    """Everything of torch's that starts an elastic agent goes through these, and what accelerate gives to mpirun."""
    if module.__name__ == _API:
        from phalanx import launcher

        module.launch_agent = launcher.launch_agent
        package = sys.modules.get("torch.distributed.launcher")
        if hasattr(package, "launch_agent"):  # imported already, with torch's in it
            package.launch_agent = launcher.launch_agent
    elif module.__name__ == _ACCELERATE:
        from phalanx.shim import accelerated

        accelerated.patch(module)
    else:
        from phalanx import launch, run

        module.main = (run if module.__name__ == _RUN else launch).main
        module.run = run.run
