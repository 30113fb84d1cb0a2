"""Turns this process into the one that `python -u script.py args...` would be."""

import functools
import gc
import os
import signal
import socket
import sys
import time
import types
from importlib.machinery import SourceFileLoader

from phalanx._bootstrap import (
    board,
    elasticity,
    filters,
    hidden,
    hooks,
    inherited,
    learn,
    linux,
    memory,
    pages,
    places,
    preload,
    rescale,
    scratch,
    stdio,
    threads,
    wire,
)
from phalanx._bootstrap.watching import changes, reads, watch
from phalanx._bootstrap.watching.standing import Standing

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_PACKAGE = os.path.dirname(os.path.dirname(_HERE)) + os.sep

# Read by the interpreter, the C library or OpenMP when a process starts; one that has started cannot take them back.
_READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "OMP_", "GOMP_", "KMP_", "MKL_", "ATEN_", "LC_", "LANG")
_NOT_THAT_ONE = frozenset(("OMP_NUM_THREADS", "PYTHONBREAKPOINT", "PYTHONUNBUFFERED", "PYTHON_EXEC"))
# The kernel takes 128 KiB in one word of a command. As in src/agent/workers/launch.cc.
_PADDING_BYTES_MAX = 100 << 10
_MAIN_OF_CHILDREN = "__mp_main__"  # the other name that multiprocessing has for __main__


class Seen:
    """What imports have looked at: `variables` {name: value}, `all_names`: whether somebody looked through those of all
    variables; `arguments` (sys.argv; None: nobody did), `files` {(path, how): reads.look}, which they were read from,
    and `absent`, names of modules that are nowhere; `loaded`: those that are."""

    def __init__(self, variables, all_names, arguments, files, absent, loaded):
        self.variables = variables
        self.all_names = all_names
        self.arguments = arguments
        self.files = files
        self._absent = absent
        self._loaded_from = {name: places.entry_of(hidden.find(name)) for name in loaded}
        self._matter = self._absent.union(self._loaded_from)
        # Of sys.path: when names came or went, and which there are of those that matter.
        self._folders = {folder: (_changed_ns(folder), self._provided(folder)) for folder in sys.path}
        self._standing = None

    def watch_files(self):
        """From now on, or anew where one has changed since, the kernel tells whether they are as they were. It takes
        some 20 ms, and spares of each rank 10."""
        self._standing = Standing(self.files) if self._standing is None else self._standing.renewed()

    def forget_files(self):
        """In a rank, which has asked for the last time."""
        if self._standing is not None:
            self._standing.close()

    def why_not(self, request):
        files = self.files if self._standing is None else self._standing.may_differ()
        for (path, how), found in files.items():
            if not reads.is_as_it_was(path, how, found):
                if how == "paths" or path.endswith(".pth"):
                    return f"{path} says something else of sys.path than when the zygote started"
                if found == changes.CHANGED:
                    return f"{path} has changed while it was imported"
                if how == "file":
                    return f"{path} has changed since it was imported"
                return f"{path} has changed since a preloaded module looked at it"
        if self.arguments is not None and self.arguments[1:] != request["args"]:
            return "a preloaded module has read sys.argv, which is another"
        return None

    def _provided(self, folder):
        """Of the modules in a folder those that would be imported instead of what was, or of nothing."""
        if places.is_library_file(os.path.join(folder, "")) and folder in sys.path:
            at = sys.path.index(folder)
            among = self._absent.union(name for name, entry in self._loaded_from.items() if entry > at)
        else:
            among = self._matter
        return places.names_in(folder, among, or_folders=self._absent)

    def clash(self, folder):
        """A folder, the script's or another of sys.path, and a module that it has now in front of one that was loaded,
        or one that nobody had; or None."""
        if not places.script_folder_is_left_out():
            names = self._provided(folder) - self._folders.get(folder, (None, frozenset()))[1]
            if names:
                return folder, min(names)
        for other, (changed_ns, known) in self._folders.items():
            if other != folder and _changed_ns(other) != changed_ns:
                names = self._provided(other) - known
                if names:
                    return other, min(names)
        return None


def _changed_ns(folder):
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return None


