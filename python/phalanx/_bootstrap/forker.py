"""The zygote's work: preload, then fork a spare for each request."""

import functools
import gc
import importlib.util
import os
import random  # before the first fork, so that each child is seeded anew by Python itself
import select
import signal
import sys
import time

from phalanx._bootstrap import (
    checker,
    elasticity,
    hidden,
    libraries,
    linux,
    pages,
    places,
    preload,
    runner,
    scratch,
    threads,
    wire,
)
from phalanx._bootstrap.scanning import scan, takes
from phalanx._bootstrap.watching import generated, watch
from phalanx._bootstrap.watching.taken import Taken

_ = random

_OPENBLAS = "OPENBLAS_NUM_THREADS"


def serve(fd, asked_of_site):
    """Serves the agent behind `fd`. Returns in forked processes only: what runner.run wants. `asked_of_site`: a
    site_files.Asked."""
    agent_pid = os.getppid()
    channel = wire.Channel(fd)
    _deafen()
    try:
        if not linux.die_with_parent(agent_pid):
            os._exit(0)
        message, _ = channel.receive()
        if message["type"] != "preload":
            os._exit(0)
        warmth, generators = _preload(channel, message, asked_of_site)
        while True:
            message, fds = channel.receive()
            if message["type"] != "fork" or len(fds) != 1:
                os._exit(0)
            if message.get("ahead"):
                warmth.seen.watch_files()
            make_own = warmth.make_own if message.get("ahead") else None
            worker = _fork_spare(channel, message["id"], fds[0], agent_pid, generators, make_own)
            if worker is not None:
                # Signals stay out until the rank's streams are in place (runner.run).
                check = functools.partial(checker.become, worker, warmth)
                request, fds = runner.wait_for_request(worker, _drop_signals_until_asked, warmth.make_own, check)
                return worker, request, fds, warmth
    except (wire.Closed, OSError):
        os._exit(0)


def _preload(channel, message, asked_of_site):
    """Imports, says so, and returns what a fork of this process is good for, and the generators that it seeds anew.
    Where it is good for nothing, it ends."""
    start_ns = time.monotonic_ns()
    kind, script, cwd = message["kind"], message["script"], message["cwd"]
    found = scan.scan(kind, script, cwd)
    facts = _facts(message)
    if facts is not None:
        channel.send(facts.of_scan(found))
    at_start = asked_of_site.look()
    if os.environ.get("PHALANX_WARM") == "0":
        _give_up(channel, "PHALANX_WARM=0 asks for a cold start")
    if found.opted_out:
        _give_up(channel, f"the script asks for a cold start ({scan.OPT_OUT!r})")
    why = _why_no_fork(sys.version_info, sys.flags, os.environ.get("PYTHONMALLOC"))
    if why is not None:
        _give_up(channel, why)
    if kind == "script" and places.is_read_once(os.path.join(cwd, script)):
        _give_up(channel, f"{script} is a pipe or a device, whose text can be read once")
    of_wrapper = linux.changes_at_start(message.get("env", linux.environment_at_start()))
    for name in filter(watch.differs_between_ranks, of_wrapper):
        _give_up(channel, f"what starts Python sets {name}, which is another one in each rank")
    if at_start.why is not None:
        _give_up(channel, f"each Python that starts here runs sitecustomize or lines of .pth files, and {at_start.why}")
    # Taken out: it may be the zygote's alone, and a library that looks at the whole environment must not see it then.
    asked = [name.strip() for name in os.environ.pop("PHALANX_PRELOAD", "").split(",") if name.strip()]
    environment, coerced = dict(os.environ), linux.coerced_locale()
    preload.without_rank_variables()
    arguments = preload.WatchedArguments([found.main if kind == "module" else script, *message.get("args", ())])
    _imitate_script(kind, script, cwd, arguments)
    _imitate_module(found)
    elasticity.install()  # what is imported here may ask for it
    runner.forget_shadowed(places.own_folder(kind, script, cwd))  # a library that wants one must be seen to look for it
    own = places.own_names(places.own_folder(kind, script, cwd))
    denied = {*message.get("deny", ()), *([script] if kind == "module" else [])}
    folders = places.own_folders(places.own_folder(kind, script, cwd)) - own
    loader = preload.Preloader(denied, own - places.modules_at_start, folders, found.statements())
    loader.missed = {} if facts is not None else None
    try:
        _import_all(loader, asked, found, message)
        _ask_ahead(loader)
    except watch.Tainted as tainted:
        channel.send({"type": "tainted", "module": tainted.module, "why": tainted.why})
        os._exit(0)
    except preload.Shadowed as shadowed:
        _give_up(channel, f"the script's folder has its own {shadowed.module!r}, which an imported library looks for")
    _settle()
    loaded = preload.top_level_modules_loaded()
    files, absent, left = loader.files(), loader.absent(), loader.left()
    loader.hide_late()
    places.last_preloaded = next(reversed(sys.modules))
    if facts is not None:
        channel.send(facts.of_imports(loader, found, asked, arguments))
    elapsed_ms = (time.monotonic_ns() - start_ns) // 1_000_000
    channel.send({"type": "ready", "pid": os.getpid(), "modules": len(sys.modules), "ms": elapsed_ms})
    late_check = _late_check(kind, script, cwd, found)
    counted = threads.Counted(environment, loader.numbers)
    read = list(arguments) if arguments.was_read else None
    variables = {**at_start.variables, **loader.variables_read}
    files.update(at_start.files)
    seen = runner.Seen(variables, loader.all_names_read or at_start.walked, read, files, absent - own, loaded - own)
    warmth = runner.Warmth(environment, of_wrapper, coerced, seen, late_check, counted, left)
    pages.share()
    return warmth, loader.generators()


