"""What the names of a module's text stand for, as far as its imports and assignments say."""

import ast
import builtins
import contextlib
import copy

from phalanx._bootstrap import places
from phalanx._bootstrap.scanning import own
from phalanx._bootstrap.watching import watch

# Calls that make a value of their arguments and do nothing else, by the full name of what is called. One that ends in a
# dot stands for all that begins with it. Reading the environment is among them: a value decides no import, unless by an
# `if`, which is looked at by itself.
VALUES = (
    *("collections.namedtuple", "dataclasses.field", "enum.auto", "functools.partial", "functools.lru_cache"),
    *("functools.wraps", "logging.getLogger", "math.", "operator.attrgetter", "operator.itemgetter"),
    *("os.environ.get", "os.fspath", "os.getcwd", "os.getenv", "os.getpid", "os.path.", "re.compile"),
    *("types.MappingProxyType", "types.SimpleNamespace"),
    *(f"pathlib.{kind}" for kind in "Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath".split()),
    *("pathlib.Path.cwd", "pathlib.Path.home"),
    *(
        f"{module}.{kind}"
        for module in ("typing", "typing_extensions")
        for kind in "ForwardRef NamedTuple NewType ParamSpec TypeVar TypeVarTuple TypedDict cast".split()
    ),
    *"bool bytes dict float frozenset getattr hasattr int len list object range repr set sorted str tuple type".split(),
)
# What scripts do before they import what is slow: it changes nothing that torch or NumPy look at.
USUAL = (
    *VALUES,
    *(
        "argparse.",
        "copy.",
        "datetime.",
        "json.dumps",
        "json.loads",
        "random.Random",
        "re.",
        "textwrap.",
        *("time.strftime", "time.thread_time", "time.thread_time_ns"),
    ),
    *(f"time.{clock}{ns}" for clock in ("monotonic", "perf_counter", "process_time", "time") for ns in ("", "_ns")),
    *("platform.", "socket.gethostname", "uuid.", "print"),
    *"abs all any enumerate isinstance issubclass max min round sum vars zip".split(),
)
LOGGER = "logging.getLogger"
# What a value may be, whatever has made it.
KINDS = frozenset(("container", "path", "pattern", "text"))
# Of VALUES, but an import may make what they ask for.
_ASK_FOR_FILES = frozenset(
    f"os.path.{name}"
    for name in "exists lexists isfile isdir islink ismount getsize getmtime getctime getatime samefile".split()
)
_LAZY_STANDARD = ("concurrent.futures",)  # of the standard library, but a look at its names is an import
_HOLDING = (
    *(ast.Tuple, ast.List, ast.Set, ast.Dict, ast.IfExp, ast.BoolOp),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Starred, ast.keyword),
)
_ASKING = frozenset("bool hasattr isinstance issubclass len print repr str type vars".split())  # keep no module
_TEXTS_OF_MODULES = ("__doc__", "__file__", "__name__", "__version__")


# What Names keep of a name that another module takes from there.
_KEPT = ("imported", "bases", "made", "literals", "classes", "foreign", "calm", "modules")
UNKNOWN = object()  # what `__all__` has


