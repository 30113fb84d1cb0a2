"""Rules about Python sources, on their syntax tree."""

import ast

from tools.lint.project import Finding

BLIND = {"Exception", "BaseException"}


def parsed(project):
    for path in project.python():
        try:
            yield path, ast.parse(project.text(path))
        except SyntaxError:
            continue  # ruff tells it better


def no_sleep(project):
    for path, tree in parsed(project):
        sleeping = names_of_sleep(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in sleeping:
                advice = "wait for the event itself (a pipe, a socket, a process); see docs/lint.md"
                yield Finding(path, node.lineno, "sleep", advice)


def names_of_sleep(tree):
    """How this file may call time.sleep or asyncio.sleep."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                f"{alias.asname or alias.name}.sleep" for alias in node.names if alias.name in ("time", "asyncio")
            }
        elif isinstance(node, ast.ImportFrom) and node.module in ("time", "asyncio"):
            names |= {alias.asname or alias.name for alias in node.names if alias.name == "sleep"}
    return names


def no_blind_except(project):
    for path, tree in parsed(project):
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler) and is_blind(node) and not raises_again(node):
                advice = "name the exceptions you expect; what you do not expect must be seen"
                yield Finding(path, node.lineno, "blind-except", advice)


def is_blind(handler):
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(ast.unparse(kind).split(".")[-1] in BLIND for kind in types)


def raises_again(handler):
    """A handler that ends in a bare `raise` hides nothing."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def no_name_twice(project):
    """A second function takes the place of the first without a word, and a class is full of calls by name."""
    for path, tree in parsed(project):
        for scope in ast.walk(tree):
            if not isinstance(scope, (ast.Module, ast.ClassDef)):
                continue
            seen = {}
            for node in scope.body:
                if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or is_meant_twice(node):
                    continue
                if node.name in seen:
                    advice = f"{node.name} is defined in line {seen[node.name]} already; give one of them another name"
                    yield Finding(path, node.lineno, "name-twice", advice)
                seen[node.name] = node.lineno


def is_meant_twice(function):
    """As a property's setter, or what typing overloads."""
    decorators = {ast.unparse(each).split(".")[-1] for each in function.decorator_list}
    return bool(decorators & {"setter", "deleter", "getter", "overload"})
