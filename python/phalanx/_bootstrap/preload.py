"""Imports, ahead of time, what the script will import, and notices what must not be imported ahead of time."""

import builtins
import contextlib
import functools
import gc
import importlib.machinery
import os
import sys

from phalanx._bootstrap import hidden, places, steps, threads
from phalanx._bootstrap.scanning import variables
from phalanx._bootstrap.scanning.takes import shown
from phalanx._bootstrap.watching import changes, load_watch, marks, reads, state, watch
from phalanx._bootstrap.watching.modules import is_module, is_yet_to_be_loaded, kept_names
from phalanx._bootstrap.watching.shared import why_not_shared
from phalanx._bootstrap.watching.taken import Taken, keeps
from phalanx._bootstrap.watching.watch import Tainted, is_indifferent

# What torch imports late: at the first optimizer, process group or wrapped model. About a second otherwise. What is
# part of another stands before it: hidden, each is a step of its own.
TORCH_LAZY = (
    "torch.distributed",
    "torch.distributed.tensor",
    "torch.distributed.nn",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
    "torch._dynamo",
    "torch.distributed.algorithms.join",
    "torch.distributed.elastic.multiprocessing.errors",
)

OF_PARTS = hidden.WITH_ALL | {"mpmath", "sympy", "triton"}  # tops of what these bring

# Libraries that lead to torch.
_LEAD_TO_TORCH = frozenset(
    "accelerate deepspeed diffusers fairscale lightning megatron peft pytorch_lightning timm torchaudio torchvision "
    "transformers trl".split()
)
# On the deny list: for this script nothing is imported ahead of its turn; or of torch only what `import torch` brings.
LATE = "phalanx.late"
LATE_PARTS = "phalanx.late.parts"


def leader_to_torch(names):
    """The first of `names` that is torch or leads to it, or None."""
    return next((name for name in names if top_of(name) == "torch" or top_of(name) in _LEAD_TO_TORCH), None)


def top_of(step):
    """The top-level package of a step of scan.Scan.prefix."""
    return step.partition(":")[0].partition(".")[0]


# Modules whose own state is renewed in each fork, by Python or by forker.py, or holds none of a process.
_RENEWED = frozenset(("random", "numpy.random", "numpy.random.mtrand", "secrets", "sys", "tempfile", "torch", "uuid"))


# What stands for a step of the script.
_IMPORT = "value = __import__(name)"
_LOOK = "value = getattr(value, attribute)"
_HAS = "value = hasattr(value, attribute)"
_KEEPS_NOTHING = "its package is asked for it each time, and may tell the first time from others"


class Shadowed(BaseException):
    """A library looks for a module whose name the script's folder has: only a process standing there can import it."""

    def __init__(self, module):
        super().__init__(module)
        self.module = module


class _Denied(BaseException):
    """An import that must not happen here. Not an Exception: no `except ImportError` may take another path for it."""


