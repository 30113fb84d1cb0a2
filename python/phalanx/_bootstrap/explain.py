"""<python> -I -u explain.py < request: what `phalanx warm` tells, by zygotes that are asked to explain themselves.

The request is one JSON object, by src/cli/warm_command.cc: `command` and `env` of a zygote, its message `preload`
as `preload_text`, `interpreter`, `bootstrap`, `json` (absent: a text for people). The exit status is the command's.
"""

import sys

_modules_at_start = frozenset(sys.modules)


def _enter():
    import importlib.util
    import os

    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "door.py")
    spec = importlib.util.spec_from_file_location("phalanx._bootstrap.door", path)
    door = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(door)
    door.open_door(_modules_at_start)


if __name__ == "__main__":
    _enter()
    from phalanx._bootstrap import explainer

    sys.exit(explainer.main())
