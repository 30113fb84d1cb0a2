"""What was imported ahead of its turn lies hidden until the script imports it, and is checked then.

The script's own order decides: it may have put a folder on sys.path, an import hook or a variable in between. Hidden
modules are not in sys.modules. A finder gives them out when they are asked for: of a library that torch brought along
all its modules and those of the libraries that it needs, and with a module of torch all that came until the step that
brought it: with `import torch` nothing of what torch imports late.
"""

import builtins
import collections
import functools
import importlib.machinery
import itertools
import os
import re
import sys
import types
import warnings

from phalanx._bootstrap import places, search_path
from phalanx._bootstrap.watching import load_watch, replaced

# The C and C++ below NumPy and torch reads these by getenv when it is loaded, where nobody sees it. The number of
# threads is set anew (threads.py).
_READ_UNSEEN = (
    *("ATEN_", "BLAS_", "BLIS_", "GLIBC_", "GOMP_", "GOTO_", "KMP_", "LD_", "MALLOC_", "MKL_", "NPY_", "OMP_"),
    *("OPENBLAS_", "PYTHON", "PYTORCH_", "TORCH_"),
)
COUNTED_ANEW = frozenset(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS"))
# Its libraries read these, too, each when it is loaded or sets itself up: only with what brings libraries along. Many
# scripts set some of them behind `import torch`.
_READ_BY_LIBRARIES = (
    *("CASK_", "CUBLAS", "CUDA_", "DNNL_", "GFORTRAN_", "GLIBCXX_", "I_MPI_", "KINETO_", "MKLDNN_", "MPI_", "NUMPY_"),
    *("NVRTC_", "OMPI_", "ONEDNN_", "OPENSSL_", "TRITON_"),
)
_READ_BY_COMPILERS = ("LLVM_", "PTXAS_", "TRITON_")
_BRING_LIBRARIES = frozenset(("torch", "numpy", "triton"))
# CUDA reads these when a device is first used, which no zygote does.
_READ_WITH_A_DEVICE = frozenset(("CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES"))
# Libraries that Cython has made share these: the first that comes makes them, none looks at another's.
_OF_CYTHON = re.compile(r"cython_runtime\Z|_cython_\d")
WITH_ALL = frozenset(("torch", "functorch", "torchgen"))

_LOADED_ONCE = WITH_ALL | {"numpy", "triton"}
_bases = type.__dict__["__mro__"].__get__  # past what a metaclass may say


def may_be_read_unseen(name):
    """Whether what is hidden may have read that variable where nobody sees it."""
    if name in COUNTED_ANEW or name in _READ_WITH_A_DEVICE:
        return False
    return name.startswith(_READ_UNSEEN + _READ_BY_LIBRARIES)


Left = collections.namedtuple("Left", "environment said")
Left.__doc__ = """What imports have left that is not in modules: variables {name: value; None: unset}, and what they
wrote, [(stream's name, text)]."""

_steps = []  # steps.Step
_modules_of = []  # of each step what is hidden still: {name: module}, in the order of their imports
_step_of = {}  # name: the index of its step, of all that have been hidden
_detached = []  # of each step what it has in packages that are none of its own: {name: what attach puts back}
_needs = {}  # top-level name: those of other hidden libraries that are there wherever it is
_origins = {}  # top-level name: its file, of those that are found on sys.path: torch makes one as it is imported
_path_entries = []  # what their imports have put on sys.path
_imported_with = {}  # {name: value, None: unset} of variables, as the script sets them before it imports these
_finder = None
_marks = None  # marks.Marks
_surroundings = None  # surroundings.Surroundings


def find(name):
    """A module that has been imported, hidden or not; or None."""
    return sys.modules.get(name) or _hidden(name)


def names():
    """Those that are hidden, in the order of their imports."""
    return [name for modules in _modules_of for name in modules]


def was_given_out(name):
    return name in _step_of and _hidden(name) is None


def _hidden(name):
    index = _step_of.get(name)
    return None if index is None else _modules_of[index].get(name)


def take_over(left):
    """Does in this process what imports did in another."""
    set_variables(left.environment)
    for stream, text in left.said:
        getattr(sys, stream).write(text)


def set_variables(values):
    """`values`: {name: value, None: unset}"""
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        elif os.environ.get(name) != value:
            os.environ[name] = value


def set_as_imported_with():
    """Sets variables as the script does before it imports these modules. Returns what was there, for set_variables."""
    before = {name: os.environ.get(name) for name in _imported_with}
    set_variables(_imported_with)
    return before


def hide(steps, path_before, marks, importers, imported_with=None):
    """Hides the modules of all `steps` (steps.Step). `marks`: by their imports; `importers`: {name: that of the module
    which imported it first}; `imported_with`: {name: value, None: unset} of the variables that they were imported with,
    since the script sets them so."""
    global _marks, _surroundings
    from phalanx._bootstrap import surroundings  # not in a cold worker, which hides nothing

    _marks, _surroundings = marks, surroundings.Surroundings()
    _imported_with.update(imported_with or {})
    _steps.extend(steps)
    for index, step in enumerate(steps):
        _modules_of.append(dict(step.modules))
        _step_of.update(dict.fromkeys(step.modules, index))
        for name in COUNTED_ANEW.intersection(step.variables):
            del step.variables[name]
        for name in step.modules:
            sys.modules.pop(name, None)
    for step in reversed(steps):
        replaced.undo(step.replaced)
    modules = {name: module for step in steps for name, module in step.modules.items()}
    every = {**sys.modules, **modules}
    for step in steps:
        _detached.append({taken[0]: taken for taken in detach(step.modules, every)})
    _path_entries.extend(entry for entry in sys.path if entry not in path_before)
    sys.path[:] = [entry for entry in sys.path if entry in path_before]
    for top in {_top(name) for name in modules}:
        origin = getattr(getattr(find(top), "__spec__", None), "origin", None)
        if origin is not None and _origin(top) == origin:
            _origins[top] = origin
    _needs.update(_closed(_needs_of_libraries(modules, importers)))


def detach(modules, others):
    """Takes them out of the packages that have them by name, but for their own. `others` {name: module} are all there
    are. Returns what attach puts back."""
    taken = []
    for name, module in modules.items():
        name_of_parent, _, child = name.rpartition(".")
        parent = others.get(name_of_parent)
        if name_of_parent in modules or parent is None or module.__spec__ is None:
            continue
        if vars(parent).get(child) is module:
            delattr(parent, child)
            taken.append((name, parent, child, module))
    return taken


def attach(taken):
    for _, parent, child, module in taken:
        if child not in vars(parent):
            setattr(parent, child, module)


def _needs_of_libraries(modules, importers):
    """{library: others that it has imported first, or has a module, a function, a class or an object of in a name}: all
    that is found by way of it may be asked for its module, as inspect.getfile and typing.get_type_hints do."""
    needs, values = {}, {}
    for name, importer in importers.items():
        if name in modules and importer in modules:
            needs.setdefault(_top(importer), set()).add(_top(name))
    for name, module in modules.items():
        if _top(name) not in WITH_ALL and isinstance(module, types.ModuleType):
            values.setdefault(_top(name), {}).update((id(value), value) for value in list(vars(module).values()))
    for top, found in values.items():
        needs.setdefault(top, set()).update(map(_top, _modules_behind(found.values()) & modules.keys()))
    return needs


def _modules_behind(values):
    """Names of the modules that values are, or are of. No code of theirs runs."""
    names, classes = set(), {}
    for value in values:
        kind = type(value)
        if kind is types.FunctionType or kind is types.BuiltinFunctionType:
            names.add(value.__module__)
        elif kind is types.ModuleType:
            names.add(value.__name__)
        else:
            known = value if issubclass(kind, type) else kind
            classes[id(known)] = known
    names.update(vars(base).get("__module__") for known in classes.values() for base in _bases(known) or ())
    return {name for name in names if isinstance(name, str)}


def _closed(needs):
    """With what is needed by what is needed, and without itself."""
    closed = {}
    for top in needs:
        found, new = set(), {top}
        while new:
            found |= new
            new = set().union(*(needs.get(one, ()) for one in new)) - found
        closed[top] = found - {top}
    return closed


@functools.lru_cache(maxsize=None)  # asked in the zygote, and so in no rank
def _top(name):
    return name.partition(".")[0]


def _origin(top):
    return getattr(importlib.machinery.PathFinder.find_spec(top, sys.path), "origin", None)


def replace_path_entry(old, new):
    for entries in (sys.path, _path_entries):
        entries[:] = [new if entry == old else entry for entry in entries]


def make_own():
    """Has this fork copy the pages that the script's imports will write: 3 ms of a recovery."""
    for modules in _modules_of:
        list(modules.items())
    if _marks is not None:
        _marks.make_own()


def any_there():
    return any(_modules_of)


def await_imports(threads, go_cold, keep):
    """From now on the script's imports are served. `threads`: a threads.Late, which counts behind each. Where what is
    hidden is not what this import would find, one of two is called, with why and whether it is only what torch imports
    late: `go_cold`, which does not return, or `keep`, where that is too late."""
    global _finder
    if any_there():
        _finder = _Finder(threads, go_cold, keep)
        sys.meta_path.insert(0, _finder)


def variable_changes(name):
    """To be called where the script has set or removed a variable."""
    if _finder is not None:
        _finder.variable_changes(name)


def is_imported_with(name):
    """Whether a variable is what it was when these modules were imported, since the script sets it so."""
    return name in _imported_with and os.environ.get(name) == _imported_with[name]


def training_has_begun():
    """No life begins anew any more: what it has done would be done twice, and its peers are elsewhere."""
    if _finder is not None:
        _finder.is_settled = True


def script_has_ended():
    """Its excepthook, threads and atexit callbacks may look at sys.modules, or import; nothing begins anew for them."""
    training_has_begun()


def give_out_rest():
    """Behind all of these, so that the interpreter takes all apart as it does in any process."""
    global _finder
    if _finder is not None:
        if _finder in sys.meta_path:
            sys.meta_path.remove(_finder)
        _finder = None
    _Group(range(len(_steps)), [None]).give_out()


def can_be_hidden(name):
    module = sys.modules[name]
    return isinstance(getattr(module, "__name__", None), str) and not places.is_standard_name(name)


class _Finder:
    def __init__(self, threads, go_cold, keep):
        self._threads = threads
        self._go_cold, self._keep = go_cold, keep
        self._finders = list(sys.meta_path)
        self._path_hooks = list(sys.path_hooks)
        self._path = search_path.look()  # this process has just looked for other modules in it (runner.Seen.clash)
        self._import = builtins.__import__
        self._environment = {**os.environ, **_imported_with}
        self._filters = list(warnings.filters)
        self._pid = os.getpid()
        self._why_mixed = None  # why some of what was hidden is another's by now, which other hidden modules have taken
        self._is_torch_out = "torch" in sys.modules
        self._kept = set()  # kinds of what was given out although it differs
        self._taken = set()  # indices of steps whose `left` is taken over
        self._replaced = set()  # and of those whose `replaced` is done
        self.is_settled = False  # the life may begin anew no more

    def find_spec(self, name, path=None, target=None):
        module = _hidden(name)
        if module is None:
            return None
        group = _group_of(name)
        # Of what torch imports late, or NumPy, which is there already.
        is_part = (self._is_torch_out and _top(name) in WITH_ALL) or (_top(name) in sys.modules and _top(name) != name)
        why = self._why_mixed or (self._why_not_later(group) if is_part else self._why_not(group))
        if why is not None and not self._goes_on(name, group, is_part, why):
            return None
        return spec_of(name, module, lambda: self._give_out(name, group))

    def _goes_on(self, name, group, is_part, why):
        """Whether what is hidden is given out although it differs."""
        top = _top(name)
        why = f"{top} was imported ahead of its turn, but {why}"
        is_child = os.getpid() != self._pid
        if is_child and (self._why_mixed or not is_part):
            self._leave_to_python([n for n in group.names() if top in WITH_ALL or _top(n) == top], why)
            return False
        if not is_child and not self._may_not_begin_anew():
            self._go_cold(why, is_part)
        if is_part not in self._kept:
            self._kept.add(is_part)
            self._keep(why, is_part)
        return True

    def _may_not_begin_anew(self):
        """Whether its peers would meet another process in the middle of a collective, or it has trained."""
        is_in_a_group = getattr(sys.modules.get("torch.distributed"), "is_initialized", None)
        return self.is_settled or (is_in_a_group is not None and is_in_a_group())

    def variable_changes(self, name):
        """Torch is out, and what it imports late has read that one: sooner or later each training comes to that, often
        when it can begin anew no more."""
        if not self._is_torch_out or os.getpid() != self._pid or self._may_not_begin_anew():
            return
        for index in [index for index, modules in enumerate(_modules_of) if _has_part_of_torch(modules)]:
            variables = _steps[index].variables
            if name in variables and os.environ.get(name) != variables[name]:
                self._go_cold(f"what torch imports late has read {name}, which the script has changed", True)

    def _leave_to_python(self, names, why):
        """In a forked child, which cannot begin anew: it finds the modules as if nobody had imported them. Those with
        libraries that a process loads once are refused, aloud: the script may catch what is raised."""
        if any(_top(name) in _LOADED_ONCE for name in names):
            why = f"phalanx: {why}; start the job with --no-warm"
            try:
                os.write(2, f"{why}\n".encode())
            except OSError:
                pass
            raise ImportError(why)
        _take(names)
        self._why_mixed = why

    def _give_out(self, name, group):
        """Its module is in sys.modules already."""
        if _hidden(name) is None:
            return  # somebody keeps the spec, and loads by it once more
        group.give_out(name)
        if group.is_with_torch:
            self._is_torch_out = True
            sys.path.extend(_path_entries)
            del _path_entries[:]
        if not any_there() and self in sys.meta_path:
            sys.meta_path.remove(self)
        self._take_over(group.steps)
        if group.is_with_torch:
            self._replace_by(group.steps)
        else:
            for index in group.steps:
                replaced.redo(replaced.by_libraries(_steps[index].replaced, group.owners))
        for owner in group.owners:
            self._filters += _marks.put_back(owner)
        load_watch.call_for_loaded()
        self._threads.count(group)

    def _take_over(self, steps):
        """What the imports of these steps have left, but for variables that they have looked at and the script has
        changed since: they would have found those."""
        for index in [index for index in steps if index not in self._taken]:
            self._taken.add(index)
            left, seen = _steps[index].left, _steps[index].variables
            environment = {
                name: value
                for name, value in left.environment.items()
                if name not in seen or os.environ.get(name) == self._environment.get(name)
            }
            # What is given out later, torch behind NumPy, has seen these before they were set.
            self._environment.update(environment)
            for variables in [step.variables for step in _steps] if environment else ():
                variables.update({name: value for name, value in environment.items() if name in variables})
            take_over(Left(environment, left.said))

    def _replace_by(self, steps):
        for index in [index for index in steps if index not in self._replaced]:
            self._replaced.add(index)
            replaced.redo(_steps[index].replaced)

    def _why_not(self, group):
        return self._why_not_by_script(group) or self._threads.why_not(group) or _marks.why_not(group.owners)

    def _why_not_by_script(self, group):
        own = group.why_not_all()
        if own is not None:
            return own
        if builtins.__import__ is not self._import:
            return "the script has replaced builtins.__import__"
        known = [*self._finders, self]
        for finder in sys.meta_path:
            if not isinstance(finder, load_watch.LoadWatch) and not any(finder is one for one in known):
                return f"the script has put an import hook on sys.meta_path ({type(finder).__name__})"
        if sys.path_hooks != self._path_hooks:
            return "the script has changed sys.path_hooks"
        if self._would_warn_otherwise(group.steps):
            return "the script has set filters of warnings"
        why = _surroundings.why_not()
        if why is None and group.brings_libraries():
            why = _surroundings.why_no_libraries()
        why = why or self._why_not_by_variables(group) or self._why_not_by_path(group)
        return why or self._why_not_by_replaced(group)

    def _why_not_later(self, group):
        """The same of what torch imports late, once torch is there: what it has read, and where it is. The rest of what
        scripts do behind `import torch` is no reason to begin anew."""
        why = group.why_not_all() or _why_not_by_reads(group.steps, dict(os.environ)) or self._why_not_by_path(group)
        if why is None and "triton" in group:
            why = self._why_not_by_compilers()
        return why or self._why_not_by_replaced(group)

    def _why_not_by_compilers(self):
        """Triton's C++ reads these, and its knobs by it, when it is imported."""
        for variable in sorted({*os.environ, *self._environment}):
            if variable.startswith(_READ_BY_COMPILERS) and os.environ.get(variable) != self._environment.get(variable):
                return f"it may have read {variable}, {_how_changed(variable)}"
        return None

    def _why_not_by_variables(self, group):
        now, before = dict(os.environ), self._environment
        why = _why_not_by_reads(group.steps, now)
        if why is not None:
            return why
        changed = {name for name in {*now, *before} if now.get(name) != before.get(name)} - COUNTED_ANEW
        unseen = _READ_UNSEEN + _READ_BY_LIBRARIES if group.brings_libraries() else _READ_UNSEEN
        for variable in sorted(changed.union(_surroundings.changed_variables()) - _READ_WITH_A_DEVICE):
            if variable.startswith(unseen):
                return f"it may have read {variable}, {_how_changed(variable)}"
        return None

    def _why_not_by_path(self, group):
        if self._path is not None and search_path.look() == self._path:
            return None
        for top in sorted({_top(name) for name in group.names()}):
            if top in _origins and _origin(top) != _origins[top]:
                return f"{top} is another one on the script's sys.path"
        return None

    def _why_not_by_replaced(self, group):
        """Of torch and its parts. Of what others replace, a script's own stays (replaced.redo)."""
        if not _has_part_of_torch(group.names()):
            return None
        coming = [index for index in group.steps if index not in self._replaced]
        return replaced.why_not([change for index in coming for change in _steps[index].replaced])

    def _would_warn_otherwise(self, steps):
        """Whether warnings of the imports of these steps would be shown, or not, by what the script has set since."""
        new = [entry for entry in warnings.filters if entry not in self._filters]
        if any(_steps[index].left.said for index in steps if index not in self._taken):
            return bool(new)
        # Libraries have categories of their own shown, which torch and its like do not know.
        return any(entry[0] != "ignore" and entry[2].__module__ == "builtins" for entry in new)


def _how_changed(variable):
    if os.environ.get(variable) != _imported_with.get(variable, os.environ.get(variable)):
        return "which the script's text sets to something else than it is now"
    return "which the script has changed since"


def _why_not_by_reads(steps, environment):
    """`environment`: what the script has by now, as a plain dict: os.environ takes three times as long to ask."""
    for index in steps:
        for variable, seen in _steps[index].variables.items():
            if environment.get(variable) != seen:
                return f"it has read {variable}, {_how_changed(variable)}"
    return None


def spec_of(name, module, load):
    """Of a module that is there, and whose import calls `load()`. As the module's own, but for what loads it."""
    own = module.__spec__
    spec = importlib.machinery.ModuleSpec(name, _Loader(module, load), is_package=hasattr(module, "__path__"))
    if own is not None:
        spec.origin, spec.submodule_search_locations = own.origin, own.submodule_search_locations
        spec.cached, spec.has_location = own.cached, own.has_location
    return spec


class _Loader:
    """Gives out a module that is there, as it is."""

    def __init__(self, module, load):
        self._module = module
        self._spec = module.__spec__
        self._load = load

    def __getattr__(self, name):
        return getattr(self._spec.loader, name)

    def create_module(self, spec):
        return self._module

    def exec_module(self, module):
        try:
            module.__spec__ = self._spec
        except AttributeError:
            pass  # torch's modules of settings refuse other names, from importlib as well: it is what it was
        self._load()


def _group_of(name):
    """What is given out with it: of a library that torch brought along all its modules and those of the libraries that
    it needs, and with a module of torch all that came until the step that brought it."""
    tops = {_top(name)} | _needs.get(_top(name), set())
    if WITH_ALL.isdisjoint(tops):
        return _Group(range(len(_steps)), sorted(tops), tops)
    return _Group(sorted({_step_of[name]} | _steps[_step_of[name]].needs), [None])


class _Group:
    """Hidden modules that are given out together: those of these steps, and of the libraries `tops` alone (None: all).
    `owners`: whose marks are put back with them; None: those of all, as torch is among them.

    Of torch they are a thousand: what can be asked of them is asked a dict at a time. That takes a tenth."""

    def __init__(self, steps, owners, tops=None):
        parts = [(index, _of_tops(_modules_of[index], tops)) for index in steps]
        self._parts = [modules for _, modules in parts if modules]
        self.steps = [index for index, modules in parts if modules]
        self.owners = owners
        self.is_with_torch = owners == [None]

    def __contains__(self, name):
        return any(name in modules for modules in self._parts)

    def names(self):
        return itertools.chain(*map(list, self._parts))

    def brings_libraries(self):
        return any(name in self for name in _BRING_LIBRARIES)

    def why_not_all(self):
        """Why not, where the script has put one of these there itself."""
        for modules in self._parts:
            if sys.modules.keys().isdisjoint(modules.keys()):
                continue
            own = next((name for name in list(modules) if name in sys.modules and not _OF_CYTHON.match(name)), None)
            if own is not None:
                return f"the script has put {own} into sys.modules"
        return None

    def give_out(self, asked_for=None):
        """Those that are hidden still. `asked_for`: whoever imports this one puts it where it belongs, or not."""
        for index, modules in zip(self.steps, self._parts):
            found = _take_of(index, modules)
            there = sys.modules.keys() & found.keys()
            if asked_for in found:
                there.add(asked_for)
            if any(sys.modules.get(name) is not found[name] for name in there):
                sys.modules.update({name: module for name, module in found.items() if name not in there})
            else:
                sys.modules.update(found)
            attach([_detached[index][name] for name in (_detached[index].keys() & found.keys()) - {asked_for}])


def _of_tops(modules, tops):
    # Of a copy: other threads import, too.
    return modules if tops is None else {name: module for name, module in [*modules.items()] if _top(name) in tops}


def _has_part_of_torch(names):
    return any(_top(name) in WITH_ALL for name in names)


def _take(names):
    """These are hidden no more."""
    for index in {_step_of[name] for name in names}:
        _take_of(index, dict.fromkeys(names))


def _take_of(index, names):
    """Returns those of this step that were hidden until now, {name: module}. Each is taken by one thread, whichever
    others import at the same time."""
    modules = _modules_of[index]
    if modules is names:
        _modules_of[index] = {}
        return modules
    found = {name: modules.pop(name, None) for name in [*names]}
    return {name: module for name, module in found.items() if module is not None}
