"""Which statements cannot change what a later import does: constants, definitions, a few calls that make a value.

The answer errs on the safe side: what is not known to be harmless is not.
"""

import ast
import builtins
import contextlib
import copy
import sys

from phalanx._bootstrap import places, watch

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
# What values these make: methods of "text" make text, those of a "container" change that one at most. What other
# methods do is not known: Path(..).unlink(), getLogger(..).setLevel(..).
_VALUES_OF = {
    **dict.fromkeys("bytes float int range repr str os.environ.get os.fspath os.getcwd os.getenv".split(), "text"),
    **dict.fromkeys("dict frozenset list set sorted tuple".split(), "container"),
    "re.compile": "pattern",
}
_KINDS = frozenset(("container", "path", "pattern", "text"))
_PATTERN_METHODS = frozenset("findall finditer fullmatch match search split".split())
_PATH_METHODS = frozenset(
    "absolute as_posix as_uri exists expanduser is_absolute is_dir is_file is_relative_to joinpath match relative_to "
    "resolve samefile with_name with_stem with_suffix".split()
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
        "time.monotonic",
    ),
    *("time.perf_counter", "time.strftime", "time.time", "platform.", "socket.gethostname", "uuid.", "print"),
    *"abs all any enumerate isinstance issubclass max min round sum vars zip".split(),
)
# What makes a function of a function, or a class of a class: builtins, and what of which libraries.
_DECORATORS = frozenset("classmethod property staticmethod".split())
_DECORATING = {
    "abc": "abstractclassmethod abstractmethod abstractproperty abstractstaticmethod update_abstractmethods".split(),
    "contextlib": "asynccontextmanager contextmanager".split(),
    "dataclasses": ["dataclass"],
    "enum": "global_enum member nonmember property unique".split(),
    "functools": "cache cached_property lru_cache singledispatch total_ordering wraps".split(),
    "typing": "dataclass_transform final no_type_check overload override runtime_checkable".split(),
    "typing_extensions": "dataclass_transform deprecated final overload override runtime_checkable".split(),
}

_LAZY_STANDARD = ("concurrent.futures",)  # of the standard library, but a look at its names is an import

# What a place does at which the prefix ends, for people, behind that place.
DOES_SOMETHING = "does something: what follows may depend on it"
OTHER_STATEMENT = "is a statement whose parts may run, or not, or more than once"
CHANGES_OTHERS = "changes something that others have, too: what follows may depend on it"
UNKNOWN_IF = "decides by what is not known beforehand"
TAKES_ALL = "takes all names of a library's module, and each may be an import"
LOOKS_PERHAPS = "looks at a library's name perhaps, which may be an import"
MAY_RAISE = "may raise, and what is done then or left out is not known to be nothing"
NOT_FOUND = "is not found beforehand, so what it does is not known"
_DECORATOR = "is decorated by what is not known to make nothing but a function or a class"
_BASE = "derives a class from a library's class, which may be told of it, and do anything then"
_DEFINITION = "is a definition that calls something as it is made"

_PLAIN = (
    *(ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Set, ast.Dict),
    *(ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.JoinedStr, ast.FormattedValue, ast.Starred),
    *(ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
    *((ast.Index, ast.ExtSlice) if sys.version_info < (3, 9) else ()),
)


class Names:
    """What the names of one module's text stand for, as far as its imports say: {"np": "numpy", "get": "os.getenv"}.

    A name that is bound by anything else stands for nothing any more. `made`: names of values that a harmless call has
    made, by what made them; `literals`: of values that stand in the text; `properties`: of properties. `calls`: of
    VALUES or USUAL, what may be called. `looks`: "package:attribute" of libraries that expressions have looked at, and
    may be lazy: the look is an import then. `doubts`: how many statements around may not run."""

    def __init__(self, calls=VALUES):
        self.imported = {}
        self.made = {}
        self.literals = set()
        self.properties = set()
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
        return any(full_name == known or (known[-1] == "." and full_name.startswith(known)) for known in self.calls)

    def bind_import(self, statement, own):
        """`own`: whether it is a module of the script's own tree, of which nothing is known."""
        for alias in statement.names:
            if own or self.doubts:
                self.unbind(alias.asname or alias.name.split(".", 1)[0])
                continue
            if isinstance(statement, ast.Import):
                top = alias.name.split(".", 1)[0]
                self.imported[alias.asname or top] = alias.name if alias.asname else top
            elif not statement.level and statement.module and alias.name != "*":
                self.imported[alias.asname or alias.name] = f"{statement.module}.{alias.name}"
            else:
                self.unbind(alias.asname or alias.name)

    def unbind(self, name):
        self.imported.pop(name, None)
        self.made.pop(name, None)
        self.literals.discard(name)
        self.properties.discard(name)
        self.bound.add(name)

    def bind_value(self, name, made_by, is_literal=False):
        self.unbind(name)
        if made_by is not None and not self.doubts:
            self.made[name] = made_by
        if is_literal and not self.doubts:
            self.literals.add(name)

    def is_of_its_own(self, name):
        """Whether it is bound to a value that no other module has."""
        return name in self.literals or self.made.get(name) in _KINDS

    def copy(self):
        """As it is where a class begins: what its body binds is the class's."""
        other = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (dict, set)):
                setattr(other, name, value.copy())
        return other

    def full_name(self, node):
        """The dotted name of what an expression calls, as its module names it; None where that is not known."""
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        root = self.imported.get(node.id) or self.made.get(node.id)
        if root in _KINDS:
            return None
        if root is None and not parts and node.id not in self.bound:
            root = node.id  # a builtin
        return None if root is None else ".".join([root, *reversed(parts)])