class Warmth:
    """What a forked process has inherited and must match: the environment its imports saw."""

    def __init__(self, environment, of_wrapper, coerced, seen, late_check, counted, left):
        self.environment = environment
        self._of_wrapper = of_wrapper  # linux.changes_at_start
        self.coerced = coerced  # the part of it that the interpreter made itself
        self.seen = seen
        self.late_check = late_check
        self.counted = counted  # threads.Counted
        self.left = left  # hidden.Left, by the imports that come first

    def as_started(self, given):
        """The environment that an interpreter of the same command has, of what the agent gives it."""
        changed = {**given, **self._of_wrapper}
        return {name: value for name, value in changed.items() if value is not None}

    @staticmethod
    def make_own():
        """Has a fork that waits do what a life begins with, and would come to the same then: what it writes is copied
        by the kernel before somebody waits for it."""
        places.forget_old_finders()
        hidden.make_own()
        pages.make_own()

    def why_not(self, request):
        """A reason why this request needs a fresh interpreter, or None."""
        wanted = {**self.coerced, **request["env"]}
        for name in {*self.environment, *wanted}:
            if self.environment.get(name) == wanted.get(name):
                continue
            if name.startswith(_READ_AT_START) and name not in _NOT_THAT_ONE:
                return f"{name} is read when a process starts"
            if self.seen.variables.get(name, wanted.get(name)) != wanted.get(name):
                return f"{name} was read by a preloaded module"
        folder = places.own_folder(request["kind"], request["script"], request["cwd"])
        clash = self.seen.clash(folder)
        if clash is not None:
            return f"{clash[0]} has its own {clash[1]}"
        if self.seen.all_names:
            for name in sorted(name for name in wanted if not watch.differs_between_ranks(name)):
                if name not in self.environment:
                    return f"a preloaded module has looked through the environment, and {name} was not there"
        return self.seen.why_not(request) or self.counted.why_not(request) or self.late_check(request)


def run(channel, request, fds, warmth=None):
    """Runs the script to its end in this process's main thread; its exceptions pass through to the interpreter, which
    ends the process as it would for the plain script."""
    if fds:
        if len(fds) > 3:
            memory.keep(fds[3])
        stdio.put_in_place(fds[:3])
    elif request.get("memory_fd", -1) >= 0:
        memory.keep(request["memory_fd"])
    try:
        os.chdir(request["cwd"])
    except OSError as error:
        os.write(2, os.fsencode(f"phalanx: cannot work in {request['cwd']}: {error.strerror}\n"))
        os._exit(1)
    os.umask(request["umask"])
    if warmth is not None:
        places.forget_old_finders()
        request = {**request, "env": warmth.as_started(request["env"])}
    else:
        # The agent has started it with what `env` says: what else is there a wrapper of the interpreter has exported.
        request = {**request, "env": linux.environment_at_start()}
    reason = warmth.why_not(request) if warmth is not None else None
    if reason is not None:
        _become_cold(channel, {**request, "cold": reason})
    if warmth is not None:
        warmth.seen.forget_files()
        set_environment({**warmth.coerced, **request["env"]})
    stdio.renew(request.get("logs", 0), lambda fd, error: _report_log_lost(channel, fd, error))
    elasticity.install()
    start = _prepare_main(request)
    _dress(request, warmth)
    _pass_breakpoints_over(request["env"])
    _attach_board(request.get("board"))
    if request.get("counts_on"):
        board.expect_counting_on()
    rescale.use(channel)
    hooks.install(
        lambda step: _report_first_step(channel, step),
        exact=bool(request.get("exact_steps")),
        splits=bool(request.get("splits_steps")),
    )
    if (request.get("board") or {}).get("slot") == 0:  # one rank of the node, whatever its variables say
        pages.watch()
    os.register_at_fork(after_in_child=lambda: _be_nobody(channel))
    # "cold": why this worker, though forked, started afresh.
    channel.send_or_give_up({"type": "started", **({key: request[key] for key in ("cold", "deny") if key in request})})
    learn.watch_environment()
    if warmth is not None:
        # First: what a library has set before hidden modules were imported is no change by the script.
        hidden.take_over(warmth.left)
    late = threads.Late(bool(request.get("bound")))
    before = inherited.Inherited() if hidden.any_there() else None
    hidden.await_imports(
        late,
        lambda why, parts: _too_early(channel, request, why, before, preload.LATE_PARTS if parts else preload.LATE),
        lambda why, parts: _too_late(channel, why, preload.LATE_PARTS if parts else preload.LATE),
    )
    board.script_starts()
    names = sys.modules["__main__"].__dict__ if request["kind"] == "script" else {}
    try:
        start()
        _forget_file(names)
    except BaseException:
        _hide_our_frames(names)
        raise
    finally:
        board.script_ends()
        hidden.script_has_ended()


