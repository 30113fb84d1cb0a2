"""What a script imports and when, found by reading it and the modules of its own tree, without running a line of them.

The text is followed in the order in which Python would run it. The *prefix* are the library modules that it imports
before the first statement that could change what a later import does: so a process that imports just these, in this
order, is where the script itself would be. What comes behind is known by name only.

One file: each kind of statement moves the same state, the phase, the names and what is found.
"""

import ast
import collections
import contextlib
import itertools
import os
import sys

from phalanx._bootstrap import places
from phalanx._bootstrap.scanning import effects, naming, takes, texts, variables

FILES_MAX = 300
DEPTH_MAX = 50
OPT_OUT = "# phalanx: cold"
OPT_OUT_LINES = 10
LINE_SHOWN = 80


End = collections.namedtuple("End", "path line text why")
End.__doc__ = """Where a text does something that later imports may depend on: `text` is that line, `why` for people."""


class Scan:
    """`prefix`: library modules, in order; "package:name" stands for a look at a name of a package, which it may answer
    with an import. `usual`: those imported behind it with nothing but usual things between
    (naming.USUAL). `later`: those behind. `end`: the End of the prefix, None where all of it is prefix; `usual_end`
    that of what is usual. `own`: the user's own modules, in their order. `where`: {name: (path, line)} of all of these.
    `attributes`: names of `prefix` that may be values of their packages (from package import name).
    `taken`: {name of a library's module and of what the text takes of it, dotted: the numbers of steps of the
    prefix before each place}, for taken.Taken.
    `texts`: the files that say so, as they were: {path: places.version_of(path)}.
    `absent`: names of modules that a `try` looks for, and that nobody has; `folders`: where they are looked for.
    `modules`: {file: name} of the user's own modules.
    `settings`: of variables, which the text sets before `usual` (variables.py).
    `unread`: why the file that runs cannot be read or parsed, None where it can."""

    def __init__(self):
        self.prefix = []
        self.usual = []
        self.later = []
        self.own = []
        self.where = {}
        self.end = None
        self.usual_end = None
        self.unread = None
        self.opted_out = False
        self.attributes = set()
        self.taken = {}
        self.main = None  # the file that runs
        self.module = None  # its full name, where it runs as a module
        self.texts = {}
        self.absent = set()
        self.folders = []
        self.modules = {}
        self.settings = []

    @property
    def ends(self):
        """What ended the prefix, for people: "train.py:12: configure()"; or None."""
        return None if self.end is None else f"{self.end.path}:{self.end.line}: {self.end.text}"

    def statements(self):
        """{name: (path, line, name of the module)}: where the text first imports them, or looks at them."""
        return {name: (path, line, self.modules.get(path, "__main__")) for name, (path, line) in self.where.items()}

    def is_of_the_same_texts(self):
        """Whether those files are what they were."""
        return all(places.version_of(path) == version for path, version in self.texts.items())

    def come(self):
        """The first of `absent` that is there by now, or None."""
        return next((name for name in sorted(self.absent) if texts.look_for(name, self.folders)[0] is not None), None)


def scan(kind, script, cwd):
    """Scans a script (a file's name) or a module (a dotted name). What cannot be read or parsed imports nothing."""
    scanner = _Scanner(places.own_folder(kind, script, cwd))
    if kind == "module":
        path, package = scanner.follow_parents(script)
    else:
        path, package = os.path.join(cwd, script), None
    scanner.result.main, scanner.result.module = path, package
    source = scanner.read(path) if path else None
    if source is None:
        scanner.result.unread = texts.why_unread(path)
        return scanner.result
    head = source.splitlines()[:OPT_OUT_LINES]
    scanner.result.opted_out = any(line.strip() == OPT_OUT.encode() for line in head)
    scanner.scan_source(source, path, package, is_main=True)
    return scanner.result


class _Text:
    """One module's text: where it is, what its names stand for, the functions that it defines."""

    def __init__(self, source, path, package, is_main):
        self._lines = source.splitlines()
        self.path = path
        self.package = package
        self.is_main = is_main
        self.names = self.top = naming.Names()  # where it has come to, and those of the module
        self.scope = self.top  # those that a function is made among: of a class these are not its own
        self.computes_annotations = sys.version_info < (3, 14)

    def line(self, number):
        """As people read it."""
        return self._lines[number - 1].decode("utf-8", "replace").strip()[:LINE_SHOWN]


