"""What a statement takes of modules and of the environment: names that taken.Taken watches."""

import ast

_READS = ("os.environ.get", "os.getenv")
_READ_ANY = ("os.getenv", "os.path.expanduser", "os.path.expandvars", "pathlib.Path.home")
_ENVIRONMENT = "os.environ"
# What a call of it depends on, beside what it is itself.
_BEHIND = {"logging.getLogger": ("logging._loggerClass", "logging.Logger.manager.loggerClass")}
CONTENTS = "[]"  # behind a name: of a container, what is in it, too
# Between the name of a module that `from a.b import c` asks, which is that in sys.modules, and what it is asked for.
# What stands behind a dot is an attribute of what stands before it, and a.b may be no module.
OF = ":"


def place_of_import(module, name):
    """What `from module import name` takes."""
    return f"{module}{OF if '.' in module else '.'}{name}"


def shown(place):
    """For people."""
    name = place.partition(CONTENTS)[0]
    is_variable = name.startswith(_ENVIRONMENT + OF)
    return name.replace(OF, " " if is_variable else ".").strip()


def taken_by(statement, names, computes_annotations=True):
    """Names, as scan.Scan.taken has them, of what a statement evaluates where it stands, and so may look into; `names`:
    naming.Names of its text. What its functions take when they are called is not among them, nor what stands in its
    blocks."""
    found, left = [], [statement]
    while left:
        node = left.pop()
        variable = _variable(node, names)
        if variable is not None:
            found.append(f"{_ENVIRONMENT}:{variable}")
            continue
        is_look = isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Load)
        full = names.full_name(node) if is_look else None
        if isinstance(node, ast.Attribute) and node.attr == "expanduser":
            found.append(f"{_ENVIRONMENT}:")  # of whatever it is: a path reads a variable then
        if full is not None and (full + ".").startswith(_ENVIRONMENT + "."):
            found.append(f"{_ENVIRONMENT}:")
        elif full is not None:
            found += [place + CONTENTS for place in (_place_of(full, node, names), *_BEHIND.get(full, ()))]
            if full in _READ_ANY:
                found.append(f"{_ENVIRONMENT}:")
        looked_at = _attribute(node, names)
        left += [looked_at] if looked_at is not None else _evaluated(node, computes_annotations)
    return found


def _place_of(full, node, names):
    """The name that the walk of taken.Taken goes: of a value that a call has made, and nobody else has, what was
    called."""
    if "." not in full:
        is_builtin = isinstance(node, ast.Name) and node.id not in names.bound
        return f"builtins.{full}" if is_builtin else full
    owner, parts = names.found(node)
    made = owner.made.get(parts[0]) if parts and parts[0] not in owner.imported else None
    if made is not None:
        return made
    base = owner.bases.get(parts[0]) if parts else None
    return full if base is None else place_of_import(base, full[len(base) + 1 :])


def _variable(node, names):
    """The variable that an expression looks up, where it names one; else None."""
    key = None
    if isinstance(node, ast.Call) and names.full_name(node.func) in _READS and len(node.args) in (1, 2):
        key = node.args[0] if all(isinstance(part, ast.Constant) for part in node.args) else None
    elif isinstance(node, ast.Subscript) and names.full_name(node.value) == _ENVIRONMENT:
        key = getattr(node.slice, "value", None) if type(node.slice).__name__ == "Index" else node.slice
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        key = node.left if names.full_name(node.comparators[0]) == _ENVIRONMENT else None
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None


def _attribute(node, names):
    """`value.name` for getattr(value, "name", ...) and hasattr(value, "name"), else None."""
    if not isinstance(node, ast.Call) or names.full_name(node.func) not in ("getattr", "hasattr"):
        return None
    name = node.args[1] if len(node.args) > 1 else None
    if not isinstance(getattr(name, "value", None), str):
        return None
    return ast.Attribute(node.args[0], name.value, ast.Load())


_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def _evaluated(node, computes_annotations):
    """The parts of a node that are evaluated with it."""
    if isinstance(node, (ast.If, ast.Try, ast.With, ast.For, ast.While, ast.ClassDef)):
        found = [(field, value) for field, value in ast.iter_fields(node) if field not in _BLOCKS]
        parts = [part for _, value in found for part in (value if isinstance(value, list) else [value])]
        return [part for part in parts if isinstance(part, ast.AST)]
    if isinstance(node, (ast.AnnAssign, ast.arg)) and not computes_annotations:
        return [part for part in (getattr(node, "target", None), getattr(node, "value", None)) if part is not None]
    if isinstance(node, ast.Lambda):
        return [*node.args.defaults, *filter(None, node.args.kw_defaults)]
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return [*node.decorator_list, node.args, *filter(None, [node.returns if computes_annotations else None])]
    return list(ast.iter_child_nodes(node))