def end():
    """The last that a fork does before the interpreter takes all apart: as it does in any process."""
    hidden.give_out_rest()
    gc.unfreeze()  # its last collection sees all


def make_main_module(kind, path, module_type=types.ModuleType):
    """A fresh `__main__`, in place. `path`: the script's, None for -m, whose module is only found later."""
    main = module_type("__main__")
    values = main.__dict__
    values["__annotations__"] = {}
    values["__builtins__"] = sys.modules["builtins"]
    if kind == "script":
        values["__loader__"] = SourceFileLoader("__main__", path)
        values["__file__"] = path
        values["__cached__"] = None
    if sys.modules.get("__main__") is not None and sys.modules.get(_MAIN_OF_CHILDREN) is sys.modules["__main__"]:
        sys.modules[_MAIN_OF_CHILDREN] = main
    sys.modules["__main__"] = main
    return main


def script_path(script, cwd):
    """The script's name as the interpreter shows it."""
    if sys.version_info < (3, 9) or os.path.isabs(script):
        return script
    return os.path.join(cwd, script)


def _prepare_main(request):
    """Compiles the script as its text is now, and returns what runs it. What cannot run at all is left to Python to
    say."""
    kind, script = request["kind"], request["script"]
    main = sys.modules["__main__"]
    forget_shadowed(places.own_folder(kind, script, request["cwd"]))
    if kind == "module":
        return _prepare_module(request)
    path = script_path(script, request["cwd"])
    if getattr(main, "__file__", None) != path or "__cached__" not in main.__dict__:
        main = make_main_module(kind, path)
    main.__class__ = types.ModuleType  # it was watched while others were imported
    set_arguments([script, *request["args"]])
    if places.is_read_once(path):
        _become_plain_python(request)
    try:
        with open(path, "rb") as file:
            source = file.read()
        if not path.endswith(".pyc"):
            code = _compiled(source, path)
            places.put_first_on_path(os.path.dirname(os.path.realpath(path)))
            return functools.partial(exec, code, main.__dict__)  # no frame of ours more
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        pass
    _become_plain_python(request)


def _compiled(source, path):
    """What Python says of the text it says before a library has set filters of its own."""
    with filters.as_at_start():
        return compile(source, path, "exec", dont_inherit=True)


def set_arguments(arguments):
    """Also where a preloaded module has taken the list that the zygote had."""
    sys.argv[:] = arguments
    if type(sys.argv) is not list:
        sys.argv = list(arguments)


def _prepare_module(request):
    """As `python -m` runs a module. The parent packages are the script's own text: nothing of them may run before this
    process is dressed."""
    import runpy

    make_main_module("module", None)
    set_arguments(["-m", *request["args"]])
    places.put_first_on_path(os.getcwd())
    can_begin, details = _begun(request["script"])
    if not can_begin:
        _become_plain_python(request)
    if details is not None:
        _give_once(runpy, "_get_module_details", details)
    return functools.partial(runpy._run_module_as_main, request["script"])


def _begun(name):
    """(whether a line of the module's or its packages' own code can run, what runpy is to find of it). Where none can,
    another life would not help: its first part is nowhere, or it is one file that is no Python. Nothing is imported to
    find out. None for what is found: runpy looks itself, for a module in a package behind the package's import."""
    from importlib.util import find_spec

    try:
        spec = find_spec(name.partition(".")[0])
        if spec is None or "." in name or spec.submodule_search_locations is not None:
            return spec is not None, None
        with filters.as_at_start():
            code = spec.loader.get_code(spec.name)
        return True, (name, spec, code) if code is not None else None
    except SyntaxError:
        return False, None
    except (AttributeError, ImportError, OSError, ValueError):
        return True, None  # Python says it in its own words


