"""What a class of the user's own does without being called: when its members are made, when one looks at them."""

import ast
import collections

# What an enumeration may bind without its being run when the members are made, or one of them is only taken.
_HARMLESS_OF_MEMBERS = frozenset(
    "__call__ __eq__ __format__ __ge__ __gt__ __hash__ __le__ __lt__ __ne__ __repr__ __str__".split()
)
_MAKERS = ("_generate_next_value_", "_missing_")
_SAY_NOTHING = frozenset("__all__ __annotations__ __doc__ __module__ __name__ __qualname__ __slots__".split())
_ANSWER_FOR_ALL = frozenset(("__getattr__", "__getattribute__"))
# By these a class itself runs code where it is looked at, given an argument in brackets, asked whose class it is.
_BY_ITSELF = frozenset(("__class_getitem__", "__get__", "__subclasshook__"))
# By these a member is told of the class that holds it, or asked by what makes that one (dataclasses show defaults).
_BY_HOLDER = frozenset(("__get__", "__getattr__", "__getattribute__", "__hash__", "__repr__", "__set_name__"))
_PLAIN_DECORATORS = ("abstractmethod", "classmethod", "final", "overload", "override", "staticmethod")


class Class(collections.namedtuple("Class", "is_base is_enum odd holds")):
    """`is_base`: whether deriving from it runs nothing of its own; `is_enum`: whether its attributes may be values of
    its own kind; `odd`: names that it or a base of its own binds to more than plain methods, and special ones; `holds`:
    names of attributes that may be values of a library, or of an odd class, or modules."""

    def runs_for_members(self):
        makers = (name for name in self.odd if name.startswith("__") or name in _MAKERS)
        return self.is_enum and any(name not in _HARMLESS_OF_MEMBERS for name in makers)

    def is_odd(self):
        """Whether taking an attribute of it may give a value that runs its own code, or it does so itself."""
        return self.runs_by_itself() or bool(self.holds) or (self.is_enum and bool(self.odd))

    def runs_by_itself(self):
        return not self.odd.isdisjoint(_BY_ITSELF)

    def makes_odd(self, parts):
        """Whether what stands behind its name, in parts, is a value that may run its own code."""
        if self.runs_by_itself():
            return True
        if not self.is_odd() or not parts:
            return False
        if parts[0] in self.holds or (self.holds and parts[0].startswith("__")):
            return True
        return self.is_enum and bool(self.odd) and (len(parts) == 1 or self.answers(parts[1]))

    def answers(self, name):
        """Whether that attribute of a member is one of the class's own making."""
        return name in self.odd or not self.odd.isdisjoint(_ANSWER_FOR_ALL)

    def may_be_held(self):
        """Whether a class may have one of its members as an attribute: nothing of the member's runs then."""
        return not self.holds and self.odd.isdisjoint(_BY_HOLDER)


def described(statement, bases, is_base, is_enum):
    """The Class that a statement makes; `bases`: those of the user's own that it has."""
    odd = _odd_in(statement).union(*(base.odd for base in bases))
    holds = frozenset().union(*(base.holds for base in bases))
    return Class(is_base, is_enum or any(base.is_enum for base in bases), odd, holds)


def _odd_in(statement):
    odd = {name for name in bound_in(statement) if name.startswith("__") and name not in _SAY_NOTHING}
    odd |= bound_in(statement).intersection(_MAKERS)
    if any(
        _last_name(decorator) not in ("final", "total_ordering", "unique") for decorator in statement.decorator_list
    ):
        odd.add("__init__")  # dataclasses make one, others whatever they like
    for node in ast.walk(statement):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or not node.decorator_list:
            continue
        decorators = [_last_name(decorator) for decorator in node.decorator_list]
        if any(name not in _PLAIN_DECORATORS for name in decorators):
            odd.add(node.name)
        if len(decorators) > 1 and "classmethod" in decorators and node.name in odd:
            odd.add("__get__")  # a property of the class, up to Python 3.12
    return odd


def _last_name(node):
    node = node.func if isinstance(node, ast.Call) else node
    return getattr(node, "id", getattr(node, "attr", ""))


def bound_in(statement):
    """Names that are bound anywhere in a class, or may be."""
    found = {
        alias.asname or alias.name
        for node in ast.walk(statement)
        for alias in getattr(node, "names", ())
        if isinstance(alias, ast.alias)
    }
    for node in ast.walk(statement):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node is not statement:
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def strings_in(node):
    """The texts of a list or tuple, or of a sum of such, that stands there; None: it is another value."""
    if isinstance(node, (ast.List, ast.Tuple)):
        texts = [getattr(part, "value", None) for part in node.elts]
        return texts if all(isinstance(text, str) for text in texts) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = strings_in(node.left), strings_in(node.right)
        return None if left is None or right is None else [*left, *right]
    return None
