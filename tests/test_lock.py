"""tools/locks: each list of requirements has a lock that fits it, with hashes and without addresses."""

import hashlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import hadoop_servers  # noqa: E402
from tools import lock as lock_tool  # noqa: E402
from tools import venv as venv_tool  # noqa: E402

LISTS = lock_tool.requirements()
ENTRY = re.compile(r"^([\w.-]+)(?:\[[\w,-]+\])?==(\S+)( ; .+?)?((?: --hash=sha256:[0-9a-f]{64})+)$")


def entries(text):
    """The lines of a lock, each with its hashes behind it."""
    joined = re.sub(r" *\\\n +", " ", text)
    return [line for line in joined.splitlines() if line and not line.startswith("#")]


def test_no_lock_is_without_a_list():
    assert {path.stem for path in lock_tool.LOCKS.iterdir()} == set(LISTS)


@pytest.mark.parametrize("name", LISTS)
def test_a_lock_is_of_the_list_as_it_is(name):
    text = (lock_tool.LOCKS / f"{name}.lock").read_text()
    assert text.startswith(lock_tool.first_line(name, LISTS[name]) + "\n"), f"out of date: ./run lock {name}"
    assert venv_tool.is_lock(lock_tool.LOCKS / f"{name}.lock")
    broken = [line for line in entries(text) if not ENTRY.match(line)]
    assert not broken, "every entry has a version and hashes, and nothing else"
    assert "://" not in text


@pytest.mark.parametrize("name", LISTS)
def test_a_lock_has_what_its_list_names(name):
    found = {
        ENTRY.match(line)[1].lower(): ENTRY.match(line)[2]
        for line in entries((lock_tool.LOCKS / f"{name}.lock").read_text())
    }
    asked = [line.split("#")[0].strip() for line in LISTS[name].splitlines()]
    for wanted, _, version in (line.partition("==") for line in asked if line):
        assert found[wanted.lower().replace("_", "-")] == version


def test_the_digest_is_of_what_is_asked_for():
    assert lock_tool.digest("a==1  # why\n# of all\nb==2\n") == lock_tool.digest("b==2\na==1  # another reason\n")
    assert lock_tool.digest("a==1\n") != lock_tool.digest("a==2\n")


@pytest.mark.parametrize(("name", "changes"), [("dev", False), ("deepspeed-1", True)])
def test_a_lock_above_another_goes_with_its_versions(monkeypatch, tmp_path, name, changes):
    monkeypatch.setattr(lock_tool, "LOCKS", tmp_path)
    lines = []
    for version in ("1", "2"):
        (tmp_path / "dev.lock").write_text(f"a=={version} \\\n    --hash=sha256:{'0' * 64}\n")
        lines.append(lock_tool.first_line(name, "b==1\n"))
    assert (lines[0] != lines[1]) == changes


def test_a_lock_is_replaced_in_one_step(tmp_path):
    """Whoever reads the old one, or interrupts the writing, has a whole lock."""
    path = tmp_path / "dev.lock"
    path.write_text("old")
    before = path.open()
    lock_tool.replace(path, "new")
    assert (before.read(), path.read_text(), list(tmp_path.iterdir())) == ("old", "new", [path])


@pytest.mark.parametrize("names", [["a.jar"], ["a.jar", "b.jar", "c.jar"], ["a.jar", "c.jar"]])
def test_other_jars_than_those_listed_are_refused(tmp_path, names):
    digests = f"{hashlib.sha256(b'a').hexdigest()}  a.jar\n{hashlib.sha256(b'b').hexdigest()}  b.jar\n"
    for name in ("a", "b"):
        (tmp_path / f"{name}.jar").write_text(name)
    hadoop_servers.check(tmp_path, digests)
    for path in tmp_path.iterdir():
        path.unlink()
    for name in names:
        (tmp_path / name).write_text(name[0])
    with pytest.raises(SystemExit, match=r"[bc]\.jar"):
        hadoop_servers.check(tmp_path, digests)


def test_a_changed_jar_is_refused(tmp_path):
    (tmp_path / "a.jar").write_text("another")
    with pytest.raises(SystemExit, match=r"not those of hdfs-jars.sha256: a\.jar"):
        hadoop_servers.check(tmp_path, f"{hashlib.sha256(b'a').hexdigest()}  a.jar\n")


def test_jars_that_were_checked_by_other_digests_are_fetched_anew(tmp_path, monkeypatch):
    digests = tmp_path / "digests"
    monkeypatch.setattr(hadoop_servers, "DIGESTS", digests)
    monkeypatch.setattr(hadoop_servers, "cache", lambda: tmp_path)
    monkeypatch.setattr(hadoop_servers, "hadoop_version", lambda: "3")
    monkeypatch.setattr(hadoop_servers, "spark_jars", lambda: tmp_path)
    fetched = []
    monkeypatch.setattr(hadoop_servers, "fetch", lambda wanted, jars: (fetched.append(jars), jars.mkdir()))
    for text in ("one", "one", "another"):
        digests.write_text(text)
        classpath = hadoop_servers.hdfs_classpath()
        assert classpath.startswith(f"{fetched[-1]}/*:")
    assert len(fetched) == 2 and fetched[0] != fetched[1]
