"""Just enough understanding of C++ text for the rules: comments, literals, includes, functions."""

import dataclasses
import re

TOKEN = re.compile(
    r"""
    (?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)
  | (?P<raw>R"(?P<mark>[^()\s\\]{0,16})\(.*?\)(?P=mark)")
  | (?P<string>"(?:\\.|[^"\\\n])*")
  | (?P<char>(?<![0-9a-zA-Z_])'(?:\\.|[^'\\\n])+')
    """,
    re.DOTALL | re.VERBOSE,
)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.MULTILINE)


def blank_comments_and_literals(text):
    def blank(match):
        found = match.group(0)
        if match.group("comment"):
            return re.sub(r"[^\n]", " ", found)
        return found[0] + re.sub(r"[^\n]", " ", found[1:-1]) + found[-1]

    return TOKEN.sub(blank, text)


def includes(text):
    """(line, header, whether quoted) of each #include; those in comments too, which nobody writes."""
    for match in INCLUDE.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match.group(2), match.group(1) == '"'


@dataclasses.dataclass(frozen=True)
class Function:
    name: str
    line: int
    lines: int


def functions(code):
    """The functions of a file whose comments and literals are blanked, lambdas counted within their function.

    A scan over braces: at namespace and class level, a brace after a parameter list opens a body; all else there is a
    namespace, a class, an enumeration or an initializer.
    """
    code = re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", lambda match: re.sub(r"[^\n]", " ", match.group(0)), code, flags=re.M)
    found, scopes = [], []
    begin, parens = 0, 0
    for match in re.finditer(r"[(){};]", code):
        symbol, at = match.group(0), match.start()
        inside = scopes[-1][0] if scopes else "names"
        if symbol == "{":
            kind = classify(code[begin:at]) if inside == "names" and parens == 0 else "other"
            scopes.append((kind, begin, parens))
            if kind == "names":
                begin = at + 1
        elif symbol == "}" and scopes:
            kind, begin_was, parens = scopes.pop()
            if kind == "body":
                found.append(describe(code, begin_was, code[begin_was : at + 1], at))
            if kind in ("body", "names"):
                begin = at + 1
        elif symbol in "()":
            parens += 1 if symbol == "(" else -1
        elif inside == "names" and parens == 0:
            begin = at + 1
    return found


def describe(code, begin, text, end):
    head = text[: text.index("{")]
    begin += len(head) - len(head.lstrip())
    # An access specifier before the function is not part of it.
    label = re.match(r"(?:(?:public|private|protected)\s*:\s*)+", code[begin:end])
    begin += label.end() if label else 0
    name = function_name(code[begin:end])
    first = code.count("\n", 0, begin) + 1
    return Function(name, first, code.count("\n", 0, end) + 1 - first + 1)


def function_name(head):
    test = re.match(r"(?:TEST|TEST_F|TEST_P)\s*\(\s*(\w+)\s*,\s*(\w+)\s*\)", head)
    if test:
        return f"{test.group(1)}.{test.group(2)}"
    match = re.search(r"(operator\s*(?:\(\)|[^\s(]+)|[\w:~]+)\s*\(", head)
    return match.group(1) if match else "?"


def classify(head):
    """What the brace after `head` opens: "names" (namespace, class), "body" (of a function) or "other"."""
    head = re.sub(r"(?:public|private|protected)\s*:(?!:)", "", head)
    head = re.sub(r"\boperator\s*(?:\(\)|[^\s\w(]+)", "operator", head)
    head = re.sub(r"\b(?:alignas|decltype|noexcept|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)", "", head).strip()
    if "(" not in head:
        if re.search(r"\b(?:namespace|class|struct|union)\b|^extern\b", head) and not re.search(r"\benum\b|=", head):
            return "names"
        return "other"
    if "=" in without_groups(head):
        return "other"  # a variable's initializer
    tail = after_parameters(head)
    in_initializers = re.search(r"(?<!:):(?!:)", tail) is not None
    if in_initializers and re.search(r"[\w>]$", tail):
        return "other"  # a_{1} of a constructor
    return "body"


def without_groups(head):
    """Drops parenthesised groups and template parameters, where default values may stand."""
    head = re.sub(r"\btemplate\s*<(?:[^<>]|<[^<>]*>)*>", "", head)
    while True:
        shorter = re.sub(r"\([^()]*\)", "", head)
        if shorter == head:
            return head
        head = shorter


def after_parameters(head):
    """What follows the first balanced parentheses."""
    depth = 0
    for at in range(head.index("("), len(head)):
        depth += {"(": 1, ")": -1}.get(head[at], 0)
        if depth == 0:
            return head[at + 1 :]
    return ""
