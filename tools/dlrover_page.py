"""Prints the tables of docs/dlrover.md, as compat/dlrover has them: what each module says of its names in OFFERED and
REFUSED, what offered.py says of modules that are not there, and the rows of flags, arguments and variables.

Modules are read and not imported: some need deepspeed or transformers. tests/test_dlrover_names.py holds the page to
this, and the modules to what they say.
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "compat" / "dlrover"
sys.path[:0] = [str(PACKAGE), str(ROOT / "python")]

from dlrover import offered  # noqa: E402
from dlrover.python.common import constants  # noqa: E402
from dlrover.python.master import main as master  # noqa: E402
from dlrover.trainer.torch import run_flags  # noqa: E402

_INTERNAL = ("dlrover.offered", "dlrover.trainer.torch.run_flags")


def modules():
    """{module: path}, packages apart, which hold nothing."""
    found = {}
    for path in sorted((PACKAGE / "dlrover").rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        if path.name != "__init__.py" and name not in _INTERNAL:
            found[name] = path
    return found


def declared(path):
    """(OFFERED, REFUSED) of a module: {name: (word, text)}, {name: text}."""
    wanted, namespace = {"OFFERED", "REFUSED"}, {word: getattr(offered, word) for word in ("SAME", "BETTER", "DIFFERS")}
    assigned = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign)]
    for node in reversed(assigned):
        if wanted.intersection(_targets(node)):
            wanted.update(inner.id for inner in ast.walk(node.value) if isinstance(inner, ast.Name))
    for node in assigned:
        if wanted.intersection(_targets(node)):
            exec(compile(ast.Module([node], []), str(path), "exec"), namespace)
    if "OFFERED" not in namespace:
        raise SystemExit(f"{path}: expected OFFERED: what its names are here")
    return namespace["OFFERED"], namespace.get("REFUSED", {})


def _targets(node):
    return {target.id for target in node.targets if isinstance(target, ast.Name)}


def standings():
    """{flag of phalanx-run: the word that docs/flags.md, which a test holds to the code, has for it}."""
    rows = re.findall(r"^\| `(?:-\w, )?(--[\w-]+)[^`]*` \| [^|]*\| ([^|]+) \|", _text("docs/flags.md"), re.MULTILINE)
    return {flag: word.strip() for flag, word in rows}


def _text(path):
    return (ROOT / path).read_text()


def table(head, rows):
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)])


def names():
    rows = []
    for module, path in modules().items():
        given, refused = declared(path)
        rows += [(f"`{module}.{name}`", word, text) for name, (word, text) in given.items()]
        rows += [(f"`{module}.{name}`", "refused", text) for name, text in refused.items()]
    rows += [(f"`{name}`", "refused", text) for name, text in offered.ABSENT.items()]
    return table(("name", "here", "what"), rows)


def flags():
    words = standings()
    rows = []
    for spellings, _, flag, text in run_flags.ROWS:
        shown = ", ".join(f"`{spelling}`" for spelling in spellings)
        rows.append((shown, words[flag] if flag else "better", text))
    return table(("flag", "here", "what"), rows)


def arguments():
    return table(("argument", "what"), [(f"`{name} {metavar}`", text) for name, metavar, _, text in master.ROWS])


def variables(rows):
    return table(("variable", "what"), [(f"`{name}`", text) for name, text in rows.items()])


def page():
    """[(heading, table)]"""
    return [
        ("Names", names()),
        ("Flags", flags()),
        ("Variables that dlrover-run reads", variables(constants.READ)),
        ("Variables that its workers have", variables(constants.GIVEN)),
        ("Arguments of the master", arguments()),
    ]


if __name__ == "__main__":
    print("\n\n".join(f"## {heading}\n\n{text}" for heading, text in page()))
