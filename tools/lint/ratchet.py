"""Functions may have 70 lines. Older, longer ones stand in ratchet.json with their length, which may only shrink."""

import ast
import json

from tools.lint import config, cpp_text, rules_python
from tools.lint.project import Finding

RATCHET = "tools/lint/ratchet.json"
RULE = "function-length"


def python_functions(tree):
    """Functions with the names of the classes and functions around them."""
    stack = [(tree, ())]
    while stack:
        node, names = stack.pop()
        for child in ast.iter_child_nodes(node):
            inner = names
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inner = (*names, child.name)
                if not isinstance(child, ast.ClassDef):
                    yield cpp_text.Function(".".join(inner), child.lineno, child.end_lineno - child.lineno + 1)
            stack.append((child, inner))


def all_functions(project):
    for path in project.cpp():
        for function in cpp_text.functions(project.code(path)):
            yield path, function
    for path, tree in rules_python.parsed(project):
        for function in python_functions(tree):
            yield path, function


def long_functions(project):
    """What is too long, by "path::name"; of overloads, the longest."""
    found = {}
    for path, function in all_functions(project):
        key = f"{path}::{function.name}"
        if function.lines > config.MAX_FUNCTION_LINES and function.lines > getattr(found.get(key), "lines", 0):
            found[key] = function
    return found


def load(project):
    return json.loads(project.text(RATCHET)) if RATCHET in project.files else {}


def check(project):
    known, found = load(project), long_functions(project)
    for key, function in found.items():
        path = key.split("::")[0]
        if key not in known:
            advice = f"{function.name} has {function.lines} lines; split it ({config.MAX_FUNCTION_LINES} at most)"
            yield Finding(path, function.line, RULE, advice)
        elif function.lines > known[key]:
            advice = f"{function.name} grew from {known[key]} to {function.lines} lines; it may only shrink"
            yield Finding(path, function.line, RULE, advice)
    for key in known:
        if key not in found or found[key].lines < known[key]:
            yield Finding(RATCHET, 1, RULE, f"{key} became shorter, well done: run ./run lint --tighten")


def tighten(project):
    """Lowers entries to what the functions have now, and drops those that are no longer needed. Never adds one."""
    known, found = load(project), long_functions(project)
    kept = {key: min(lines, found[key].lines) for key, lines in sorted(known.items()) if key in found}
    (project.root / RATCHET).write_text(json.dumps(kept, indent=2) + "\n")