def _give_once(module, name, value):
    """Has the next call of that function give this."""
    usual = getattr(module, name)

    def give(*_):
        setattr(module, name, usual)
        return value

    setattr(module, name, give)


def make_main_of(spec):
    """Gives `__main__` what runpy gives to the module that -m runs."""
    sys.modules["__main__"].__dict__.update(
        __file__=spec.origin,
        __cached__=spec.cached,
        __doc__=None,
        __loader__=spec.loader,
        __package__=spec.parent,
        __spec__=spec,
    )


def forget_shadowed(folder):
    """Modules of the standard library that only we have imported so far, and that mean another file to this script."""
    places.forget(places.own_names(folder, places.our_modules))


def set_environment(wanted):
    environment = os.environ
    zone = environment.get("TZ")
    for name in [name for name in environment if name not in wanted]:
        del environment[name]
    for name, value in wanted.items():
        if environment.get(name) != value:
            environment[name] = value
    if environment.get("TZ") != zone:
        time.tzset()


def _dress(request, warmth):
    """What others see of this process, and what it would have got at its start."""
    what = ["-m", request["script"]] if request["kind"] == "module" else [request["script"]]
    args = [*linux.interpreter_options(), *what, *request["args"]]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = args
    linux.set_command_line(args, request["env"])
    let_signals_in()
    if warmth is not None:
        warmth.counted.apply(request)
        scratch.renew()


def let_signals_in():
    """Those that came since the request: the streams are the rank's by now, whose traceback they may bring."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _pass_breakpoints_over(environment):
    """As PYTHONBREAKPOINT=0 does, by which the agent keeps all but one rank out of a debugger: an interpreter that was
    started with -E or -I does not look at it."""
    if sys.flags.ignore_environment and environment.get("PYTHONBREAKPOINT") == "0":
        sys.breakpointhook = _no_breakpoint


def _no_breakpoint(*_, **__):
    """What breakpoint() calls then."""


def _attach_board(place):
    if place:
        try:
            board.attach(place["path"], place["slot"])
            linux.hold_until_death(place["path"], board.lock_at(place["slot"]))
        except (OSError, ValueError) as error:
            os.write(2, f"phalanx: no progress of this rank will be seen: {error}\n".encode())


def _report_first_step(channel, step):
    hidden.training_has_begun()
    pages.learn()
    channel.send_or_give_up({"type": "first_step", "step": step, "modules": learn.modules()})


def _report_log_lost(channel, fd, error):
    channel.send_or_give_up({"type": "log_lost", "stream": fd, "errno": error})


def _be_nobody(channel):
    """A forked child of the rank is not the rank: no board, no sockets."""
    hooks.forget()
    rescale.forget()
    memory.forget()
    pages.forget()
    channel.close()


def _forget_file(names):
    """As the interpreter does behind a script: what runs from now on does not find its name."""
    for name in ("__file__", "__cached__"):
        names.pop(name, None)


def _hide_our_frames(names):
    """The traceback of the script's exception starts in the script. The interpreter will show it, after this. `names`:
    the script's."""
    show = sys.excepthook

    def show_without_ours(kind, value, trace):
        trace = _without_ours(trace)
        if kind is KeyboardInterrupt and _ends_in_package(trace):
            value.__suppress_context__ = True  # what we had caught a moment before
        value.__traceback__ = trace
        if hasattr(sys, "last_traceback"):
            sys.last_traceback = trace  # for a debugger behind it, and callbacks at the end
        sys.excepthook = show
        try:
            show(kind, value, trace)
        except SystemExit:
            raise
        except BaseException as error:  # as the interpreter reports it, whatever it is
            sys.stderr.write("Error in sys.excepthook:\n")
            error.__traceback__ = _without_ours(error.__traceback__)
            sys.__excepthook__(type(error), error, error.__traceback__)
            sys.stderr.write("\nOriginal exception was:\n")
            sys.__excepthook__(kind, value, trace)
        _forget_file(names)

    sys.excepthook = show_without_ours


