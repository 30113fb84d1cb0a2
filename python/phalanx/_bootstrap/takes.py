"""What a statement takes of modules and of the environment: names that taken.Taken watches."""

import ast

_READS = ("os.environ.get", "os.getenv")
_ENVIRONMENT = "os.environ"
# What a call of it depends on.
_BEHIND = {"logging.getLogger": "logging._loggerClass"}


def taken_by(statement, names):
    """Dotted names, as scan.Scan.taken has them, of what a statement evaluates where it stands; `names`: effects.Names
    of its text. What its functions take when they are called is not among them."""
    found, left = [], [statement]
    while left:
        node = left.pop()
        variable = _variable(node, names)
        if variable is not None:
            found.append(f"{_ENVIRONMENT}:{variable}")
            continue
        full = names.full_name(node) if isinstance(node, (ast.Attribute, ast.Name)) else None
        if full is not None and (full + ".").startswith(_ENVIRONMENT + "."):
            found.append(f"{_ENVIRONMENT}:")
        elif full is not None and "." in full:
            found.append(_BEHIND.get(full, full))
        left += _evaluated(node)
    return found


def _variable(node, names):
    """The variable that an expression looks up, where it names one; else None."""
    key = None
    if isinstance(node, ast.Call) and names.full_name(node.func) in _READS and len(node.args) == 1:
        key = node.args[0]
    elif isinstance(node, ast.Subscript) and names.full_name(node.value) == _ENVIRONMENT:
        key = node.slice
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        key = node.left if names.full_name(node.comparators[0]) == _ENVIRONMENT else None
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None


def _evaluated(node):
    """The parts of a node that are evaluated with it."""
    if isinstance(node, ast.Lambda):
        return [*node.args.defaults, *filter(None, node.args.kw_defaults)]
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return [*node.decorator_list, node.args, *filter(None, [node.returns])]
    return list(ast.iter_child_nodes(node))
