"""<python> -u worker.py <fd> <padding> [<request fd>]: a worker that starts cold. Same words as a spare's, same run.

With a request descriptor this is a spare that needed a fresh interpreter: its request is there, and its streams
are in place.
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
    from phalanx._bootstrap import cold, runner

    door.close_door()
    runner.run(*cold.serve(int(sys.argv[1]), int(sys.argv[3]) if len(sys.argv) > 3 else None))
