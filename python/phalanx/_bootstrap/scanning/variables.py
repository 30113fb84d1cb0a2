"""Variables that a script sets to what stands in its text. Who knows them can import what comes behind as the script
would. A *setting* is ("set", name, value), ("default", name, value), which leaves one alone that is set, or
("unset", name)."""

import ast

_OF_OPENMP = ("GOMP_", "KMP_", "OMP_")


def set_by(statement, names):
    """The settings, in their order, where they are all that a statement does; else None."""
    if isinstance(statement, ast.Assign):
        found = [_of_target(target, statement.value, names) for target in statement.targets]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        found = _of_call(statement.value, names)
    else:
        return None
    return None if None in found else found


def settle(settings, environment):
    """{name: value, None: unset} of the variables that an environment (a dict) has otherwise behind all of these."""
    after = dict(environment)
    for what, name, *value in settings:
        if what == "unset":
            after.pop(name, None)
        elif what == "set" or name not in after:
            after[name] = value[0]
    return {name: after.get(name) for _, name, *_ in settings if after.get(name) != environment.get(name)}


def _of_target(target, value, names):
    if not isinstance(target, ast.Subscript) or names.full_name(target.value) != "os.environ":
        return None
    index = target.slice.value if type(target.slice).__name__ == "Index" else target.slice  # Python 3.8
    return _setting("set", index, value)


def _of_call(call, names):
    full, args = names.full_name(call.func), call.args
    if full == "os.environ.update" and len(args) <= 1 and all(isinstance(given, ast.Dict) for given in args):
        pairs = [pair for given in args for pair in zip(given.keys, given.values)]
        pairs += [(ast.Constant(word.arg), word.value) for word in call.keywords]
        return [_setting("set", name, value) for name, value in pairs]
    if len(args) != 2 or call.keywords:
        return [None]
    if full == "os.environ.setdefault":
        return [_setting("default", *args)]
    if full == "os.environ.pop" and isinstance(args[1], ast.Constant) and _name(args[0]) is not None:
        return [("unset", _name(args[0]))]
    return [None]


def _setting(what, name, value):
    name, value = _name(name), _text(value)
    return None if name is None or value is None else (what, name, value)


def _name(node):
    """None for those that Python refuses, and those by which a process chooses the processors of its threads when
    OpenMP is loaded: the zygote's are no rank's."""
    name = _text(node)
    if not name or "=" in name or (name.startswith(_OF_OPENMP) and name != "OMP_NUM_THREADS"):
        return None
    return name


def _text(node):
    """What stands there, where a variable can have it for a name or a value."""
    text = node.value if isinstance(node, ast.Constant) else None
    return text if isinstance(text, str) and text.isascii() and text.isprintable() else None