def is_known(full_name):
    """Whether looking at a name of that library, or deriving a class from one, is known to do nothing else."""
    if full_name.startswith(_LAZY_STANDARD):
        return False
    return places.is_standard_name(full_name) or watch.is_indifferent(full_name)


def harmless(node, names):
    """Whether evaluating an expression (None: none) can change nothing that a later import sees."""
    if node is None:
        return True
    if isinstance(node, ast.Lambda):
        return all(harmless(part, names) for part in [*node.args.defaults, *node.args.kw_defaults])
    if isinstance(node, ast.Call):
        return _harmless_call(node, names)
    if isinstance(node, ast.Attribute):
        return _harmless_look(node, names)
    if isinstance(node, (ast.IfExp, ast.BoolOp)):
        return _without_looks(list(ast.iter_child_nodes(node)), names)
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
        values = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for loop in node.generators:
            values += [loop.iter, *loop.ifs]
            if not all(isinstance(part, ast.Name) for part in getattr(loop.target, "elts", [loop.target])):
                return False  # one that is set in each turn
        return _without_looks(values, names)
    return isinstance(node, _PLAIN) and all(harmless(child, names) for child in ast.iter_child_nodes(node))


def _harmless_look(node, names):
    full = names.full_name(node)
    if full is None or is_known(full):
        return harmless(node.value, names)
    package, _, attributes = full.partition(".")
    for name in sorted(names.imported.values(), key=len):
        if full.startswith(name + "."):
            package, attributes = name, full[len(name) + 1 :]
    names.looks.append(f"{package}:{attributes}")
    return True


def _without_looks(nodes, names):
    """Of expressions that may be evaluated or not, or several times."""
    before = len(names.looks)
    answer = all(harmless(node, names) for node in nodes) and len(names.looks) == before
    del names.looks[before:]
    return answer


def _harmless_call(node, names):
    parts = [*node.args, *(keyword.value for keyword in node.keywords)]
    # What is handed over may be called there.
    if not all(harmless(part, names) and harmless(getattr(part, "body", None), names) for part in parts):
        return False
    if any(keyword.arg == "key" and not isinstance(keyword.value, ast.Lambda) for keyword in node.keywords):
        return False  # a function that is called there
    full = names.full_name(node.func)
    if full in ("getattr", "hasattr"):
        return _harmless_getattr(node, names)
    if full == "type" and len(node.args) != 1:
        return False  # it makes a class
    if full is not None and names.may_call(full):
        return True
    return isinstance(node.func, ast.Attribute) and value_of(node, names) is not None and harmless(node.func, names)


def _harmless_getattr(node, names):
    """getattr(value, "name") is value.name; a name that may be missing, nobody can look for ahead of time."""
    if len(node.args) == 2 and isinstance(getattr(node.args[1], "value", None), str) and node.func.id == "getattr":
        return harmless(ast.Attribute(node.args[0], node.args[1].value, ast.Load()), names)
    value = node.args[0] if node.args else None
    return getattr(value, "id", None) in names.bound or is_known(names.full_name(value) or "")


def value_of(node, names):
    """What is known of the value of an expression: one of _KINDS, the dotted name of what made it, or None."""
    if isinstance(node, (ast.Constant, ast.JoinedStr)):
        return "text"
    if isinstance(node, ast.Name):
        return names.made.get(node.id)
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        value = value_of(node.value, names)
        return value if value in ("text", "path") else None
    if isinstance(node, ast.BinOp):
        return "path" if value_of(node.left, names) == "path" else None
    return _value_of_call(node, names) if isinstance(node, ast.Call) else None


def _value_of_call(node, names):
    full = names.full_name(node.func)
    if full is not None and names.may_call(full):
        if full.startswith(("pathlib.", "os.path.")):
            return "path" if full.startswith("pathlib.") else "text"
        made = any(known[-1] == "." and full.startswith(known) for known in names.calls)
        return _VALUES_OF.get(full, full if made else None)
    if not isinstance(node.func, ast.Attribute):
        return None
    value = value_of(node.func.value, names)
    if value == "path":
        return "path" if node.func.attr in _PATH_METHODS else None
    if value == "pattern":
        return "text" if node.func.attr in _PATTERN_METHODS else None
    return {"text": "text", "container": "anything"}.get(value)


