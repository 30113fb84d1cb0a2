"""Names of our own modules: what is imported from one, or asked of one, it has. Python finds out only where that line
runs, which for a framework's adapter is a test of minutes.
"""

import ast
import posixpath

from tools.lint.project import Finding

# {top of a dotted name: the folder that has it}
ROOTS = {"phalanx": "python", "tools": "."}
ANYTHING = None  # a module that makes its names as it runs


class Modules:
    def __init__(self, project):
        self._project, self._names = project, {}

    def path_of(self, module):
        """Of a module of ours, or None."""
        root = ROOTS.get(module.partition(".")[0])
        if root is None:
            return None
        base = posixpath.normpath(posixpath.join(root, *module.split(".")))
        return next((path for path in (f"{base}.py", f"{base}/__init__.py") if path in self._project.files), None)

    def has(self, module, name):
        path = self.path_of(module)
        if path is None or self.path_of(f"{module}.{name}") is not None:
            return True
        if path not in self._names:
            self._names[path] = names_of(ast.parse(self._project.text(path)))
        names = self._names[path]
        return names is ANYTHING or name in names or (name.startswith("__") and name.endswith("__"))


def own_imports(project):
    modules = Modules(project)
    for path in project.python():
        try:
            tree = ast.parse(project.text(path))
        except SyntaxError:
            continue  # ruff says so
        aliases = {}  # {name: the module of ours that it is}
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or node.level or modules.path_of(node.module) is None:
                continue
            for alias in node.names:
                if alias.name != "*" and not modules.has(node.module, alias.name):
                    yield Finding(path, node.lineno, "own-import", f"{node.module} has no {alias.name}")
                inner = f"{node.module}.{alias.name}"
                if modules.path_of(inner) is not None:
                    aliases[alias.asname or alias.name] = inner
        if not aliases:
            continue
        for name in set(aliases) & bound_otherwise(tree):
            del aliases[name]
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
                continue
            module = aliases.get(node.value.id) if isinstance(node.value, ast.Name) else None
            if module is not None and not modules.has(module, node.attr):
                yield Finding(path, node.lineno, "own-import", f"{module} has no {node.attr}")


def names_of(tree):
    """Those of a module, wherever in it they are bound outside of functions and classes."""
    names, left = set(), [tree]
    while left:
        for node in ast.iter_child_nodes(left.pop()):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(node.name)
                continue
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            left.append(node)
    return ANYTHING if names & {"*", "__getattr__"} else names


def bound_otherwise(tree):
    """Names that are bound by something else than an import: they may be no module there."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return names
