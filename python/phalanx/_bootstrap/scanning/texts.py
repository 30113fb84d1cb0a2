"""The texts of modules: where they are found without importing their parents, how they are read, what is in them."""

import ast
import importlib.machinery
import io
import sys
import tokenize

from phalanx._bootstrap import filters, places

SOURCE_BYTES_MAX = 4 << 20


def parsed(source):
    """Without the warnings that a text deserves: Python says them when it compiles it, once."""
    with filters.none():
        return ast.parse(source)


def look_for(name, folders):
    """A dotted name's spec, or None, the part that was looked for last, and where."""
    part, *rest = name.split(".")
    searched = folders
    spec = _find_in(part, [*folders, places.OUR_PARENT] if part == "phalanx" else folders)
    for inner in rest:
        if spec is None:
            break
        part, searched = inner, list(spec.submodule_search_locations or [])
        spec = _find_in(part, searched)
    return spec, part, searched


def _find_in(name, folders):
    """Looks for one part of a dotted name. The finder only uses a name's last part, and would import the others."""
    try:
        return importlib.machinery.PathFinder.find_spec(name, folders)
    except (ImportError, ValueError, KeyError, OSError):
        return None


def is_builtin(top):
    return top in sys.builtin_module_names


def base_of(statement, package):
    """The full name of what an ImportFrom imports from, or None."""
    base = statement.module or ""
    if not statement.level:
        return base
    parts = (package or "").split(".")
    if not package or len(parts) <= statement.level:
        return None
    return ".".join(parts[: len(parts) - statement.level] + ([base] if base else []))


def imports_in(node):
    """Import statements in a statement, but in functions."""
    found, queue = [], [node]
    while queue:
        node = queue.pop(0)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.append(node)
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            queue += ast.iter_child_nodes(node)
    return found


def names_at_top(source):
    """Names that a module binds whatever happens."""
    found = set()
    try:
        body = parsed(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update(alias.asname or alias.name.split(".", 1)[0] for alias in node.names)
        elif isinstance(node, ast.Assign):
            found.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.Delete):
            found.difference_update(getattr(target, "id", None) for target in node.targets)
    return frozenset(found)


def is_main_guard(test):
    return (
        isinstance(test, ast.Compare)
        and getattr(test.left, "id", "") == "__name__"
        and len(test.ops) == 1
        and isinstance(test.ops[0], ast.Eq)
        and getattr(test.comparators[0], "value", None) == "__main__"
    )


def read(path):
    if places.is_read_once(path):
        return None
    try:
        with open(path, "rb") as file:
            source = file.read(SOURCE_BYTES_MAX + 1)
        tokenize.detect_encoding(io.BytesIO(source).readline)
    except (OSError, SyntaxError):
        return None
    return source if len(source) <= SOURCE_BYTES_MAX else None


def why_unread(path):
    """For people, of a file that `read` gives up."""
    if not path:
        return "there is no such module"
    if places.is_read_once(path):
        return f"{path} is a pipe or a device, whose text can be read once"
    try:
        with open(path, "rb") as file:
            size = len(file.read(SOURCE_BYTES_MAX + 1))
    except OSError as error:
        return f"{path}: {error.strerror}"
    return f"{path} is too long" if size > SOURCE_BYTES_MAX else f"{path} is no text that Python reads"


def why_no_python(path, error):
    if isinstance(error, SyntaxError) and error.lineno:
        return f"{path}:{error.lineno}: {error.msg}"
    return f"{path}: {error or type(error).__name__}"
