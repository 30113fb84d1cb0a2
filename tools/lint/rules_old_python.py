"""What is younger than the oldest Python that we run on, where ruff does not see it: methods, members, arguments.

Importing everything with that Python would find most of it, but few machines have one. The tables hold what code like
ours uses, by comparison of dir() of 3.8 with that of 3.13. A member that the same file asks for by hasattr() is fine.
"""

import ast
import fnmatch

from tools.lint.config import OLD_PYTHON, OLDEST_PYTHON
from tools.lint.project import Finding

# Names that nothing else has: whatever they are called on is one of these types.
METHODS = {
    **dict.fromkeys(("removeprefix", "removesuffix"), "a str or bytes"),
    **dict.fromkeys(("bit_count",), "an int"),
    **dict.fromkeys(("add_note",), "an exception"),
    **dict.fromkeys(("is_relative_to", "with_stem", "hardlink_to", "is_junction", "full_match"), "a Path"),
    **dict.fromkeys(("randbytes", "binomialvariate"), "a random generator"),
}
MEMBERS = {
    "ast": "unparse",
    "contextlib": "aclosing chdir",
    "copy": "replace",
    "dataclasses": "KW_ONLY",
    "datetime": "UTC",
    "enum": "EnumType StrEnum ReprEnum verify member nonmember property",
    "fcntl": "F_GETPIPE_SZ F_SETPIPE_SZ F_OFD_GETLK F_OFD_SETLK F_OFD_SETLKW FICLONE",
    "functools": "cache",
    "glob": "translate",
    "hashlib": "file_digest",
    "inspect": "get_annotations getmembers_static",
    "io": "text_encoding",
    "itertools": "batched pairwise",
    "logging": "getHandlerByName getLevelNamesMapping",
    "math": "cbrt exp2 fma lcm nextafter sumprod ulp",
    "mmap": "MAP_NORESERVE MAP_POPULATE MAP_STACK",
    "operator": "call",
    "os": (
        "CLONE_NEWNS CLONE_NEWNET EFD_CLOEXEC EFD_NONBLOCK P_PIDFD SPLICE_F_MOVE TFD_CLOEXEC eventfd eventfd_read "
        "eventfd_write login_tty pidfd_open process_cpu_count setns splice timerfd_create unshare "
        "waitstatus_to_exitcode"
    ),
    "random": "binomialvariate randbytes",
    "re": "NOFLAG PatternError",
    "signal": "SIGSTKFLT pidfd_send_signal",
    "socket": "recv_fds send_fds",
    "sys": "exception monitoring orig_argv platlibdir stdlib_module_names",
    "threading": "getprofile gettrace",
    "types": "EllipsisType GenericAlias NoneType UnionType",
    "typing": "Annotated Concatenate NotRequired ParamSpec Required Self TypeAlias TypeGuard assert_never override",
    "warnings": "deprecated",
}
MEMBERS = {module: set(names.split()) for module, names in MEMBERS.items()}
MODULES = {"graphlib", "tomllib", "zoneinfo"}
BUILTINS = {"aiter", "anext", "BaseExceptionGroup", "EncodingWarning", "ExceptionGroup"}
# (what is called, argument).
ARGUMENTS = {
    ("zip", "strict"),
    ("glob.glob", "root_dir"),
    ("tempfile.TemporaryDirectory", "ignore_cleanup_errors"),
    ("subprocess.Popen", "process_group"),
    ("subprocess.run", "process_group"),
    ("dataclasses.dataclass", "slots"),
    ("dataclasses.dataclass", "kw_only"),
}
GENERIC = {"dict", "frozenset", "list", "set", "tuple", "type"}


def old_python(project):
    for path in project.python():
        if any(fnmatch.fnmatch(path, pattern) for pattern in OLD_PYTHON):
            for line, what in findings_of(project.text(path)):
                version = ".".join(map(str, OLDEST_PYTHON))
                yield Finding(path, line, "old-python", f"Python {version} has no {what}; write it with what it has")


def findings_of(text):
    """[(line, what is too young)]"""
    try:
        tree = ast.parse(text, feature_version=OLDEST_PYTHON)
    except SyntaxError as error:
        return [(error.lineno or 1, f"such syntax ({error.msg})")]
    asked_for = {
        (ast.unparse(node.args[0]), node.args[1].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "hasattr" and isinstance(node.args[1], ast.Constant)
    }
    unread = unread_annotations(tree)
    return [
        (node.lineno, what)
        for node in ast.walk(tree)
        if node not in unread
        for what in too_young(node)
        if not (isinstance(node, ast.Attribute) and (ast.unparse(node.value), node.attr) in asked_for)
    ]


def too_young(node):
    if isinstance(node, ast.Attribute):
        yield from young_attribute(node)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield from (f"{node.module}.{a.name}" for a in node.names if a.name in MEMBERS.get(node.module, ()))
        yield from {node.module.partition(".")[0]} & MODULES
    elif isinstance(node, ast.Import):
        yield from {alias.name.partition(".")[0] for alias in node.names} & MODULES
    elif isinstance(node, ast.Name) and node.id in BUILTINS:
        yield node.id
    elif isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        yield from (f"{called}({word.arg}=)" for word in node.keywords if (called, word.arg) in ARGUMENTS)
    elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in GENERIC:
        yield f"{node.value.id}[..] as a type"


def young_attribute(node):
    module = ast.unparse(node.value)
    if node.attr in MEMBERS.get(module, ()):
        yield f"{module}.{node.attr}"
    elif node.attr in METHODS:
        yield f"{node.attr}() of {METHODS[node.attr]}"


def unread_annotations(tree):
    """The nodes that the interpreter keeps as text: of annotations, where the file asks for that."""
    postponed = any(
        isinstance(node, ast.ImportFrom) and node.module == "__future__" and node.names[0].name == "annotations"
        for node in tree.body
    )
    kept = [getattr(node, field, None) for node in ast.walk(tree) for field in ("annotation", "returns")]
    return {inner for node in kept if node is not None for inner in ast.walk(node)} if postponed else set()