class Names:
    """What the names of one module's text stand for, as far as its imports say: {"np": "numpy", "get": "os.getenv"}.

    A name that is bound by anything else stands for nothing any more. `bases`: of imported names, the module that is
    asked for them. `made`: names of values that a harmless call has made, by what made them; `literals`: of values that
    stand in the text; `properties`: of properties. `calls`: of VALUES or USUAL, what may be called. `looks`:
    "package:attribute" of libraries that expressions have looked at, and may be lazy: the look is an import then.
    `foreign`: of values that libraries have, or odd classes of the user's own, whose operators and attributes may be
    code, or of what may be one of them. `computes`: whether it counts what operators do. `is_module`: whether
    a dotted name is one of a module. `classes`: own.Class of classes. `functions`: those whose bodies are known, each
    with the Names that are global to it. `exported`: the names that `__all__` has, None without one, UNKNOWN.
    `modules`: Names of the user's own modules by their name here, `parts` of this package's. `is_open`: whether it may
    have further names. `doubtful`: names that may be bound otherwise. `doubts`: how many statements around may
    not run. `calm`: of `foreign`, but a class may have them as attributes. `here`: names that this block binds,
    `outer`: those that it declares to be of others."""

    def __init__(self, calls=VALUES):
        self.imported = {}
        self.bases = {}
        self.made = {}
        self.literals = set()
        self.properties = set()
        self.foreign = set()
        self.is_module = lambda full_name: False
        self.computes = True
        self.classes = {}
        self.functions = {}
        self.calm = set()
        self.here = set()
        self.exported = None
        self.outer = set()
        self.modules = {}
        self.parts = {}
        self.is_open = False
        self.doubtful = set()
        self.bound = set()
        self.calls = calls
        self.looks = []
        self.doubts = 0

    @contextlib.contextmanager
    def doubting(self):
        """Of statements that run, or do not: a name that they bind stands for nothing that is known."""
        self.doubts += 1
        try:
            yield
        finally:
            self.doubts -= 1

    def may_call(self, full_name):
        if self.calls is VALUES and full_name in _ASK_FOR_FILES:
            return False
        return any(full_name == known or (known[-1] == "." and full_name.startswith(known)) for known in self.calls)

    def bind_import(self, statement):
        """Of a library."""
        for alias in statement.names:
            name = alias.asname or (
                alias.name if isinstance(statement, ast.ImportFrom) else alias.name.split(".", 1)[0]
            )
            self.unbind(name)
            if name == "*":
                self.is_open = True
            elif self.doubts:
                if not is_known(alias.name if isinstance(statement, ast.Import) else statement.module or ""):
                    self.foreign.add(name)
            elif isinstance(statement, ast.Import):
                self.imported[name] = alias.name if alias.asname else name
            elif not statement.level and statement.module:
                self.imported[name] = f"{statement.module}.{alias.name}"
                self.bases[name] = statement.module

    def bind_module(self, name, module):
        """To the Names of a module of the user's own; None: of which nothing is known."""
        self.unbind(name)
        if self.doubts:
            self.foreign.add(name)
        elif module is not None:
            self.modules[name] = module

    def bind_class(self, name, known):
        """To an own.Class."""
        self.unbind(name)
        if not self.doubts:
            self.classes[name] = known
        elif known.is_odd():
            self.foreign.add(name)

    def take(self, module, name, name_here):
        """As `from module import name as name_here` does, from the Names of a module of the user's own."""
        if name == "*":
            return self._take_all(module)
        if name in module.parts and name not in module.bound:
            return self.bind_module(name_here, module.parts[name])
        kept = [(getattr(self, which), getattr(module, which)) for which in _KEPT]
        is_to_be_known = module.is_to_be_known(name)
        self.unbind(name_here)
        if self.doubts and is_to_be_known:
            self.foreign.add(name_here)
        for ours, theirs in kept if not self.doubts else ():
            if name in theirs:
                if isinstance(ours, dict):
                    ours[name_here] = theirs[name]
                else:
                    ours.add(name_here)

    def _take_all(self, module):
        """What `__all__` names, else all that does not begin with an underscore."""
        all_names = sorted({*module.bound, *module.parts})
        if module.exported is UNKNOWN:
            for each in all_names:
                self.unbind(each)
        else:
            public = [each for each in all_names if not each.startswith("_")]
            for each in public if module.exported is None else module.exported:
                self.take(module, each, each)
        self.is_open |= module.is_open or module.exported is UNKNOWN

    def has_for_sure(self, name):
        return name in self.bound and name not in self.doubtful

    def is_to_be_known(self, name):
        """Whether others have what a name stands for, too, or it may run code: not so of plain values."""
        is_part = name in self.parts and name not in self.bound
        is_odd = name in self.classes and self.classes[name].is_odd()
        is_others = any(name in names for names in (self.imported, self.modules, self.foreign))
        return is_part or is_odd or is_others or self.made.get(name) == LOGGER

    def unbind(self, name):
        stays = self.doubts > 0 and self.is_to_be_known(name)  # the other binding may be the one that counts
        for which in _KEPT:
            names = getattr(self, which)
            if isinstance(names, dict):
                names.pop(name, None)
            else:
                names.discard(name)
        if stays:
            self.foreign.add(name)
        self.properties.discard(name)
        self.functions.pop(name, None)
        self.is_open |= name == "__getattr__"
        if name == "__all__":
            self.exported = UNKNOWN
        self.bound.add(name)
        self.here.add(name)
        (self.doubtful.add if self.doubts else self.doubtful.discard)(name)

    def bind_value(self, name, node, made_by, is_literal=False):
        full, is_foreign = self.full_name(node), carries(node, self)
        module, own_module, base = self.module_named(node), self.own_module(node), self._base_of(node)
        known, known_as, is_calm = self.class_of(node), own.strings_in(node), may_be_held(node, self)
        is_module = module is not None or own_module is not None
        self.unbind(name)
        if is_foreign or (known is not None and known.is_odd()) or (self.doubts and is_module):
            self.foreign.add(name)
        if self.doubts:
            return
        if module is not None:
            self.imported[name] = module  # another name for it
        if own_module is not None:
            self.modules[name] = own_module
        if base is not None:
            self.bases[name] = base
        if is_calm:
            self.calm.add(name)
        if known is not None:
            self.classes[name] = known  # another name for it
        if name == "__all__" and known_as is not None:
            self.exported = known_as
        if name == "TYPE_CHECKING" and getattr(node, "value", None) is False:
            self.imported[name] = "typing.TYPE_CHECKING"
        if made_by is not None:
            self.made[name] = made_by
        elif full is not None and "." in full and is_known(full):
            self.imported[name] = full  # another name for it
        if is_literal:
            self.literals.add(name)

    def add_value(self, name, node):
        """`name += node`, where it is_of_its_own."""
        if carries(node, self):
            self.foreign.add(name)
        if name == "__all__" and self.exported is not None:
            more = own.strings_in(node)
            is_known = self.exported is not UNKNOWN and more is not None and not self.doubts
            self.exported = [*self.exported, *more] if is_known else UNKNOWN

    def is_of_its_own(self, name):
        """Whether it is bound to a value that no other module has."""
        if name == "__all__" and isinstance(self.exported, list):
            return True
        return name in self.literals or self.made.get(name) in KINDS

    def copy(self):
        """As it is where a class or a call begins: what its body binds is its own."""
        other = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (dict, set)):
                setattr(other, name, value.copy())
        other.outer, other.here = set(), set()
        return other

    def hiding(self, hidden):
        """Names as they are where these are others for a while: what a lambda is given, what a comprehension goes
        through. What is noted there is noted here."""
        known = [name for name in hidden if name in self.bound or name in self.parts or hasattr(builtins, name)]
        if not known:
            return self
        other = self.copy()
        other.doubts = 0  # there they are others for sure
        for name in known:
            other.unbind(name)
        return other

    def module_named(self, node):
        """The dotted name of the module that an expression stands for, where it has been imported; or None."""
        names, parts = self.found(node)
        if len(parts) == 1 and "." not in names.imported.get(parts[0], "."):
            return names.imported[parts[0]]
        full = self.full_name(node)
        return full if full is not None and "." in full and self.is_module(full) else None

    def own_module(self, node):
        """Names of the user's own module that an expression stands for, or None."""
        names, parts = self.found(node)
        return names if _is_dotted(node) and not parts else None

    def is_of_a_module(self, node):
        """Whether an expression stands for a module: what has it in it nobody knows any more by its name."""
        return self.module_named(node) is not None or self.own_module(node) is not None

    def _base_of(self, node):
        names, parts = self.found(node)
        return names.bases.get(parts[0]) if parts else None

    def class_of(self, node):
        """own.Class of the class that an expression names, or None."""
        names, parts = self.found(node)
        return names.classes.get(parts[0]) if len(parts) == 1 else None

    def full_name(self, node):
        """The dotted name of what an expression calls, as its module names it; None where that is not known."""
        names, parts = self.found(node)
        if not parts:
            return None
        root = names.imported.get(parts[0]) or names.made.get(parts[0])
        if root in KINDS:
            return None
        if root is None and len(parts) == 1 and names is self and parts[0] not in self.bound:
            root = parts[0] if parts[0] != "__builtins__" else None  # a builtin
        return None if root is None else ".".join([root, *parts[1:]])

    def found(self, node):
        """Names that have what an expression names, and its dotted name there, in parts: none where it is a module of
        the user's own, or no name."""
        parts = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return self, []
        names, parts = self, [node.id, *parts]
        while parts and (parts[0] in names.modules or (parts[0] in names.parts and parts[0] not in names.bound)):
            names = names.modules.get(parts[0]) or names.parts[parts[0]]
            parts = parts[1:]
        return names, parts

    def part_is_there(self, name, module):
        """What Python does behind the import of a package's module: it is the package's attribute from then on."""
        if name in self.bound:
            self.unbind(name)
            self.bound.discard(name)
        self.parts[name] = module