def _why_no_fork(version, flags, malloc):
    """Before 3.9 Python itself crashes at the end of a fork where it checks its memory."""
    is_checked = flags.dev_mode or (not flags.ignore_environment and str(malloc).endswith("debug"))
    if version >= (3, 9) or not is_checked:
        return None
    return "Python before 3.9 crashes at the end of a fork where it checks its memory (-X dev, PYTHONMALLOC=debug)"


def _facts(message):
    """What tells `phalanx warm` all that is found and done here; None for the zygotes of a launch."""
    if message.get("explain") is not True:
        return None
    from phalanx._bootstrap import facts

    return facts


def _give_up(channel, reason):
    channel.send({"type": "failed", "reason": reason})
    os._exit(0)


def _imitate_script(kind, script, cwd, arguments):
    """What modules may look at while they are imported is as in the script's own process, as far as it is known."""
    try:
        os.chdir(cwd)
    except OSError:
        pass
    sys.argv = arguments
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = preload.WatchedArguments(sys.orig_argv)
    runner.make_main_module(kind, runner.script_path(script, cwd) if kind == "script" else None, watch.MainModule)
    places.put_first_on_path(places.own_folder(kind, script, cwd))


def _imitate_module(found):
    """What `__main__` has of `-m`'s module while that runs its imports."""
    if found.module is None or found.main is None:
        return
    spec = importlib.util.spec_from_file_location(found.module, found.main)
    if spec is not None:
        runner.make_main_of(spec)


def _import_all(loader, asked, found, message):
    """What the script imports first, in its order, then what it may import later without having changed it.

    No thread is left over: a fork takes only the forking thread along. OpenBLAS would start some."""
    os.putenv(_OPENBLAS, "1")  # where C looks; os.environ, which a library may look at, stays what it is
    first, torch, rest = _split(found.prefix)
    taken = Taken(found.taken)
    try:
        loader.load(asked)
        with generated.GeneratedCode(message.get("cache")):
            stopped = loader.load_in_order(first, found.attributes, taken)
            if stopped is None and torch:
                if not loader.denies("torch"):
                    _map_torch(loader)
                stopped = loader.load_in_order([*torch, *rest], found.attributes, taken)
            if not loader.denies(preload.LATE):
                # What is left of the prefix stands before them.
                settings = found.settings if stopped is None else []
                _import_late(loader, [*found.prefix, *found.usual], message.get("learnt", ()), settings)
    finally:
        before = os.environ.get(_OPENBLAS)
        if before is None:
            os.unsetenv(_OPENBLAS)
        else:
            os.putenv(_OPENBLAS, before)


def _import_late(loader, wanted, learnt, settings):
    """What the script imports behind the first thing that it does, of libraries that do not care what that is."""
    late = [name for name in learnt if watch.is_indifferent(name)]
    if loader.denies(preload.LATE_PARTS):
        late = [name for name in late if name == "torch" or preload.top_of(name) not in preload.OF_PARTS]
    numpy = ["numpy"] if any(preload.top_of(name) == "numpy" for name in wanted) else []
    loader.begins_late(settings)
    loader.leader = preload.leader_to_torch([*wanted, *late, *sys.modules])
    if loader.leader is not None:
        if "torch" not in sys.modules and not loader.denies("torch"):
            _map_torch(loader)
            loader.load_late(["torch"], stays=True)
        if "torch" in sys.modules and not loader.denies(preload.LATE_PARTS):
            loader.load_late(preload.TORCH_LAZY)
    loader.load_late([*numpy, *late])
    loader.ends_late()


def _split(names):
    """Names before the first of torch, that one, and those behind."""
    at = next((index for index, name in enumerate(names) if preload.top_of(name) == "torch"), len(names))
    return names[:at], names[at : at + 1], names[at + 1 :]


def _map_torch(loader):
    loader.load(libraries.FIRST)
    # OpenMP binds the thread that loads it, which is to be the rank's.
    thread = libraries.start_mapping() if not any(map(os.environ.get, threads.PLACES)) else None
    if thread is not None:
        loader.disregard_thread(thread.native_id)
        if not (loader.denies(preload.LATE) or loader.denies(preload.LATE_PARTS)):
            loader.load_aside(libraries.MEANWHILE)
        thread.join()
        loader.check("torch")


