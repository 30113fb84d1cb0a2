"""Which statements cannot change what a later import does: constants, definitions, a few calls that make a value.

The answer errs on the safe side: what is not known to be harmless is not.
"""

import ast
import builtins
import sys

from phalanx._bootstrap.scanning import own
from phalanx._bootstrap.scanning.naming import LOGGER, VALUES, carries, is_foreign, is_known
from phalanx._bootstrap.watching import watch

# What values these make: methods of "text" make text, those of a "container" change that one at most. What other
# methods do is not known: Path(..).unlink(), getLogger(..).setLevel(..).
_VALUES_OF = {
    **dict.fromkeys("bytes float int range repr str os.environ.get os.fspath os.getcwd os.getenv".split(), "text"),
    **dict.fromkeys("dict frozenset list set sorted tuple".split(), "container"),
    "re.compile": "pattern",
    LOGGER: LOGGER,
}
_PATTERN_METHODS = frozenset("findall finditer fullmatch match search split".split())
_PATH_METHODS = frozenset(
    "absolute as_posix as_uri exists expanduser is_absolute is_dir is_file is_relative_to joinpath match relative_to "
    "resolve samefile with_name with_stem with_suffix".split()
)
_PATH_ASKS = frozenset("exists is_dir is_file resolve samefile".split())
_REALPATH = "os.path.realpath"
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

_MAKE_BASES = ("collections.namedtuple", "typing.NamedTuple", "typing.NewType")
_TYPE_CHECKING = ("typing.TYPE_CHECKING", "typing_extensions.TYPE_CHECKING")
_METACLASSES = ("type", "abc.ABCMeta", "enum.EnumMeta", "enum.EnumType")
# Of the standard library, but each import may change them.
_CHANGED_BY_IMPORTS = (
    "logging.getLogger.",
    "logging.root",
    "sys.meta_path",
    "sys.modules",
    "sys.path",
    "warnings.filters",
)

# What a place does at which the prefix ends, for people, behind that place.
DOES_SOMETHING = "does something: what follows may depend on it"
SETS_VARIABLES = "sets variables: what follows may read them"
OTHER_STATEMENT = "is a statement whose parts may run, or not, or more than once"
CHANGES_OTHERS = "changes something that others have, too: what follows may depend on it"
UNKNOWN_IF = "decides by what is not known beforehand"
TAKES_ALL = "takes all names of a library's module, and each may be an import"
LOOKS_PERHAPS = "looks at a library's name perhaps, which may be an import"
MAY_RAISE = "may raise, and what is done then or left out is not known to be nothing"
NOT_FOUND = "is not found beforehand, so what it does is not known"
_DECORATOR = "is decorated by what is not known to make nothing but a function or a class"
_BASE = "derives a class from a library's class, which may be told of it, and do anything then"
_OWN_BASE = "derives a class from one that may be told of it, and do anything then"
_MAKES_MEMBERS = "makes members of an enumeration by code of the user's own"
HELD_BY_CLASS = "holds a value of a library, or of the user's own, that may be told of the class that holds it"
UNKNOWN_ALL = "takes what a list gives that is not known beforehand, and each may be an import"
OWN_LAZY = "takes a name that a module of the user's own may answer with an import"
_DEFINITION = "is a definition that calls something as it is made"