def is_literal(node):
    """Whether a value is one that this text alone has."""
    return isinstance(node, (ast.Constant, ast.JoinedStr, ast.Tuple, ast.List, ast.Dict, ast.Set))


def harm_of_definition(statement, names):
    """None where a `def` or the head of a `class` runs nothing but what makes a function or a class; else the part
    that does, and what."""
    for decorator in statement.decorator_list:
        if not _harmless_decorator(decorator, names):
            return decorator, _DECORATOR
    if isinstance(statement, ast.ClassDef):
        parts = [*statement.bases, *(keyword.value for keyword in statement.keywords)]
        # A base may be told of its subclasses, and do anything then.
        if any(not is_known(full) for full in map(names.full_name, parts) if full is not None and "." in full):
            return statement, _BASE
    else:
        arguments = statement.args
        every = [*getattr(arguments, "posonlyargs", ()), *arguments.args, *arguments.kwonlyargs]
        every += [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
        parts = [*arguments.defaults, *arguments.kw_defaults, *(argument.annotation for argument in every)]
        parts.append(statement.returns)
    return None if all(harmless(part, names) for part in parts) else (statement, _DEFINITION)


def only_bind(statements, names):
    """Whether statements do nothing but give names a value: it makes no difference then which of them run."""
    return all(_only_binds(statement, names) for statement in statements)


def _only_binds(statement, names):
    if isinstance(statement, ast.Pass):
        return True
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return not statement.decorator_list and not may_raise(statement)
    if isinstance(statement, ast.ClassDef):
        return (
            not statement.decorator_list
            and not statement.keywords
            and only_bind(statement.body, names)
            and all(isinstance(base, ast.Name) and base.id == "object" for base in statement.bases)
        )
    if isinstance(statement, ast.Assign):
        targets = [part for target in statement.targets for part in getattr(target, "elts", [target])]
        return all(isinstance(part, ast.Name) for part in targets) and _without_looks([statement.value], names)
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


# What raises nothing where it is made of nothing else.
_RAISES_NOTHING = (*(ast.Pass, ast.Expr, ast.Assign, ast.Constant, ast.Tuple, ast.List, ast.Store, ast.Load),)


def may_raise(statement):
    """Whether a statement, an import apart, may raise anything. The name that is not bound is among it."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        arguments = statement.args
        annotations = [argument.annotation for argument in ast.walk(arguments) if isinstance(argument, ast.arg)]
        parts = [
            *statement.decorator_list,
            *arguments.defaults,
            *arguments.kw_defaults,
            *annotations,
            statement.returns,
        ]
        return not all(part is None or isinstance(part, ast.Constant) for part in parts)
    return not all(
        isinstance(node, _RAISES_NOTHING) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        for node in ast.walk(statement)
    )


def catches_import_error(kind):
    """Whether `except kind` catches a ModuleNotFoundError; None where that is not known."""
    if kind is None:
        return True
    answers = [_catches(part) for part in getattr(kind, "elts", [kind])]
    return True if True in answers else (None if None in answers else False)


def _catches(kind):
    error = getattr(builtins, getattr(kind, "id", ""), None)
    if not isinstance(error, type):
        return None
    return issubclass(ModuleNotFoundError, error)


def _harmless_decorator(node, names):
    """A decorator that a library has: it is called with a function or a class, and makes another of it."""
    if isinstance(node, ast.Call):
        parts = [*node.args, *(keyword.value for keyword in node.keywords)]
        if not all(harmless(part, names) for part in parts):
            return False
        node = node.func
    root = node
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name):
        return False
    full = names.full_name(node) or ""
    if root.id in names.imported:
        library, _, name = full.rpartition(".")
        return name in _DECORATING.get(library, ()) or watch.is_indifferent(full)
    if root is node:
        return root.id in _DECORATORS and root.id not in names.bound
    return root.id in names.properties and node.attr in ("setter", "getter", "deleter")


def makes_property(statement):
    """Whether a definition makes a property, which decorates others: `@name.setter`."""
    made = {getattr(decorator, "id", getattr(decorator, "attr", "")) for decorator in statement.decorator_list}
    return not made.isdisjoint(("property", "setter", "getter", "deleter", "abstractproperty", "cached_property"))


def known_truth(test):
    """What the test of an `if` comes to in every rank: True, False, or None where it is not known."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = known_truth(test.operand)
        return None if inner is None else not inner
    if getattr(test, "id", getattr(test, "attr", "")) == "TYPE_CHECKING":
        return False
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1):
        return None
    left, right = ast.dump(test.left), test.comparators[0]
    if left == ast.dump(ast.Name("__name__", ast.Load())):
        return None
    known = {"version_info": tuple(sys.version_info), "platform": sys.platform}
    if not (isinstance(test.left, ast.Attribute) and getattr(test.left.value, "id", "") == "sys"):
        return None
    value = known.get(test.left.attr)
    try:
        return _COMPARISONS[type(test.ops[0])](value, ast.literal_eval(right)) if value is not None else None
    except (KeyError, ValueError, TypeError, SyntaxError):
        return None


_COMPARISONS = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}
