"""What a script imports, found by reading it and the modules of its own tree, without running a line of them."""

import ast
import importlib.machinery
import io
import os
import sys
import tokenize

from phalanx._bootstrap import places

FILES_MAX = 300
DEPTH_MAX = 50
SOURCE_BYTES_MAX = 4 << 20
OPT_OUT = "# phalanx: cold"
OPT_OUT_LINES = 10


class Scan:
    """`imports`: library modules, in the order of the text. `late`: those imported after the text touched the
    environment; they may read it, so nobody may import them earlier."""

    def __init__(self):
        self.imports = []
        self.late = set()
        self.opted_out = False


def scan(kind, script, cwd):
    """Scans a script (a file's name) or a module (a dotted name). What cannot be read or parsed imports nothing."""
    folder = places.own_folder(kind, script, cwd)
    scanner = _Scanner(folder)
    if kind == "module":
        path, package = scanner.find_main_module(script)
    else:
        path, package = os.path.join(cwd, script), None
    source = _read(path) if path else None
    if source is None:
        return scanner.result
    head = source.splitlines()[:OPT_OUT_LINES]
    scanner.result.opted_out = any(line.strip() == OPT_OUT.encode() for line in head)
    scanner.scan_source(source, package)
    late = scanner.result.late
    scanner.result.imports = [name for name in scanner.result.imports if name not in late]
    return scanner.result


class _Scanner:
    def __init__(self, folder):
        self.result = Scan()
        self._folder = folder
        self._seen_files = set()
        self._seen_names = set()
        self._bytes_left = SOURCE_BYTES_MAX
        self._environment_touched = False
        self._depth = 0

    def find_main_module(self, name):
        """The file that `-m name` runs, or None, and the module's full name. Unlike runpy this imports no parent."""
        spec = self._find(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name += ".__main__"
            spec = self._find(name)
        return (spec.origin if spec is not None else None), name

    def scan_source(self, source, package):
        self._bytes_left -= len(source)
        if self._bytes_left < 0:
            return
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return
        self._walk(tree.body, package)

    def _walk(self, statements, package):
        for statement in statements:
            if isinstance(statement, ast.Import):
                for alias in statement.names:
                    self._wanted(alias.name, certain=True)
            elif isinstance(statement, ast.ImportFrom):
                self._wanted_from(statement, package)
            elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue  # runs later, or never: left to what is learnt
            elif isinstance(statement, ast.If) and _is_type_checking(statement.test):
                self._walk(statement.orelse, package)
            else:
                self._walk_compound(statement, package)

    def _walk_compound(self, statement, package):
        if not hasattr(statement, "body"):
            self._environment_touched |= _touches_environment(statement)
            return
        for part in ("body", "handlers", "orelse", "finalbody", "cases"):
            children = getattr(statement, part, [])
            if part in ("handlers", "cases"):
                for child in children:
                    self._walk(child.body, package)
            elif isinstance(children, list):
                self._walk(children, package)

    def _wanted_from(self, statement, package):
        base = statement.module or ""
        if statement.level:
            parts = (package or "").split(".")
            if not package or len(parts) <= statement.level:
                return
            base = ".".join(parts[: len(parts) - statement.level] + ([base] if base else []))
        if not base:
            return
        self._wanted(base, certain=True)
        for alias in statement.names:
            if alias.name != "*":
                self._wanted(f"{base}.{alias.name}", certain=False)

    def _wanted(self, name, certain):
        if name in self._seen_names:
            return
        self._seen_names.add(name)
        top = name.split(".", 1)[0]
        if self._is_own(top):
            self._follow(name)
        elif certain or self._find(name) is not None:
            (self.result.late.add if self._environment_touched else self.result.imports.append)(name)

    def _is_own(self, top):
        spec = self._find(top)
        places_found = (
            [spec.origin] if spec and spec.origin else list(getattr(spec, "submodule_search_locations", None) or [])
        )
        inside = os.path.join(os.path.realpath(self._folder), "")
        return any(os.path.realpath(p).startswith(inside) and not places.is_library_file(p) for p in places_found)

    def _follow(self, name):
        """A module of the script's own tree: read, with its parents, never imported."""
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            spec = self._find(".".join(parts[:count]))
            if spec is None or not spec.origin or spec.origin in self._seen_files:
                continue
            if len(self._seen_files) >= FILES_MAX or self._depth >= DEPTH_MAX or not spec.origin.endswith(".py"):
                return
            self._seen_files.add(spec.origin)
            source = _read(spec.origin)
            if source is None:
                return
            # Relative imports count from the package: of a package that is itself, of a module its parent.
            is_package = spec.submodule_search_locations is not None
            self._depth += 1
            self.scan_source(source, ".".join(parts[:count]) + (".__init__" if is_package else ""))
            self._depth -= 1

    def _find(self, name):
        """Where `name` would be imported from in the script's process, found without importing its parents."""
        top, *rest = name.split(".")
        folders = sys.path if places.script_folder_is_left_out() else [self._folder, *sys.path]
        spec = _find_in(top, folders)
        for part in rest:
            if spec is None:
                return None
            spec = _find_in(part, list(spec.submodule_search_locations or []))
        return spec


def _find_in(name, folders):
    """Looks for one part of a dotted name. The finder only uses a name's last part, and would import the others."""
    try:
        return importlib.machinery.PathFinder.find_spec(name, folders)
    except (ImportError, ValueError, KeyError, OSError):
        return None


def _is_type_checking(test):
    return getattr(test, "id", getattr(test, "attr", "")) == "TYPE_CHECKING"


def _touches_environment(statement):
    """os.environ changed in any of the usual ways. Reading it is fine."""
    for node in ast.walk(statement):
        if isinstance(node, (ast.Assign, ast.Delete, ast.AugAssign, ast.AnnAssign)):
            targets = getattr(node, "targets", None) or [node.target]
            if any(_mentions_environ(target) for target in targets):
                return True
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("putenv", "unsetenv", "load_dotenv"):
                return True
            changes = ("update", "setdefault", "pop", "popitem", "clear", "__setitem__", "__delitem__")
            if node.func.attr in changes and _mentions_environ(node.func.value):
                return True
    return False


def _mentions_environ(node):
    return any(getattr(part, "attr", getattr(part, "id", "")) in ("environ", "environb") for part in ast.walk(node))


def _read(path):
    try:
        with open(path, "rb") as file:
            source = file.read(SOURCE_BYTES_MAX + 1)
        tokenize.detect_encoding(io.BytesIO(source).readline)
    except (OSError, SyntaxError):
        return None
    return source if len(source) <= SOURCE_BYTES_MAX else None