class Preloader:
    """Imports modules one by one. `denied`: dotted names that are never imported, with all below them; `own`: top-level
    names that the script's folder provides, `own_folders` folders in it that may be parts of namespace packages;
    `where`: {step: (file, line, name of the module)} of the statements that import them. `nobody`: "site" where its
    files are run, whoever wrote them.

    For facts.py: `stopped`, what load_in_order said; `missed`, {name: why} of what load could not import, None where
    nobody asks; `leader`, what torch is imported behind the prefix for; `imported_with`, {name: value, None: unset} of
    the variables that it is imported with, since the script sets them before."""

    def __init__(self, denied, own, own_folders=frozenset(), where=None, nobody=""):
        self._where = where or {}
        self._nobody = nobody
        self._denied = frozenset(denied)
        self._own, self._own_folders = own, own_folders
        self._seen = set(sys.modules)
        self._watch = watch.Watch(nobody)
        self._state = state.State()
        self._loads = load_watch.LoadWatch(
            {
                **dict.fromkeys(watch.Watch.awaited, self._watch.module_is_there),
                **dict.fromkeys(state.awaited, self._state.module_is_there),
            }
        )
        self._absent = set()
        self._importers = {}  # {name: that of the module whose text has imported it first}
        self._window = changes.Window()
        self._libraries = places.Libraries()
        self.numbers = {}  # for threads.Counted
        self._written = b""
        self._argument_references = self._count_arguments()
        self._environment = dict(os.environ)
        self._steps = steps.Steps()
        self._before_late = None
        self._late_said, self._unmarked = 0, None
        self.stopped, self.missed, self.leader = None, None, None
        self.imported_with, self._without = {}, {}

    @property
    def variables_read(self):
        """Names of environment variables that imported modules looked at, with what they saw (None: unset)."""
        return self._watch.read

    @property
    def all_names_read(self):
        """Whether a module has looked through the names of all variables."""
        return self._watch.walked

    def begins_late(self, settings=()):
        """What is loaded from now on the script imports later, or not at all, behind these settings of variables."""
        self._watch.is_late = True
        self._before_late = list(sys.path), self._left(self._watch.said)
        self._steps.begin()
        self._unmarked = marks.Before(hidden.WITH_ALL if "torch" in sys.modules else ())
        usual = [setting for setting in settings if not _is_set_in_each_rank(setting[1])]
        self.imported_with = variables.settle(usual, os.environ)
        self._without = {name: os.environ.get(name) for name in self.imported_with}
        hidden.set_variables(self.imported_with)
        self._late_said, self._environment = len(self._watch.said), dict(os.environ)

    def left(self):
        """Left(..) of what the script imports first."""
        return self._before_late[1] if self._before_late is not None else self._left(self._watch.said)

    def load_aside(self, names):
        """Imports what others will want, as a step of theirs; unchecked: what torch's libraries do while they are
        mapped is torch's doing. Raises Tainted or Shadowed."""
        self._steps.begin()
        was_late, self._watch.is_late = self._watch.is_late, True
        self.load(names, check=False)
        self._watch.is_late = was_late
        self._steps.end(self._read_late(), hidden.Left({}, []))

    def load_late(self, names, stays=False):
        """As load does. What each of them brings is a step of its own; `stays`: all behind it have it, too. Raises
        Tainted or Shadowed."""
        for name in names:
            if self._steps.has_brought(name):
                continue
            self.load([name])
            if self._steps.end(self._read_late(), self._left(self._watch.said[self._late_said :]), stays):
                self._late_said, self._environment = len(self._watch.said), dict(os.environ)

    def _read_late(self):
        read, self._watch.late = self._watch.late, {}
        return read

    def ends_late(self):
        self._steps.bring_all_back()
        hidden.set_variables(self._without)

    def hide_late(self):
        """From now on those modules are in hidden.py's hands."""
        if self._before_late is not None:
            path, marked = self._before_late[0], self._unmarked.take_away()
            hidden.hide(self._steps.all, path, marked, self._importers, self.imported_with)

    def _left(self, said):
        before, now = self._environment, dict(os.environ)
        changed = {name: now.get(name) for name in {*before, *now} if before.get(name) != now.get(name)}
        return hidden.Left(changed, list(said))

    def generators(self):
        """Generators of random numbers that imports have seeded from the system: each fork seeds them anew."""
        return self._watch.generators()

    def absent(self):
        """Top-level names of modules that were looked for, and that nobody has."""
        return frozenset(name for name in self._absent - set(sys.modules) if _find(name) is None)

    def files(self):
        """{(path, how): reads.look} of all that has been imported here, or was looked at meanwhile; changes.CHANGED of
        those that may have been imported as they were before."""
        found = dict(self._watch.reads.seen)
        for module in list(sys.modules.values()):
            spec = _spec_of(module)
            path = getattr(spec, "origin", None)
            if isinstance(path, str) and os.path.isabs(path):
                found[path, "file"] = reads.look(path, "file")
                self._window.note_module(spec, path)
        for name in self._absent - set(sys.modules):
            path = getattr(_find(name), "origin", None)
            if path is not None:
                self._window.note(path)  # it may have come behind who has looked for it in vain
        found.update(((path, "file"), changes.CHANGED) for path in self._window.changed())
        return found

    def files_read(self):
        """Of them those that were looked at."""
        return dict(self._watch.reads.seen)

    def said(self):
        """Whether anything was written to sys.stdout or sys.stderr."""
        return bool(self._watch.said)

    def run(self, name, work):
        """Has `work()` done as an import of `name` is. Raises Tainted."""
        with self._importing(name):
            work()
        self.check(name)

    def load(self, names, check=True):
        """Imports what can be imported of `names`. Raises Tainted or Shadowed."""
        for name in names:
            error = self._load_one(name, check)
            if error is not None and self.missed is not None:
                self.missed[name] = _why_missed(name, error)

    def load_in_order(self, steps, attributes=frozenset(), taken=None):
        """Takes scan.Scan.prefix's steps up to the first that cannot be taken here: what comes behind may depend on it.
        Returns that one and why, or None. `attributes`: those that Python would first look for in their package;
        `taken`: the taken.Taken of all steps.

        Raises Shadowed; or Tainted, with the module of a step: one more zygote will do, whatever else that imports."""
        self.stopped = self._take(steps, attributes, taken or Taken({}))
        return self.stopped

    def _take(self, steps, attributes, taken):
        for step in steps:
            name, _, looked_at = step.partition(":")
            if self.denies(step) or (looked_at and self.denies(name)):
                return step, "it must not be imported ahead"
            try:
                taken.step_begins(functools.partial(self._have_made, step))
                if taken.unclear is not None:
                    what = f"{shown(taken.unclear)}, which the script has taken before"
                    return step, f"nobody can tell whether it changes {what}"
                is_there, error = self._is_attribute(name) if name in attributes else (False, None)
                if not is_there and error is None:
                    error = self._look_at(name, looked_at) if looked_at else self._load_one(name, True)
            except Tainted as tainted:
                if tainted.module == step:
                    raise
                inner = "" if tainted.module == name else f"it imports {tainted.module}: "
                raise Tainted(name, inner + tainted.why) from None
            changed = taken.changed()
            if changed is not None:
                raise Tainted(name, f"it changes {changed}, which the script has taken before")
            if error is None:
                continue
            why = _why_missed(name, error)
            if not isinstance(error, _Denied) and not _is_not_found(name, error):
                # What it has done until then is in this process, and would be done again.
                raise Tainted(name, why)
            return step, why
        return None

    def _look_at(self, name, attributes):
        """As `from name import attribute` and `name.attribute.attribute` do, which a lazy package may answer with
        imports. `name` may be one that a module has, as that of a class. None, or the error."""
        if _longest_module(name)[0] is None:
            return ModuleNotFoundError(name, name=name)
        before = set(sys.modules)
        try:
            self._ask(name, attributes)
        except (Tainted, Shadowed, KeyboardInterrupt):
            raise
        except BaseException as error:  # whatever a library's __getattr__ raises, the script is to meet it
            return self._as_it_failed(name, error, before)
        self.check(name)
        return None

    def _ask(self, name, attributes):
        """Raises Tainted where it is not kept: the script asks the package once, and would be the second."""
        step = f"{name}:{attributes}"
        value, inner = _longest_module(name)
        with self._importing(name):
            for attribute in [*inner, *attributes.split(".")]:
                module, value = value, self._as_the_script(step, _LOOK, value=value, attribute=attribute)
                if not keeps(module, attribute):
                    raise Tainted(step, _KEEPS_NOTHING)
                if not is_module(value):
                    break

    def _have_made(self, step, name):
        """Has a module of the standard library make a name that it makes when it is asked for it, as the script does
        before `step`."""
        module, _, attribute = name.rpartition(".")
        if module not in self._where:
            return
        before, said = set(sys.modules), len(self._watch.said)
        try:
            with self._importing(module):
                self._as_the_script(module, _HAS, value=sys.modules[module], attribute=attribute)
        except (Tainted, Shadowed, KeyboardInterrupt):
            raise
        except BaseException as error:  # as in _look_at
            raise Tainted(step, _why_missed(module, self._as_it_failed(step, error, before))) from None
        self.check(step)
        if not keeps(sys.modules[module], attribute):
            del self._watch.said[said:]  # the script's own look says it
        elif len(self._watch.said) > said:
            raise Tainted(step, f"before it the script takes {name}, which warns the first time")

    def _is_attribute(self, name):
        """As `from parent import child` asks first, which a lazy package may answer with imports: (whether it is there,
        how that has failed)."""
        parent, _, child = name.rpartition(".")
        module, before = sys.modules.get(parent), set(sys.modules)
        if module is not None and type(module) is type(sys) and child in vars(module):
            return True, None
        try:
            with self._importing(name):
                is_there = self._as_the_script(name, _HAS, value=module, attribute=child)
        except (Tainted, Shadowed, KeyboardInterrupt):
            raise
        except BaseException as error:  # as in _look_at
            return False, self._as_it_failed(name, error, before)
        if is_there and not keeps(module, child):
            raise Tainted(name, _KEEPS_NOTHING)
        if is_there:
            self.check(name)
        return is_there, None

    def disregard_thread(self, native_id):
        """That thread is not a module's."""
        self._state.disregard_thread(native_id)

    def denies(self, name):
        """Whether a module, or a package it is in, is never imported; a look ("package:name") is never taken."""
        while name:
            if name in self._denied:
                return True
            name = name.rpartition(".")[0]
        return False

    def find_spec(self, name, path=None, target=None):
        """The import system asks here first."""
        if name in self._own or self.denies(name) or (name in self._own_folders and _is_folder_alone(name)):
            raise _Denied(name)
        if "." not in name:
            self._absent.add(name)
        self._importers.setdefault(name, _importer(sys._getframe(1)))
        for folder in path or ():
            self._window.note_folder(folder)
        if name in ("torch", "numpy"):
            self.numbers[name] = threads.numbers()
        return self._steps.spec(name)

    @contextlib.contextmanager
    def _importing(self, name):
        # torch keeps what `open` is; what it reads is its own.
        self._watch.watches_files = not is_indifferent(name)
        with self._watch, self._past_stdout():
            sys.meta_path[:0] = [self, self._loads]
            try:
                yield
            finally:
                sys.meta_path.remove(self)
                if self._loads in sys.meta_path:  # it goes by itself behind the last that it waits for
                    sys.meta_path.remove(self._loads)

    @contextlib.contextmanager
    def _past_stdout(self):
        """Keeps what is written to the descriptor below sys.stdout, whose text each rank writes itself."""
        try:
            usual = os.dup(1)
        except OSError:
            yield  # it is closed
            return
        kept = os.memfd_create("phalanx-stdout")
        os.dup2(kept, 1)
        try:
            yield
        finally:
            try:
                sys.stdout.flush()
            except (AttributeError, ValueError, OSError):
                pass  # there is none any more, which is found by itself
            os.dup2(usual, 1)
            self._written += os.pread(kept, 1 << 20, 0)
            os.close(kept)
            os.close(usual)

    def _load_one(self, name, check):
        """None, or how its import failed."""
        if name in sys.modules:
            return None
        collects = gc.isenabled() and is_indifferent(name)
        if collects:
            gc.disable()  # looking for what might go away takes a fifth of the time, and nothing does
        try:
            with self._importing(name):
                error = self._import(name)
            if check and error is None:
                self.check(name)
            if collects and error is None:
                gc.freeze()  # else enabling it has all of that looked through at once, and in later imports again
        finally:
            if collects:
                gc.enable()
        return error

    def _import(self, name):
        before = set(sys.modules)
        try:
            self._as_the_script(name, _IMPORT, name=name)
        except (Tainted, Shadowed, KeyboardInterrupt):
            raise
        except BaseException as error:  # whatever a module does when it fails, it is left to the script to meet it
            return self._as_it_failed(name, error, before)
        return None

    def _as_the_script(self, step, text, **names):
        """Runs a statement where the script has that step: what a library says of its caller names that line."""
        path, line, module = self._where.get(step, (__file__, 1, __name__))
        code = compile("\n" * (line - 1) + text, path, "exec", dont_inherit=True)
        statement = watch.Statement(names, __name__=module, __file__=path, __builtins__=builtins)
        exec(code, statement)
        return statement["value"]

    def _as_it_failed(self, name, error, before):
        """The error, where what was done of the import until then can be done again; else raises Tainted or Shadowed.
        `before`: the names of sys.modules then."""
        _forget_orphans(before)
        if isinstance(error, _Denied) and not before.issuperset(sys.modules):
            # Half done, it has left its marks in what it imported; done again in a fork it would meet them.
            if str(error) in self._own:
                raise Shadowed(str(error)) from None
            raise Tainted(name, _imports(error)) from None
        if isinstance(error, _Denied) and not f"{name}.".startswith(f"{error}."):
            raise Tainted(name, _imports(error)) from None  # it has come to that line: the script would do it once more
        return error

    def check(self, name):
        """Raises Tainted where something has been done that a fork cannot undo; `name` is said to have done it."""
        taint, self._watch.taint = self._watch.taint, None
        if taint is not None:  # somebody has caught it
            raise Tainted(name, taint.why) if taint.module == "?" else taint
        self._watch.forget_names([module for new, module in list(sys.modules.items()) if new not in self._seen])
        self._check_values()
        self._watch.reads.settle()
        self._check_arguments(name)
        written, self._written = self._written, b""
        if written and not is_indifferent(name):
            raise Tainted(name, "it writes past sys.stdout")
        if written:
            os.write(1, written)
        if any(places.OUR_FOLDER in text for _, text in self._watch.said):
            raise Tainted(name, "it says from where it was imported")
        why = self._state.new(name)
        if why is not None:
            raise Tainted(name, why)

    def _check_arguments(self, name):
        if self._count_arguments() > self._argument_references:
            gc.collect()
            if self._count_arguments() > self._argument_references:
                raise Tainted(name, "it keeps sys.argv, or sys.orig_argv, which is another list in a rank")
        interpreters = getattr(sys, "orig_argv", None)
        if getattr(interpreters, "was_read", False) and not is_indifferent(name):
            raise Tainted(name, "it looks at sys.orig_argv, which is another in a rank")

    @staticmethod
    def _count_arguments():
        lists = [vars(sys)[name] for name in ("argv", "orig_argv") if hasattr(sys, name)]
        return sum(map(sys.getrefcount, lists))

    def _check_values(self):
        """What new modules hold by a name of their own, and must not share."""
        for name in [name for name in sys.modules if name not in self._seen]:
            module = sys.modules[name]
            if is_yet_to_be_loaded(module):
                continue  # nothing of it has happened: what loads it is asked then
            self._seen.add(name)
            if module is sys.modules["__main__"]:
                continue  # multiprocessing calls it __mp_main__, too; with -m it has the spec of the user's own module
            self._watch.put_back(module)
            if is_indifferent(name) or name in _RENEWED or places.is_standard_name(name):
                continue
            origin = _origin_of(module)
            if not self._nobody and self._is_users_own(name, origin):
                raise Tainted(name, f"it imports {name}, which is the user's own")
            if not self._nobody and not places.is_library_origin(origin):
                continue
            for key, value in list(kept_names(module).items()):
                why = why_not_shared(value)
                if why is not None:
                    raise Tainted(name, f"it holds {why} ({key})")

    def _is_users_own(self, name, origin):
        """Whether its file is on PYTHONPATH, beside the script, of an editable install, or linked to libraries'."""
        if not isinstance(origin, str) or not os.path.isabs(origin) or name.startswith("_remote_module"):
            return False  # torch makes that one in a temporary folder
        return not self._libraries.have(origin)