_PREFIX, _USUAL, _LATER = range(3)
# Names of a module by which imports go; and those by which its relative ones do.
_OF_IMPORTS = ("__builtins__", "__name__", "__path__", "__spec__")
_OF_RELATIVE = (*_OF_IMPORTS, "__package__")


def _pairs_of(node):
    """[(name, value)] of `a, b = x, y`, where none of these values is one that is bound there; else empty."""
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    parts, values = getattr(target, "elts", ()), getattr(node.value, "elts", ())
    if len(parts) != len(values) or not all(isinstance(part, ast.Name) for part in parts):
        return ()
    named = {part.id for value in values for part in ast.walk(value) if isinstance(part, ast.Name)}
    is_plain = isinstance(node.value, (ast.Tuple, ast.List)) and named.isdisjoint(part.id for part in parts)
    return [*zip(parts, values)] if is_plain and not any(isinstance(value, ast.Starred) for value in values) else ()


class _Scanner:
    def __init__(self, folder):
        self.result = Scan()
        self.result.folders = [*sys.path] if places.script_folder_is_left_out() else [folder, *sys.path]
        self._libraries = places.Libraries()
        self._phase = _PREFIX
        self._seen_files = set()
        self._seen_names = set()
        self._bytes_left = texts.SOURCE_BYTES_MAX
        self._depth = 0
        self._names = {}  # naming.Names of the user's own modules
        self._tops = {}  # of files: the names that they have for sure
        self._are_modules = {}  # what _is_module has answered
        self._calling = set()  # functions whose bodies are being followed
        self._followed = set()  # the user's own modules whose texts are

    def read(self, path):
        self.result.texts[path] = places.version_of(path)  # before it is read: a change meanwhile is another version
        return texts.read(path)

    def follow_parents(self, name):
        """The file that `-m name` runs, or None, and the module's full name, behind its parents' texts, which Python
        runs first."""
        spec = self._find(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name += ".__main__"
            spec = self._find(name)
        parent = name.rpartition(".")[0]
        if parent and spec is not None:
            self._seen_names.add(parent)
            self._follow(parent)
        return (spec.origin if spec is not None else None), name

    def scan_source(self, source, path, package, is_main=False, names=None):
        self._bytes_left -= len(source)
        text = _Text(source, path, package, is_main)
        text.names = text.top = text.scope = names or text.names
        text.names.is_module = self._is_module
        if self._bytes_left < 0:
            return self._end(_LATER, text, None, "is too long to be read ahead", "too long to be read ahead")
        try:
            self._walk(texts.parsed(source).body, text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            if is_main:
                self.result.unread = texts.why_no_python(path, error)
            self._end(_LATER, text, None, "cannot be read, so nobody knows what it does", "it cannot be read")

    def _end(self, phase, text, node, why=effects.DOES_SOMETHING, what=None):
        """Here the script does something that later imports may depend on."""
        if phase <= self._phase:
            return
        line = getattr(node, "lineno", 1)
        end = End(text.path, line, what or text.line(line), why)
        if self._phase == _PREFIX:
            self.result.end = end
        if phase == _LATER:
            self.result.usual_end = end
        self._phase = phase

    def _walk(self, statements, text):
        for statement in statements:
            text.names.calls = naming.VALUES if self._phase == _PREFIX else naming.USUAL
            text.names.looks = []
            taken = takes.taken_by(statement, text.names, text.computes_annotations) if self._phase == _PREFIX else ()
            self._statement(statement, text)
            self._take_looks(text, statement)
            self._take(taken)
            if text.names is text.top and not text.top.bound.isdisjoint(_OF_IMPORTS):
                self._end(_LATER, text, statement, effects.CHANGES_OTHERS)

    @contextlib.contextmanager
    def _inside(self, names, text):
        """A block with names of its own. Those that it declares to be of others are not known behind it."""
        outer, text.names = text.names, names
        try:
            yield
        finally:
            text.names = outer
        outer.outer |= names.outer
        for name in names.outer & names.here:
            for known in (outer, text.top):
                known.unbind(name)
                known.foreign |= {name} if names.is_to_be_known(name) else set()

    def _take_looks(self, text, statement):
        """Those of what has been read of a statement: before the statements in it."""
        looks, text.names.looks = text.names.looks, []
        if looks and text.names.doubts:
            self._end(_LATER, text, statement, effects.LOOKS_PERHAPS)
        self._look(looks, text, statement)

    def _look(self, looks, text, statement):
        if self._phase == _PREFIX:
            self.result.prefix += [look for look in looks if look not in self.result.prefix]
            self._note(looks, text, statement)

    def _note(self, names, text, statement):
        """Where the text first names them."""
        for name in names:
            self.result.where.setdefault(name, (text.path, statement.lineno))

    def _statement(self, node, text):
        settings = variables.set_by(node, text.names)
        if settings is not None and self._can_be_settled(text):
            self._end(_USUAL, text, node, effects.SETS_VARIABLES)
            self.result.settings += settings
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node, text)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._define(node, text)
            text.names.unbind(node.name)
            if not text.names.doubts and effects.is_called_itself(node):
                text.names.functions[node.name] = node, text.scope
            if effects.makes_property(node):
                text.names.properties.add(node.name)
        elif isinstance(node, ast.ClassDef):
            self._define(node, text)
            self._take_looks(text, node)
            self._class(node, text)
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            self._assign(node, text)
        elif isinstance(node, ast.Expr):
            self._evaluate(node, node.value, text)
        elif isinstance(node, ast.If):
            self._if(node, text)
        elif isinstance(node, ast.Try):
            self._try(node, text)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            text.names.outer |= {*node.names} if text.names is not text.top else set()
        elif not isinstance(node, ast.Pass):
            self._other(node, text)

    def _can_be_settled(self, text):
        """Whether variables that are set here are set for sure, and before all that is imported behind the prefix."""
        return self._phase != _LATER and not text.names.doubts and all(map(places.is_standard_name, self.result.usual))

    def _class(self, node, text):
        made, names = effects.class_made_by(node, text.names), text.names.copy()
        with self._inside(names, text):
            self._walk(node.body, text)
        bound = [ast.Name(name, ast.Load()) for name in sorted(names.here)]
        if not all(naming.may_be_held(name, names) for name in bound):
            self._end(_LATER, text, node, effects.HELD_BY_CLASS)
        holds = {name.id for name in bound if naming.carries(name, names, True) or names.is_of_a_module(name)}
        text.names.bind_class(node.name, made._replace(holds=made.holds | holds))

    def _define(self, node, text):
        harm = effects.harm_of_definition(node, text.names)
        if harm is not None:
            self._end(_LATER, text, *harm)

    def _other(self, node, text):
        """Loops, with, assert, del, return, raise: what is in their blocks may run, or not, or twice."""
        self._end(_LATER, text, node, effects.OTHER_STATEMENT)
        for part in ("body", "handlers", "orelse", "finalbody", "cases"):
            for child in getattr(node, part, []):
                self._walk(child.body if part in ("handlers", "cases") else [child], text)

    def _evaluate(self, statement, value, text):
        """Whether evaluating it leaves the phase as it is, and whether the value may run code of its own; a call of a
        function of the same text is followed."""
        if effects.harmless(value, text.names):
            return True, naming.carries(value, text.names)
        text.names.calls = naming.USUAL
        if effects.harmless(value, text.names):
            self._end(_USUAL, text, statement)
            return True, naming.carries(value, text.names)
        function, scope = text.names.functions.get(getattr(getattr(value, "func", None), "id", None), (None, None))
        parts = [*value.args, *(keyword.value for keyword in value.keywords)] if isinstance(value, ast.Call) else []
        if (
            function is None
            or function in self._calling
            or not all(effects.harmless(part, text.names) for part in parts)
        ):
            self._end(_LATER, text, statement)
            return False, False
        self._end(_USUAL, text, statement)
        is_given = any(naming.may_run(part, text.names) for part in [*parts, *effects.defaults_of(function)])
        return False, self._call(function, scope, is_given, text)

    def _call(self, function, scope, is_given, text):
        """Its body in its order: a return in the middle would only make an import that is looked for needless. Returns
        whether what it gives may run code of its own. `is_given`: whether its arguments may."""
        self._calling.add(function)
        end = next((at for at, node in enumerate(function.body) if isinstance(node, ast.Return)), len(function.body))
        behind = [node for node in function.body[end:] if not isinstance(node, ast.Return)]
        names, gives = scope.copy(), False
        names.doubts = 0
        for name in effects.arguments_of(function):
            names.unbind(name)
            names.foreign |= {name} if is_given else set()
        names.doubts = text.names.doubts
        outer, text.scope = text.scope, names
        with self._inside(names, text):
            self._walk(function.body[:end], text)
            with names.doubting():
                self._walk(behind, text)
            for node in (node for node in function.body if isinstance(node, ast.Return)):
                names.calls = naming.USUAL
                gives |= naming.carries(node.value, names)
                if not effects.harmless(node.value, names):
                    self._end(_LATER, text, node)
        text.scope = outer
        self._calling.discard(function)
        return gives

    def _assign(self, node, text):
        computed = node.annotation if isinstance(node, ast.AnnAssign) and text.computes_annotations else None
        if not effects.harmless_annotation(computed, text.names):
            self._evaluate(node, computed, text)
        harmless, is_foreign = self._evaluate(node, node.value, text)
        pairs = _pairs_of(node) if harmless else ()
        for target, value in pairs:
            text.names.bind_value(target.id, value, effects.value_of(value, text.names), effects.is_literal(value))
        if pairs:
            return
        maker = effects.value_of(node.value, text.names) if harmless else None
        literal = harmless and effects.is_literal(node.value)
        if is_foreign and (
            isinstance(node, ast.AugAssign) or any(hasattr(one, "elts") for one in getattr(node, "targets", ()))
        ):
            self._end(_LATER, text, node)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for part in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
                is_name = isinstance(part, ast.Name)
                if is_name and isinstance(node, ast.AugAssign) and text.names.is_of_its_own(part.id):
                    text.names.add_value(part.id, node.value)
                elif is_name and not isinstance(node, ast.AugAssign):
                    text.names.bind_value(part.id, node.value, maker, literal and part is target)
                    text.names.foreign |= {part.id} if is_foreign else set()
                elif (
                    is_foreign
                    or text.names.is_of_a_module(node.value)
                    or not effects.harmless_target(part, text.names)
                    or text.names.made.get(getattr(getattr(part, "value", None), "id", None)) in (None, naming.LOGGER)
                ):
                    self._end(_LATER, text, node, effects.CHANGES_OTHERS)

    def _if(self, node, text):
        truth = effects.known_truth(node.test, text.names)
        if texts.is_main_guard(node.test):
            truth = text.is_main
        if truth is not None:
            return self._walk(node.body if truth else node.orelse, text)
        is_plain = effects.harmless(node.test, text.names) and not naming.carries(node.test, text.names)
        if not is_plain or texts.imports_in(node):
            self._end(_LATER, text, node, effects.UNKNOWN_IF)
        self._take_looks(text, node)
        with text.names.doubting():
            self._walk([*node.body, *node.orelse], text)

    def _try(self, node, text):
        """Its body runs up to an import that is not there, and then what stands for an ImportError. Where else it may
        leave its body, what may be left out must do nothing."""
        instead = [statement for handler in node.handlers for statement in handler.body]
        may_raise = False
        for at, statement in enumerate(node.body):
            if not all(self._is_there(found, text) for found in texts.imports_in(statement)):
                self._miss(statement, node, text)
                break
            end = None
            if self._may_raise(statement, text):
                may_raise = True
                rest = [*node.body[at + 1 :], *node.orelse]
                end = None if effects.only_bind([*rest, *instead], text.names) else effects.MAY_RAISE
            if end and hasattr(statement, "body"):
                self._end(_LATER, text, statement, end)
            self._walk([statement], text)
            if end:
                self._end(_LATER, text, statement, end)
        else:
            self._walk(node.orelse, text)
            with text.names.doubting():
                self._walk(instead if may_raise else [], text)
        self._walk(node.finalbody, text)

    def _may_raise(self, statement, text):
        """Whether it may raise what a handler catches; what is imported is there."""
        if isinstance(statement, ast.ImportFrom):
            base = self._base(statement, text)
            return base is None or not all(
                alias.name == "*" or self._has(base, alias.name) for alias in statement.names
            )
        return not isinstance(statement, ast.Import) and effects.may_raise(statement)

    def _has(self, module, name):
        """Whether a module is known to have that name."""
        if module in sys.builtin_module_names:
            return hasattr(sys.modules.get(module), name)
        if self._find(f"{module}.{name}") is not None:
            return True
        if module in self._followed:  # one that imports this one
            return self._names[module].has_for_sure(name)
        origin = str(self._find(module).origin)
        if origin not in self._tops:
            source = texts.read(origin) if origin.endswith(".py") else None
            self._tops[origin] = texts.names_at_top(source) if source is not None else frozenset()
        return name in self._tops[origin]

    def _miss(self, statement, node, text):
        """An import, in a `try`, of what is not there: what it imports before it finds that out, and what is done
        then."""
        names = [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []
        error = ModuleNotFoundError
        if isinstance(statement, ast.ImportFrom):
            base = self._base(statement, text)
            names, error = ([base], error) if base is not None else ([""], ImportError)
            if base is None and not self._has_no_parent(text):
                self._end(_LATER, text, statement, effects.NOT_FOUND)
        for name in names:
            while name and not self._exists(name):
                name = name.rpartition(".")[0]
            if name:
                self._wanted(name, text, statement)
            if name not in names:
                break
        if not names:  # one that stands in another statement
            self._end(_LATER, text, statement, effects.OTHER_STATEMENT)
            self._walk([statement], text)
        for handler in node.handlers:
            caught = effects.catches(handler.type, error)
            if caught is None:
                break
            if caught:
                return self._walk(handler.body, text)
        self._end(_LATER, text, statement, effects.MAY_RAISE)
        for handler in node.handlers:
            self._walk(handler.body, text)

    def _is_there(self, statement, text):
        if isinstance(statement, ast.Import):
            return all(self._exists(alias.name) for alias in statement.names)
        base = self._base(statement, text)
        return base is not None and self._exists(base)

    def _base(self, statement, text):
        """The full name of what an ImportFrom imports from; None: it is not known, or there is no package."""
        is_moved = not text.top.bound.isdisjoint(_OF_RELATIVE) or not text.names.bound.isdisjoint(_OF_RELATIVE)
        return None if statement.level and is_moved else texts.base_of(statement, text.package)

    def _has_no_parent(self, text):
        """Whether Python is sure to refuse a relative import: in a script that does not say what it is part of."""
        return text.is_main and text.package is None and text.top.bound.isdisjoint(_OF_RELATIVE)

    def _exists(self, name):
        """For a `try`, which does something else where it is not."""
        if texts.is_builtin(name.split(".", 1)[0]) or self._find(name) is not None:
            return True
        self.result.absent.add(name)
        return False

    def _is_module(self, name):
        """Whether a dotted name is one of a module: not noted as looked for, since no import asks for it."""
        if name not in self._are_modules:
            top = name.partition(".")[0]
            self._are_modules[name] = (
                not texts.is_builtin(top) and texts.look_for(name, self.result.folders)[0] is not None
            )
        return self._are_modules[name]

    def _import(self, statement, text):
        if isinstance(statement, ast.ImportFrom):
            return self._import_from(statement, text)
        for alias in statement.names:
            if self._wanted(alias.name, text, statement):
                full, name = (alias.name, alias.asname) if alias.asname else (alias.name.split(".", 1)[0],) * 2
                text.names.bind_module(name, self._names.get(full))
            else:
                text.names.bind_import(ast.Import([alias]))
                self._take([alias.name if alias.asname else alias.name.split(".", 1)[0]])

    def _import_from(self, statement, text):
        base = self._base(statement, text)
        if statement.module == "__future__":
            text.computes_annotations &= all(alias.name != "annotations" for alias in statement.names)
        if not base:
            self._end(_LATER, text, statement, effects.NOT_FOUND)
            for alias in statement.names:
                text.names.unbind(alias.asname or alias.name)
        elif self._wanted(base, text, statement):
            for alias in statement.names:
                self._take_own(base, alias, text, statement)
        else:
            for alias in statement.names:
                self._take_of_library(base, alias, text, statement)
            text.names.bind_import(statement)

    def _take_of_library(self, base, alias, text, statement):
        name = f"{base}.{alias.name}"
        if alias.name == "*":
            self._end(_LATER, text, statement, effects.TAKES_ALL)
        elif self._find(name) is not None:
            if name not in self._seen_names:
                self.result.attributes.add(name)
            self._wanted(name, text, statement)
        elif not naming.is_known(base):
            self._look([f"{base}:{alias.name}"], text, statement)
        self._take([takes.place_of_import(base, alias.name)])

    def _take(self, names):
        """What the text takes of others, as they are where it has come to."""
        at = len(self.result.prefix)
        for name in names if self._phase == _PREFIX else ():
            places_of = self.result.taken.setdefault(name, [])
            places_of += [at] if at not in places_of else []

    def _take_own(self, base, alias, text, statement):
        """A name of the user's own module: what it has by that name, else a module in it."""
        module = self._names.get(base) or naming.Names()
        if alias.name != "*":
            self._find_in_own(base, module, alias.name, text, statement)
        elif module.exported is naming.UNKNOWN or (module.exported is None and module.is_open):
            self._end(_LATER, text, statement, effects.UNKNOWN_ALL)
        for name in module.exported if alias.name == "*" and isinstance(module.exported, list) else ():
            self._find_in_own(base, module, name, text, statement)
        text.names.take(module, alias.name, alias.asname or alias.name)

    def _find_in_own(self, base, module, attribute, text, statement):
        """Looks for a name in the user's own module as an import does: a module in it is imported where it has none."""
        name = f"{base}.{attribute}"
        if module.has_for_sure(attribute) or name in self._seen_names:
            return
        is_module = self._find(name) is not None
        if module.is_open or (is_module and attribute in module.bound):
            self._end(_LATER, text, statement, effects.OWN_LAZY)
        if is_module:
            self._wanted(name, text, statement)

    def _wanted(self, name, text, statement):
        """Whether it is a module of the user's own, whose text is followed, not a library's."""
        top = name.split(".", 1)[0]
        if texts.is_builtin(top):
            return False
        spec = self._find(top)
        own = spec is None or not self._is_library(spec)
        if name in self._seen_names:
            return own
        if spec is None or not own:
            self._seen_names.add(name)
        self._note([name], text, statement)
        if spec is None:
            self._end(_LATER, text, statement, effects.NOT_FOUND, f"import of {name}, which is not found beforehand")
        elif own:
            self.result.own += [name] if name not in self.result.own else []
            self._follow(name)  # its parents first, and these may import it
        else:
            (self.result.prefix, self.result.usual, self.result.later)[self._phase].append(name)
        return own

    def _follow(self, name):
        """A module of the user's own: read, with its parents, never imported."""
        parent = None
        for full in itertools.accumulate(name.split("."), "{}.{}".format):
            spec = self._find(full)
            is_package = spec is not None and spec.submodule_search_locations is not None
            names = self._names.setdefault(full, naming.Names())
            package, part, parent = parent, full.rpartition(".")[2], names
            if package is not None:
                package.parts.setdefault(part, names)
            self._seen_names.add(full)
            if spec is None or spec.origin in self._seen_files or (is_package and not spec.origin):
                continue
            text = _Text(b"", spec.origin, None, False)
            source = self.read(spec.origin) if str(spec.origin).endswith(".py") else None
            if source is None or len(self._seen_files) >= FILES_MAX or self._depth >= DEPTH_MAX:
                return self._end(_LATER, text, None, "is no text, or one too many to be read", "it is not read ahead")
            self._seen_files.add(spec.origin)
            self.result.modules[spec.origin] = full
            # Relative imports count from the package: of a package that is itself, of a module its parent.
            self._depth += 1
            self._followed.add(full)
            self.scan_source(source, spec.origin, full + (".__init__" if is_package else ""), names=names)
            self._followed.discard(full)
            self._depth -= 1
            if package is not None:
                package.part_is_there(part, names)

    def _is_library(self, spec):
        """Whether the interpreter or an installed package has it. All places of a namespace package count."""
        found = [spec.origin] if spec.origin else list(spec.submodule_search_locations or [])
        return bool(found) and all(map(self._libraries.have, found))

    def _find(self, name):
        """Where `name` would be imported from in the script's process, found without importing its parents. Where the
        user's own folders might have it one day, that is noted."""
        spec, part, searched = texts.look_for(name, self.result.folders)
        for folder in searched if spec is None else ():
            if not places.is_library_file(os.path.realpath(folder) + os.sep):
                for file in (f"{part}.py", os.path.join(part, "__init__.py")):
                    self.result.texts.setdefault(os.path.join(folder, file), None)
        return spec
