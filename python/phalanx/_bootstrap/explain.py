"""<python> -I -u explain.py < request: what `phalanx warm` tells, by zygotes that are asked to explain themselves.

The request is one JSON object, by src/cli/warm_command.cc: `command` and `env` of a zygote, its message `preload`
as `preload_text`, `interpreter`, `bootstrap`, `json` (absent: a text for people). The exit status is the command's.
"""

import sys

_modules_at_start = frozenset(sys.modules)


def _enter():
    # As importlib.util has them, which imports what a folder on PYTHONPATH may have by the same name.
    import os
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import spec_from_file_location

    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "door.py")
    spec = spec_from_file_location("phalanx._bootstrap.door", path)
    door = module_from_spec(spec)
    spec.loader.exec_module(door)
    door.open_door(_modules_at_start)
    return door


if __name__ == "__main__":
    door = _enter()
    from phalanx._bootstrap import explainer

    door.close_door()
    sys.exit(explainer.main())