def _without_ours(trace):
    """Ours stand before the script's own, and, where it called torch or wrote to a stream of ours, behind."""
    while trace is not None and _is_ours(trace):
        trace = trace.tb_next
    last = trace
    while last is not None:
        while last.tb_next is not None and _is_ours(last.tb_next):
            last.tb_next = last.tb_next.tb_next
        last = last.tb_next
    return trace


def _ends_in_package(trace):
    """Whether a stop that was asked for came within a function of phalanx's, such as save(). The traceback ends then
    where the script has called it: what goes on below is nothing that the script could mend."""
    while trace is not None and trace.tb_next is not None:
        if trace.tb_next.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            trace.tb_next = None
            return True
        trace = trace.tb_next
    return False


def _is_ours(trace):
    return trace.tb_frame.f_code.co_filename.startswith(_HERE)


def _become_plain_python(request):
    """A script that cannot start: Python says so in its own words and with its own exit status."""
    how = ["-m"] if request["kind"] == "module" else []
    let_signals_in()
    os.execve(sys.executable, [*own_words(), *how, request["script"], *request["args"]], request["env"])


def _too_early(channel, request, why, before, denied):
    """What was imported ahead of its turn is not what the script would import: this life begins anew, and no later one
    of this script imports that ahead."""
    for stream in (sys.stdout, sys.stderr):
        _flush(stream)
    before.put_back()
    _become_cold(channel, {**request, "cold": why, "deny": denied})


def _too_late(channel, why, denied):
    """The same where others wait for this process in a collective, or it has trained: this life goes on with what there
    is."""
    try:
        os.write(2, os.fsencode(f"phalanx: {why}: too late for this process, which cannot begin anew\n"))
    except OSError:
        pass  # the script has closed it
    channel.send_or_give_up({"type": "started", "deny": denied})


def _flush(stream):
    """What the script has put there may be None, closed, or no stream at all."""
    try:
        stream.flush()
    except (AttributeError, OSError, RuntimeError, TypeError, ValueError):
        pass


def _become_cold(channel, request):
    """This process becomes a cold worker with the same request, the same process id and the same sockets."""
    memory_fd = memory.socket_fd()
    if memory_fd >= 0:
        os.set_inheritable(memory_fd, True)
        request = {**request, "memory_fd": memory_fd}
    fd = os.memfd_create("phalanx-request")
    os.write(fd, wire.text_of(request))
    os.lseek(fd, 0, os.SEEK_SET)
    os.set_inheritable(fd, True)
    socket_fd = channel.fileno() if channel.is_open() else _socket_to_nobody()
    os.set_inheritable(socket_fd, True)
    words_bytes = sum(len(os.fsencode(part)) + 1 for part in [request["script"], *request["args"]])
    padding = " " * min(words_bytes, _PADDING_BYTES_MAX)
    args = [*own_words(), _HERE + "worker.py", str(socket_fd), padding, str(fd)]
    let_signals_in()
    os.execve(sys.executable, args, request["env"])


def _socket_to_nobody():
    """In the place of ours, which the script has closed: its number may be a file of the script's."""
    ours, theirs = socket.socketpair()
    theirs.close()
    return ours.detach()


def own_words():
    """What this interpreter is started with once more: by its full name, with the options that it has."""
    return [sys.executable, *linux.interpreter_options()[1:]]


def wait_for_request(channel, wait=lambda channel: None, prepare=lambda: None, check=None):
    """A spare's or a cold worker's life before the script. Ends the process, silently, when nobody wants it. `wait` is
    called before each message, `prepare` where the agent asks for that; `check(message, descriptors)`, which does not
    return, where a spare is to check the node."""
    try:
        while True:
            wait(channel)
            message, fds = channel.receive()
            if message["type"] == "run" and len(fds) in (3, 4):
                return message, fds
            if message["type"] == "check" and len(fds) == 3 and check is not None:
                check(message, fds)
            wire.close_all(fds)
            if message["type"] != "prepare":
                os._exit(0)
            prepare()
    except (wire.Closed, OSError):
        os._exit(0)
