"""<python> -S site_probe.py <fd>: does what `site` does at an interpreter's start, under the zygote's watch.

It writes one JSON object to <fd>: `why`: what a fork must not inherit of it, or null; `read`: {name: value}
of the variables that were looked at.
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


def _probe():
    import os
    import site

    from phalanx._bootstrap import preload, state, watch

    os.set_inheritable(int(sys.argv[1]), False)
    preload.without_rank_variables()
    seen, before, environment = watch.Watch(), state.State(), dict(os.environ)
    try:
        with seen:
            site.main()
    except watch.Tainted as tainted:
        return tainted.why, seen.read
    if seen.taint is not None:
        return seen.taint.why, seen.read
    if seen.said:
        return "it writes something", seen.read
    if dict(os.environ) != environment:
        return "it changes variables of the environment", seen.read
    return before.new("site"), seen.read


if __name__ == "__main__":
    _enter()
    import json
    import os
    import random  # as the watch has it there before it begins

    _ = random
    why, read = _probe()
    os.write(int(sys.argv[1]), json.dumps({"why": why, "read": read}).encode())
    os._exit(0)  # what it has started is nobody's here