def is_known(full_name):
    """Whether looking at a name of that library, or deriving a class from one, is known to do nothing else."""
    if full_name.startswith(_LAZY_STANDARD):
        return False
    return places.is_standard_name(full_name) or watch.is_indifferent(full_name)


def is_foreign(node, names):
    """Whether it names a value that a library has, no module, or one of an odd class."""
    if not isinstance(node, (ast.Name, ast.Attribute)) or getattr(node, "attr", "") in _TEXTS_OF_MODULES:
        return False
    owner, parts = names.found(node)
    if parts and parts[0] in owner.foreign:
        return True
    if parts and parts[0] in owner.classes:
        return owner.classes[parts[0]].makes_odd(parts[1:])
    full = names.full_name(node)
    return full is not None and "." in full and not is_known(full) and not names.is_module(full)


def carries(node, names, is_part=False):
    """Whether the value of an expression may be one for which is_foreign holds, or have one in it."""
    if node is None or isinstance(node, (ast.Constant, ast.Lambda, ast.JoinedStr, ast.Compare)):
        return False
    if _is_dotted(node):
        known = names.class_of(node) if is_part else None
        return is_foreign(node, names) or (known is not None and known.is_odd())
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr" and len(node.args) > 1:
        name = getattr(node.args[1], "value", None)
        if isinstance(name, str) and carries(ast.Attribute(node.args[0], name, ast.Load()), names):
            return True
    parts = list(ast.iter_child_nodes(node))
    called = names.full_name(node.func) if isinstance(node, ast.Call) else None
    if called is not None:
        parts.remove(node.func)  # what is called by that name is known: its value has what it is given
    if any(carries(child, names, True) for child in parts):
        return True
    is_holding = isinstance(node, _HOLDING) or (called is not None and called not in _ASKING)
    held = parts[1:] if called == "getattr" else parts
    return is_holding and any(map(names.is_of_a_module, held))


def may_run(node, names):
    """Whether what is handed over may be a value for which is_foreign holds, have one in it, or be a library."""
    module = names.module_named(node)
    return carries(node, names, True) or (module is not None and not is_known(module))


def _is_dotted(node):
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def may_be_held(node, names):
    """Whether the value of an expression can be an attribute of a class without running code: that asks it for
    `__set_name__`, a dataclass shows it, and so on."""
    if not carries(node, names, True):
        return True
    if not _is_dotted(node):
        return all(may_be_held(child, names) for child in ast.iter_child_nodes(node))
    owner, parts = names.found(node)
    if not parts or parts[0] in owner.foreign:
        return len(parts) == 1 and parts[0] in owner.calm
    known = owner.classes.get(parts[0])
    return known is not None and known.may_be_held()