def _imports(denied):
    return f"it imports {denied}, which must not be imported here"


def _longest_module(name):
    """The module that the longest beginning of a dotted name stands for, or None, and the parts behind it."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        module = sys.modules.get(".".join(parts[:count]))
        if module is not None:
            return module, parts[count:]
    return None, parts


def _spec_of(module):
    return kept_names(module).get("__spec__")


def _origin_of(module):
    return getattr(_spec_of(module), "origin", None)


def _importer(frame):
    """The module that is being imported there, or None."""
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return None if frame is None else frame.f_globals.get("__name__")


def _is_set_in_each_rank(variable):
    """Whether a rank has its own of it, or sets it anew (threads.py)."""
    return watch.differs_between_ranks(variable) or variable in hidden.COUNTED_ANEW


def _is_not_found(name, error):
    return isinstance(error, ModuleNotFoundError) and error.name == name


def _why_missed(name, error):
    """What is said of a module whose import has ended with `error`."""
    if _is_not_found(name, error):
        return "it is not found"
    if isinstance(error, _Denied):
        return "it must not be imported ahead" if str(error) == name else f"it imports {error}, which must not be"
    return f"its import fails: {type(error).__name__}: {error}"


class WatchedArguments(list):
    """A sys.argv, or sys.orig_argv, that knows whether somebody has looked at it."""

    was_read = False

    def _noting(name):
        method = getattr(list, name)

        def noting(self, *args):
            self.was_read = True
            return method(self, *args)

        return noting

    for _name in "__getitem__ __iter__ __len__ __contains__ __eq__ __add__ __repr__ copy count index".split():
        locals()[_name] = _noting(_name)
    del _name, _noting


def _find(name):
    return importlib.machinery.PathFinder.find_spec(name, sys.path)


def _is_folder_alone(name):
    """Whether only folders without __init__ have that name: a namespace package, of which the script's is a part."""
    spec = _find(name)
    return spec is not None and spec.origin is None


def _forget_orphans(before):
    """After an import that failed halfway: drops modules whose parent is not there, so that a later one starts anew."""
    for name in sorted(set(sys.modules) - before):
        parent = name.rpartition(".")[0]
        if parent and parent not in sys.modules:
            sys.modules.pop(name, None)


def without_rank_variables():
    for name in [name for name in os.environ if watch.differs_between_ranks(name)]:
        del os.environ[name]


def top_level_modules_loaded():
    """Top-level names that came by preloading (not with the interpreter)."""
    return frozenset(n for n in sys.modules if "." not in n) - places.modules_at_start
