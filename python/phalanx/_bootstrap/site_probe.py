"""<python> -S site_probe.py <fd>: does what `site` does at an interpreter's start, under the zygote's watch.

It writes one JSON object to <fd>: `why`: what a fork must not inherit of it, or null; `read`: {name: value} of the
variables that were looked at, `walked`: whether all were; `files`: [[path, how, reads.look]].
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


def _probe(door):
    """What it answers."""
    import site

    from phalanx._bootstrap import preload
    from phalanx._bootstrap.watching import watch

    door.close_door()
    preload.without_rank_variables()
    sys.argv = preload.WatchedArguments(sys.argv)
    loader, environment = preload.Preloader((), frozenset(), nobody="site"), dict(os.environ)
    why = None
    try:
        loader.run("site", site.main)
    except watch.Tainted as tainted:
        why = tainted.why
    if why is None and sys.argv.was_read:
        why = "it looks at sys.argv"
    if why is None and loader.said():
        why = "it writes something"
    if why is None and dict(os.environ) != environment:
        why = "it changes variables of the environment"
    files = [[*key, found] for key, found in loader.files_read().items() if key[1] in ("file", "kind", "link")]
    return {"why": why, "read": loader.variables_read, "walked": loader.all_names_read, "files": files}


if __name__ == "__main__":
    door = _enter()
    import json
    import os
    import random  # as the watch has it there before it begins

    _ = random
    os.set_inheritable(int(sys.argv[1]), False)
    answer = json.dumps(_probe(door)).encode("utf-8", "surrogateescape")
    try:
        with open(int(sys.argv[1]), "wb") as file:
            file.write(answer)
    except BrokenPipeError:
        pass  # the zygote has gone, or has been told that there is nothing to do
    os._exit(0)  # what it has started is nobody's here
