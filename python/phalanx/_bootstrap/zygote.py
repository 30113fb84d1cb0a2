"""<python> -u zygote.py <fd> <padding>: imports what the script will want, then forks spares that wait for work.

Speaks docs/formats/worker-socket.md with the agent. One thread, one request at a time; it waits in read and waitpid.
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
    import os

    from phalanx._bootstrap import site_files

    agent = int(sys.argv[1])
    os.set_inheritable(agent, False)  # else what is started here would keep the agent from hearing this end
    asked_of_site = site_files.Asked()  # first: it works beside the imports that follow
    from phalanx._bootstrap import forker, places, runner

    places.note_our_modules()
    # Only a forked process that has been given a script comes back from serve.
    runner.run(*forker.serve(agent, asked_of_site))