_PLAIN = (
    *(ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Set, ast.Dict),
    *(ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.JoinedStr, ast.FormattedValue, ast.Starred),
    *(ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
    *((ast.Index, ast.ExtSlice) if sys.version_info < (3, 9) else ()),
)


def harmless(node, names):
    """Whether evaluating an expression (None: none) can change nothing that a later import sees."""
    if node is None:
        return True
    if names.computes and any(carries(part, names) for part in _operands(node)):
        return False
    if isinstance(node, ast.Name) and _is_changed_by_imports(names.full_name(node), names):
        return False
    if _first_name(node) == "__builtins__":
        return False  # whatever imports put there is seen by no name of a module
    if not names.computes and isinstance(node, ast.Subscript) and is_foreign(node.value, names):
        return False  # a library's own __class_getitem__
    if isinstance(node, ast.Lambda):
        return all(harmless(part, names) for part in [*node.args.defaults, *node.args.kw_defaults])
    if isinstance(node, ast.Call):
        return _harmless_call(node, names)
    if isinstance(node, ast.Attribute):
        return _harmless_look(node, names)
    if isinstance(node, (ast.IfExp, ast.BoolOp)):
        return _without_looks(list(ast.iter_child_nodes(node)), names)
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
        return _harmless_comprehension(node, names)
    return isinstance(node, _PLAIN) and all(harmless(child, names) for child in ast.iter_child_nodes(node))


def _first_name(node):
    while isinstance(node, ast.Attribute):
        node = node.value
    return getattr(node, "id", None)


def _harmless_comprehension(node, names):
    values = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
    turns = []
    for loop in node.generators:
        values += [loop.iter, *loop.ifs]
        if any(carries(part, names, True) for part in (loop.iter, *loop.ifs)):
            return False
        turns += getattr(loop.target, "elts", [loop.target])
    if not all(isinstance(part, ast.Name) for part in turns):
        return False  # one that is set in each turn
    return _without_looks(values, names.hiding(part.id for part in turns))


# Expressions that run code of the values in them, and which of their parts these are.
_OPERATED = {
    ast.BinOp: ("left", "right"),
    ast.BoolOp: ("values",),
    ast.Compare: ("left", "comparators"),
    ast.Dict: ("keys",),
    ast.FormattedValue: ("value",),
    ast.IfExp: ("test",),
    ast.Set: ("elts",),
    ast.Starred: ("value",),
    ast.Subscript: ("value", "slice"),
    ast.UnaryOp: ("operand",),
}
# Calls that keep what they are given, and do nothing with it.
_KEEPING = ("dataclasses.field", "functools.partial", "functools.wraps", "getattr", "types.SimpleNamespace", "typing")


def _operands(node):
    """The parts of an expression whose own code it runs."""
    if isinstance(node, ast.Compare) and all(isinstance(operator, (ast.Is, ast.IsNot)) for operator in node.ops):
        return []
    found = []
    for field in _OPERATED.get(type(node), ()):
        value = getattr(node, field)
        found += value if isinstance(value, list) else [value]
    if isinstance(node, (ast.BinOp, ast.Starred)):  # lists are put together, and what is in them left alone
        found = [value for value in found if not isinstance(value, (ast.List, ast.Tuple))]
    return found


def harmless_annotation(node, names):
    """Types that libraries have are put together there: Optional[library.Type], library.Type | None."""
    before, names.computes = names.computes, False
    answer = harmless(node, names)
    names.computes = before
    return answer


def _is_changed_by_imports(full, names):
    """Whether it is another thing behind the imports to come: of the prefix all have happened. Behind it none counts
    that could."""
    return names.calls is VALUES and full is not None and full.startswith(_CHANGED_BY_IMPORTS)


def _harmless_look(node, names):
    if carries(node.value, names) and not _is_plain_of_member(node, names):
        return False
    full = names.full_name(node)
    if isinstance(node.value, ast.Call):
        full = f"{names.full_name(node.value.func)}.{node.attr}"  # as of a name for what was made
        return not _is_changed_by_imports(full, names) and harmless(node.value, names)
    if _is_changed_by_imports(full, names):
        return False
    if full is None:
        owner, parts = names.found(node)
        is_there = owner is names or not owner.is_open or not parts or parts[0] in owner.bound
        return is_there and harmless(node.value, names)
    if is_known(full):
        return harmless(node.value, names)
    package, _, attributes = full.partition(".")
    for name in sorted(names.imported.values(), key=len):
        if full.startswith(name + "."):
            package, attributes = name, full[len(name) + 1 :]
    names.looks.append(f"{package}:{attributes}")
    return True


def _is_plain_of_member(node, names):
    """Whether it is an attribute of a member of the user's own enumeration that no code of the class answers."""
    owner, parts = names.found(node)
    if len(parts) != 3 or parts[0] in owner.foreign or parts[0] not in owner.classes:
        return False
    known = owner.classes[parts[0]]
    return known.is_enum and not known.makes_odd(parts[1:])


def _without_looks(nodes, names):
    """Of expressions that may be evaluated or not, or several times."""
    before = len(names.looks)
    answer = all(harmless(node, names) for node in nodes) and len(names.looks) == before
    del names.looks[before:]
    return answer


def _harmless_call(node, names):
    parts = [*node.args, *(keyword.value for keyword in node.keywords)]
    if not all(harmless(part, names) and _harmless_when_called(part, names) for part in parts):
        return False
    if any(keyword.arg == "key" and not isinstance(keyword.value, ast.Lambda) for keyword in node.keywords):
        return False  # a function that is called there
    full = names.full_name(node.func)
    if full in ("re.sub", "re.subn") and value_of(node.args[1] if len(node.args) > 1 else None, names) != "text":
        return False  # it may be a function
    if (full or "").startswith("copy.") and any(names.full_name(part) == "os.environ" for part in parts):
        return False  # another os.environ, which sets variables that the first does not know of
    if any(carries(part, names, True) for part in parts) and not (full or "").startswith(_KEEPING):
        return False
    if full in ("getattr", "hasattr"):
        return _harmless_getattr(node, names)
    if full == _REALPATH and names.calls is VALUES and not _is_where_it_stands(node, names):
        return False  # an import may make a link there
    if full == "type" and len(node.args) != 1:
        return False  # it makes a class
    if full is not None and names.may_call(full):
        return True
    if any(map(names.is_of_a_module, parts)):
        return False  # a container may keep it
    return isinstance(node.func, ast.Attribute) and value_of(node, names) is not None and harmless(node.func, names)


def _harmless_when_called(node, names):
    """What is handed over may be called there."""
    if not isinstance(node, ast.Lambda):
        return True
    return harmless(node.body, names.hiding(arguments_of(node)))


def _harmless_getattr(node, names):
    """getattr(value, "name") is value.name; a name that may be missing, nobody can look for ahead of time."""
    if len(node.args) == 2 and isinstance(getattr(node.args[1], "value", None), str) and node.func.id == "getattr":
        return harmless(ast.Attribute(node.args[0], node.args[1].value, ast.Load()), names)
    value = node.args[0] if node.args else None
    full = names.full_name(value)
    name = getattr(node.args[1], "value", None) if len(node.args) > 1 else None
    if carries(value, names) or isinstance(value, ast.Starred):
        return False
    owner, parts = names.found(value)
    if owner is not names and not parts and owner.is_open and name not in owner.bound:
        return False  # a module of the user's own, which may answer with an import
    if names.calls is VALUES and (not isinstance(name, str) or _is_changed_by_imports(f"{full}.{name}", names)):
        return False
    return is_known(full) if full else getattr(value, "id", None) in names.bound


def value_of(node, names):
    """What is known of the value of an expression: one of KINDS, the dotted name of what made it, or None."""
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
        asks = names.calls is VALUES and node.func.attr in _PATH_ASKS
        if asks and not (node.func.attr == "resolve" and _is_where_it_stands(node, names)):
            return None  # a later import may make what it asks for
        return "path" if node.func.attr in _PATH_METHODS else None
    if value == "pattern":
        return "text" if node.func.attr in _PATTERN_METHODS else None
    return {"text": "text", "container": "anything"}.get(value)


def _is_where_it_stands(node, names):
    """Whether a path is where the text itself stands, or a folder above it: no import puts a link there.
    (Path(__file__).parent / "..").resolve()"""
    if isinstance(node, ast.Name):
        return node.id == "__file__" and node.id not in names.bound
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        return _is_where_it_stands(node.value, names)
    if isinstance(node, ast.BinOp):
        return getattr(node.right, "value", None) == ".." and _is_where_it_stands(node.left, names)
    if not isinstance(node, ast.Call):
        return False
    full = names.full_name(node.func) or ""
    is_function = full.startswith(("os.path.", "pathlib."))
    first, *rest = [*node.args, None] if is_function else [getattr(node.func, "value", None), *node.args]
    is_above = all(part is None or getattr(part, "value", None) in ("..", True, False) for part in rest)
    return is_above and _is_where_it_stands(first, names)


def harmless_target(node, names):
    """Whether finding the place that a value is put to runs nothing: `place.name`, `place[key]`."""
    parts = [getattr(node, field, None) for field in ("value", "slice")]
    return all(harmless(part, names) and not carries(part, names, True) for part in parts)


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
        parts = [keyword.value for keyword in statement.keywords]
        for base in [*statement.bases, *(word.value for word in statement.keywords if word.arg in ("metaclass", None))]:
            why = _harm_of_base(base, names)
            if why is not None:
                return statement, why
        if class_made_by(statement, names).runs_for_members():
            return statement, _MAKES_MEMBERS
    else:
        parts = defaults_of(statement)
        annotations = [argument.annotation for argument in _arguments_in(statement.args)]
        if not all(harmless_annotation(part, names) for part in [*annotations, statement.returns]):
            return statement, _DEFINITION
    return None if all(harmless(part, names) for part in parts) else (statement, _DEFINITION)


def _arguments_in(arguments):
    every = [*getattr(arguments, "posonlyargs", ()), *arguments.args, *arguments.kwonlyargs]
    return every + [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]


def arguments_of(function):
    """The names that a `def` or a lambda is given."""
    return [argument.arg for argument in _arguments_in(function.args)]


def defaults_of(function):
    return [*function.args.defaults, *function.args.kw_defaults]


def is_called_itself(function):
    """Whether a call of that name runs this body: else it has a decorator that chooses among several."""
    decorators = [node.func if isinstance(node, ast.Call) else node for node in function.decorator_list]
    return all(getattr(node, "id", getattr(node, "attr", "")) != "singledispatch" for node in decorators)


def _harm_of_base(node, names):
    """A base may be told of its subclasses, and do anything then."""
    if isinstance(node, ast.Call):
        full = names.full_name(node.func)
        return None if full in _MAKE_BASES and harmless(node, names) else _DEFINITION
    if isinstance(node, ast.Subscript):
        return _harm_of_base(node.value, names) if harmless_annotation(node.slice, names) else _DEFINITION
    owner, parts = names.found(node)
    if len(parts) == 1 and parts[0] in owner.classes:
        return None if owner.classes[parts[0]].is_base else _OWN_BASE
    full = names.full_name(node)
    if full is None:
        return _OWN_BASE
    return None if is_known(full) or full in vars(builtins) else (_BASE if "." in full else _OWN_BASE)


def class_made_by(statement, names):
    """own.Class of a class statement, in the names around it."""
    full_names = [names.full_name(base) or "" for base in statement.bases]
    bases = [known for known in map(names.class_of, statement.bases) if known is not None]
    is_enum = any(full.startswith("enum.") for full in full_names)
    return own.described(statement, bases, _is_base(statement, names), is_enum)


def _is_base(statement, names):
    """Whether a class of the text can be derived from without running anything of its own."""
    if statement.keywords and any(names.full_name(word.value) != "abc.ABCMeta" for word in statement.keywords):
        return False
    if any(names.full_name(base) in _METACLASSES for base in statement.bases):
        return False
    told = ("__init_subclass__", "__class_getitem__", "__mro_entries__", "__prepare__", "__set_name__")
    return own.bound_in(statement).isdisjoint(told)


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


def catches(kind, error):
    """Whether `except kind` catches an error of that class; None where that is not known."""
    if kind is None:
        return True
    known = [getattr(builtins, getattr(part, "id", ""), None) for part in getattr(kind, "elts", [kind])]
    answers = [issubclass(error, one) if isinstance(one, type) else None for one in known]
    return True if True in answers else (None if None in answers else False)


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


def known_truth(test, names):
    """What the test of an `if` comes to in every rank: True, False, or None where it is not known."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = known_truth(test.operand, names)
        return None if inner is None else not inner
    if getattr(test, "id", getattr(test, "attr", "")) == "TYPE_CHECKING":
        full = names.full_name(test) or ""
        return False if full in ("TYPE_CHECKING", *_TYPE_CHECKING) else None
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1):
        return None
    left, right = ast.dump(test.left), test.comparators[0]
    if left == ast.dump(ast.Name("__name__", ast.Load())):
        return None
    known = {"sys.version_info": tuple(sys.version_info), "sys.platform": sys.platform}
    value = known.get(names.full_name(test.left))
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
