"""Which statements cannot change what a later import does: constants, definitions, a few calls that make a value.

The answer errs on the safe side: what is not known to be harmless is not.
"""

import ast
import builtins
import contextlib
import sys

from phalanx._bootstrap import places, watch

# Calls that make a value of their arguments and do nothing else, by the full name of what is called. One that ends in a
# dot stands for all that begins with it. Reading the environment is among them: a value decides no import, unless by an
# `if`, which is looked at by itself.
VALUES = (
    *("collections.namedtuple", "dataclasses.field", "enum.auto", "functools.partial", "functools.lru_cache"),
    *("functools.wraps", "logging.getLogger", "math.", "operator.attrgetter", "operator.itemgetter"),
    *("os.environ.get", "os.fspath", "os.getcwd", "os.getenv", "os.getpid", "os.path.", "pathlib.", "re.compile"),
    *("types.MappingProxyType", "types.SimpleNamespace", "typing.", "typing_extensions."),
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
        "time.monotonic",
    ),
    *("time.perf_counter", "time.strftime", "time.time", "platform.", "socket.gethostname", "uuid.", "print"),
    *"abs all any enumerate isinstance issubclass max min round sum vars zip".split(),
)
# What makes a function of a function, or a class of a class: builtins, and what of which libraries.
_DECORATORS = frozenset("classmethod property staticmethod".split())
_DECORATING = ("abc.", "contextlib.", "dataclasses.", "enum.", "functools.", "typing.", "typing_extensions.")

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
    made, by what made them. `calls`: of VALUES or USUAL, what may be called. `looks`: "package:attribute" of libraries
    that expressions have looked at, and may be lazy: the look is an import then."""

    def __init__(self, calls=VALUES):
        self.imported = {}
        self.made = {}
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
        self.bound.add(name)

    def bind_value(self, name, made_by):
        self.unbind(name)
        if made_by is not None and not self.doubts:
            self.made[name] = made_by

    def full_name(self, node):
        """The dotted name of what an expression calls, as its module names it; None where that is not known."""
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        root = self.imported.get(node.id) or self.made.get(node.id)
        if root is None and not parts and node.id not in self.bound:
            root = node.id  # a builtin
        return None if root is None else ".".join([root, *reversed(parts)])


def is_known(full_name):
    """Whether looking at a name of that library, or deriving a class from one, is known to do nothing else."""
    return places.is_standard_name(full_name) or watch.is_indifferent(full_name)


def harmless(node, names):
    """Whether evaluating an expression (None: none) can change nothing that a later import sees."""
    if node is None or isinstance(node, ast.Lambda):
        return True
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
    if not all(harmless(part.body if isinstance(part, ast.Lambda) else part, names) for part in parts):
        return False
    if any(keyword.arg == "key" and not isinstance(keyword.value, ast.Lambda) for keyword in node.keywords):
        return False  # a function that is called there
    function = node.func
    while isinstance(function, ast.Attribute):
        function = function.value
    if isinstance(function, (ast.Call, ast.Constant, ast.JoinedStr)):
        return harmless(function, names)  # a method of a value made on the spot: Path(x).parent.resolve()
    full = names.full_name(node.func)
    return full is not None and names.may_call(full)


def made_by(node, names):
    """What a name stands for that is bound to this harmless expression: the maker of its value, or None."""
    if not isinstance(node, ast.Call):
        return None
    full = names.full_name(node.func) or ""
    maker = next((known for known in names.calls if known[-1] == "." and full.startswith(known)), None)
    return maker and full


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
        return full.startswith(_DECORATING) or watch.is_indifferent(full)
    return (root is node and root.id in _DECORATORS) or _is_setter(node)


def _is_setter(node):
    """`@name.setter`, of a property of the same class."""
    return isinstance(node, ast.Attribute) and node.attr in ("setter", "getter", "deleter")


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
