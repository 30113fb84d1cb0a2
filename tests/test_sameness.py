"""A warm worker is the script, exactly: what a script and its libraries see is what they see under plain Python."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from harness import ROOT, Job, clean_environment, command_path
from sameness import lives, spares
from sameness.corpus import CASES
from sameness.generator import make_script
from sameness.lives import Place, by_launcher, by_plain_python, differences
from sameness.prefix import Prefix

BOOTSTRAP = os.environ.get("PHALANX_BOOTSTRAP_DIR") or str(ROOT / "python" / "phalanx" / "_bootstrap")
# A launch of torchrun takes four seconds of a processor: one script shows here that its ranks are plain Python, under
# --long all do.
WITH_TORCHRUN = "plain"
# Scripts that see something else warm, as things are. The list may only become shorter.
DIFFER = frozenset(json.loads((Path(__file__).resolve().parent / "sameness" / "differ.json").read_text()))
GENERATED, GENERATED_LONG, PARTS = 200, 5000, 8


@pytest.fixture(scope="session")
def prefix(tmp_path_factory):
    """The Python of all scripts that need no installation of their own."""
    return Prefix(tmp_path_factory.mktemp("prefix") / "usual", command_path("phalanx-run"))


@pytest.fixture
def place_of(prefix, tmp_path):
    """A function that makes the folders of a script."""

    def make(case):
        own = Prefix(tmp_path / "prefix", command_path("phalanx-run")) if case.installed else prefix
        return Place(tmp_path / "place", case, own)

    return make


def fail_where_they_differ(expected, found, story):
    told = "\n".join(differences(expected, found))
    if told:
        pytest.fail(f"{told}\n{story}", pytrace=False)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] if n in DIFFER else []) for n in CASES])
def test_a_script_sees_what_it_sees_under_python(name, place_of, job):
    """First life, second life after a kill, second launch: each line of both streams is plain Python's."""
    case = CASES[name]
    place = place_of(case)
    expected = by_plain_python(place, job.environment())
    place.reset()
    found = by_launcher(place, job, [str(place.prefix.launcher)], {"PHALANX_BOOTSTRAP_DIR": BOOTSTRAP})
    if name in DIFFER:
        same = not differences(expected, found) and place.preloaded()[0] >= set(case.preloads)
        assert not same, f"{name} is as under Python now: take it off tests/sameness/differ.json"
        return
    fail_where_they_differ(expected, found, f"{case.why}\n{job.story()}")
    assert place.preloaded()[0] >= set(case.preloads), job.story()


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == WITH_TORCHRUN else pytest.mark.long) for n in CASES])
def test_a_rank_of_torchrun_sees_what_a_script_sees_under_python(name, place_of, tmp_path):
    """What plain Python says stands for torchrun's rank in this file: here is why it may."""
    place = place_of(CASES[name])
    folder = tmp_path / "torchrun"
    folder.mkdir()
    torchrun = Job(folder, "torchrun")
    try:
        expected = by_plain_python(place, torchrun.environment())
        place.reset()
        command = [str(Path(sys.executable).parent / "torchrun")]
        found = by_launcher(place, torchrun, command, {"PYTHON_EXEC": str(place.prefix.python)})
    finally:
        torchrun.close()
    fail_where_they_differ(expected, found, torchrun.story())


def told_by_both(case, prefix, folder):
    """How a spare's life differs from plain Python's: (differences, both outputs)."""
    environment = {**clean_environment(), "TMPDIR": str(folder)}
    place = Place(folder, case, prefix, dies=False)
    expected = by_plain_python(place, environment, lives.LIVES[:1])
    place.reset()
    found, _ = spares.by_spares(place, environment, lives.LIVES[:1])
    return differences(expected, found), (expected, found)


def compare_generated(count, choose, prefix, folder):
    for _ in range(count):
        script = make_script(choose)
        if told_by_both(script.case(), prefix, folder)[0]:
            case = script.shrunk(lambda case: bool(told_by_both(case, prefix, folder)[0])).case()
            told, (expected, found) = told_by_both(case, prefix, folder)
            files = "\n".join(f"--- {name}\n{text}" for name, text in case.files.items())
            outputs = f"--- python -u\n{expected}\n--- warm\n{found}"
            what = "\n".join(told)
            pytest.fail(f"{what}\nargs {case.args}, environment {case.environment}\n{files}\n{outputs}", pytrace=False)


# Scripts made of what these do differ, too; the generator cannot tell which.
all_same = pytest.mark.skipif(bool(DIFFER), reason="tests/sameness/differ.json names scripts")


@all_same
@pytest.mark.parametrize("part", range(PARTS))
def test_generated_scripts(part, choose, prefix, tmp_path):
    compare_generated(GENERATED // PARTS, choose, prefix, tmp_path)


@all_same
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_many_generated_scripts(part, choose, prefix, tmp_path):
    compare_generated(GENERATED_LONG // PARTS, choose, prefix, tmp_path)


def quoted_lines():
    """What docs/troubleshooting.md says that phalanx-run prints, in pieces that a source must have as they are."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    lines = re.findall(r"^phalanx-run: (.*)$", page, re.MULTILINE)
    lines += re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    return lines


@pytest.fixture(scope="module")
def sources():
    """All that phalanx-run and its Python say, with literals that go over several lines in one."""
    files = [*(ROOT / "src" / "agent").rglob("*.cc"), *(ROOT / "python" / "phalanx" / "_bootstrap").rglob("*.py")]
    return "\n".join(re.sub(r'"\s*\n\s*f?"', "", file.read_text()) for file in files)


def test_troubleshooting_quotes_what_is_printed(sources):
    lines = quoted_lines()
    assert len(lines) > 10
    missing = [
        line
        for line in lines
        for piece in re.split(r"<[^>]+>", line)
        if len(piece.strip()) > 3 and piece.strip() not in sources
    ]
    assert missing == []