def _ask_ahead(loader):
    """What each life would ask for itself, 8 ms long, and no life can change."""
    selftest = sys.modules.get("phalanx.checkpoint.selftest")
    if selftest is not None:
        selftest.ask_ahead()
        loader.check("phalanx.checkpoint")


def _settle():
    """Everything imported stays in memory that forks share: no collection touches it any more."""
    scratch.give_up()
    gc.freeze()


def _deafen():
    """Neither the zygote nor a spare ends by a signal that is meant for ranks: they wait, and whoever looks for their
    handlers finds those of a fresh process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, linux.FOR_RANKS)


def _drop_signals_until_asked(worker):
    """Waits for a message. What comes to a spare until then is not meant for a script. What comes once its request is
    there is the rank's, and waits until signals are let in. One that comes just before the request may be the rank's,
    too: where both are there when this looks, nobody can tell which was first."""
    poll, signals = select.poll(), linux.signals_as_reads(linux.FOR_RANKS)
    poll.register(worker.fileno(), select.POLLIN)
    if signals < 0:
        poll.poll()
        for number in signal.sigpending() & linux.FOR_RANKS:
            signal.sigtimedwait((number,), 0)
        return
    poll.register(signals, select.POLLIN)
    while all(fd == signals for fd, _ in poll.poll()):
        os.read(signals, linux.SIGNAL_BYTES)
    os.close(signals)


def _late_check(kind, script, cwd, found):
    """A script that was edited since, or a module of its own, may now do something before it imports what it did."""

    def check(request):
        wanted = request["kind"], request["script"], request["cwd"]
        is_edited = wanted != (kind, script, cwd) or not found.is_of_the_same_texts()
        come = None if is_edited else found.come()
        if not is_edited and come is None:
            return None
        who = "the script was edited, and" if is_edited else f"{come} has come, and the script"
        try:
            now = scan.scan(*wanted)
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            # It has come to something that it does not know. The rank reads its text by itself.
            return f"{who} cannot be looked through: {type(error).__name__}: {error}"
        if now.opted_out:
            return "the script asks for a cold start"
        for count, name in enumerate(found.prefix):
            if now.prefix[count : count + 1] != [name]:
                return f"{who} does something else now before it imports {name}"
        for name, count in ((name, count) for name, counts in now.taken.items() for count in counts):
            # Nobody has looked whether what was imported behind it changes that.
            if count < len(found.prefix) and count not in found.taken.get(name, ()):
                return f"{who} takes {takes.shown(name)} now before it imports {found.prefix[count]}"
        return None

    return check


def _fork_spare(channel, request_id, worker_fd, agent_pid, generators, make_own):
    """Forks twice, so that the agent, a subreaper, becomes the parent. Returns, in the spare only, its channel.
    `make_own`, where given, is called in it first: the agent looks at memory when it hears of the spare."""
    go_read, go_write = os.pipe()
    try:
        middle = os.fork()
    except OSError as error:
        middle = error
    if middle == 0:
        try:
            spare = os.fork()
        except OSError as error:
            os._exit(error.errno or 1)
        if spare != 0:
            os._exit(0)
        os.close(go_write)
        channel.close()
        return _be_spare(go_read, worker_fd, agent_pid, generators, make_own)
    os.close(go_read)
    os.close(worker_fd)
    reason = os.strerror(middle.errno) if isinstance(middle, OSError) else _reap(middle)
    if reason is None:
        os.write(go_write, b"g")  # the middle one has been reaped, so the spare is the agent's child by now
    os.close(go_write)
    if reason is not None:
        channel.send({"type": "fork_failed", "id": request_id, "reason": reason})
    return None


def _reap(pid):
    _, status = os.waitpid(pid, 0)
    if status == 0:
        return None
    return os.strerror(os.WEXITSTATUS(status)) if os.WIFEXITED(status) else f"killed by signal {os.WTERMSIG(status)}"


def _be_spare(go_read, worker_fd, agent_pid, generators, make_own):
    os.setsid()
    told = os.read(go_read, 1)
    os.close(go_read)
    if not told or not linux.die_with_parent(agent_pid):
        os._exit(0)
    _renew_identity()
    _fresh_randomness(generators)
    if make_own is not None:
        make_own()
    worker = wire.Channel(worker_fd)
    worker.send({"type": "spare", "pid": os.getpid()})
    return worker


def _renew_identity():
    """Python before 3.13 keeps the parent's thread id in its main thread object."""
    threading = sys.modules.get("threading")
    if hasattr(getattr(threading, "_main_thread", None), "_set_native_id"):
        threading._main_thread._set_native_id()
    logging = sys.modules.get("logging")
    if hasattr(logging, "_startTime"):  # what %(relativeCreated)d counts from
        logging._startTime = time.time_ns() if sys.version_info >= (3, 13) else time.time()


def _fresh_randomness(generators):
    """Python seeds its own generator after a fork. The others, which a fresh process seeds from the system.
    `generators`: those of libraries."""
    numpy_random = hidden.find("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = hidden.find("torch")
    if torch is not None:
        torch.default_generator.seed()
    for generator in generators:
        generator.seed()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)
