"""<python> -u zygote.py <fd> <padding>: imports what the script will want, then forks spares that wait for work.

Speaks docs/formats/worker-socket.md with the agent. One thread, one request at a time; it waits in read and waitpid.
"""

import sys

_modules_at_start = frozenset(sys.modules)

import atexit  # noqa: E402 - built in


def _end():
    """Behind the end of the script, and all that libraries and it do then."""
    runner.end()


# Before all other callbacks, and so called behind them. Only forks that run a script come there: all else ends at once.
atexit.register(_end)


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
    import os

    from phalanx._bootstrap import site_files

    agent = int(sys.argv[1])
    os.set_inheritable(agent, False)  # else what is started here would keep the agent from hearing this end
    asked_of_site = site_files.Asked()  # first: it works beside the imports that follow
    from phalanx._bootstrap import forker, runner

    door.close_door()
    # Only a forked process that has been given a script comes back from serve.
    runner.run(*forker.serve(agent, asked_of_site))
