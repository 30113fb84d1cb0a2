"""What the static scan finds in a text. It reads; it runs nothing."""

import os
import sys
import textwrap

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python"))

from phalanx._bootstrap import places, scan


def scanned(tmp_path, text, kind="script", script="script.py"):
    if text is not None:
        (tmp_path / "script.py").write_text(textwrap.dedent(text))
    return scan.scan(kind, script, str(tmp_path))


CASES = {
    "plain": (
        "import json, wave.sub as w\nfrom email import message, no_such_thing\n",
        "json wave.sub email email.message",
    ),
    "blocks": (
        "try:\n    import json\nexcept ImportError:\n    import wave\nelse:\n    import bz2\n"
        "finally:\n    import lzma\n"
        "if 1:\n    import cmd\nwith x:\n    import code\nfor i in y:\n    import csv\nclass C:\n    import zlib\n",
        "json wave bz2 lzma cmd code csv zlib",
    ),
    "main guard": ("if __name__ == '__main__':\n    import json\n", "json"),
    "functions": ("def f():\n    import json\nasync def g():\n    import wave\n", ""),
    "type checking": ("if TYPE_CHECKING:\n    import json\nelse:\n    import wave\n", "wave"),
    "star": ("from json import *\n", "json"),
    "relative without package": ("from . import x\nfrom .. import y\n", ""),
    "twice": ("import json\nimport json\nfrom json import decoder", "json json.decoder"),
    "syntax error": ("import json\nx = = 1", ""),
    "nothing": ("", ""),
    "side effects": ("raise SystemExit(3)\nimport json", "json"),
}


@pytest.mark.parametrize("name", CASES)
def test_imports(tmp_path, name):
    text, expected = CASES[name]
    found = scanned(tmp_path, text)
    assert found.imports == expected.split()
    assert not found.late


@pytest.mark.parametrize(
    "change, is_change",
    [
        ("os.environ['A'] = '1'", True),
        ("os.environ['A'] += '1'", True),
        ("environ['A'] = '1'", True),
        ("del os.environ['A']", True),
        ("os.environ.update(A='1')", True),
        ("x = os.environ.pop('A', None)", True),
        ("os.environ |= {}", True),
        ("os.environb[b'A'] = b'1'", True),
        ("os.putenv('A', '1')", True),
        ("load_dotenv.load_dotenv()", True),
        ("if 1:\n    os.environ['A'] = '1'", True),
        ("rank = int(os.environ['RANK'])", False),
        ("print(os.environ.get('A'), dict(os.environ))", False),
        ("def f():\n    os.environ['A'] = '1'", False),
        ("config['environment'] = 1", False),
    ],
)
def test_changes_of_the_environment(tmp_path, change, is_change):
    found = scanned(tmp_path, f"import os, json\n{change}\nimport wave, json\n")
    assert found.imports == (["os", "json"] if is_change else ["os", "json", "wave"])
    assert found.late == ({"wave"} if is_change else set())


def test_own_tree_is_read_in_the_order_of_the_imports(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/__init__.py").write_text("import json\nfrom . import part\n")
    (tmp_path / "own/part.py").write_text("import bz2\nfrom .deep import thing\nfrom ..outside import no\n")
    (tmp_path / "own/deep.py").write_text("import lzma\nimport own.part\n")
    found = scanned(tmp_path, "import cmd\nfrom own.part import x\nimport code\n")
    assert found.imports == ["cmd", "json", "bz2", "lzma", "code"]


def test_own_module_that_changes_the_environment(tmp_path):
    (tmp_path / "setup_env.py").write_text("import os\nos.environ['A'] = '1'\n")
    found = scanned(tmp_path, "import json, setup_env, wave\n")
    assert (found.imports, found.late) == (["json", "os"], {"wave"})


@pytest.mark.parametrize("name", ["package.module", "package"])
def test_modules(tmp_path, name):
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("raise RuntimeError('nobody may run this')")
    (tmp_path / "package/module.py").write_text("import wave\nfrom .other import x")
    (tmp_path / "package/__main__.py").write_text("import wave\nfrom package import other")
    (tmp_path / "package/other.py").write_text("import bz2")
    assert scanned(tmp_path, None, "module", name).imports == ["wave", "bz2"]


def test_what_is_not_there(tmp_path):
    assert scanned(tmp_path, None).imports == []
    assert scanned(tmp_path, None, "module", "no.such.module").imports == []


def test_bounds(tmp_path):
    """A huge tree or a text of one deep expression costs no more than its share, and no failure."""
    for i in range(scan.FILES_MAX + 50):
        (tmp_path / f"own{i}.py").write_text(f"import own{i + 1}\n")
    assert scanned(tmp_path, "import own0\nimport json\n").imports[-1:] == ["json"]
    assert scanned(tmp_path, "x = " + "(" * 5000 + ")" * 5000).imports == []
    assert scanned(tmp_path, "#" * (scan.SOURCE_BYTES_MAX + 1)).imports == []


def test_own_names(tmp_path):
    for file in (
        "module.py",
        "extension.abi3.so",
        "notes.txt",
        "data.tar.gz",
        "package/__init__.py",
        "data/x.py",
        "no",
    ):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("")
    assert places.own_names(str(tmp_path)) == {"module", "extension", "package"}
    assert places.own_names(str(tmp_path), {"module", "data"}) == {"module"}
    assert places.own_names(str(tmp_path / "missing")) == set()
