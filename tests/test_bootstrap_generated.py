"""What dataclasses compile while libraries are imported is kept for the next start, and nothing else changes by it."""

import dataclasses
import hashlib
import inspect
import os
import stat
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python"))
from phalanx._bootstrap.watching import generated

HEAD_BYTES = 40


def make_class(name="Point"):
    @dataclasses.dataclass(order=True)
    class Made:
        x: int
        y: list = dataclasses.field(default_factory=list)

    Made.__name__ = name
    return Made


def path_in(folder):
    return folder / f"generated-{sys.implementation.cache_tag}.bin"


def test_what_nobody_has_imported_is_left_alone(tmp_path, monkeypatch):
    """A script's folder may have a module of that name, or of one that it imports."""
    monkeypatch.delitem(sys.modules, "dataclasses")
    with generated.GeneratedCode(str(tmp_path)):
        assert "dataclasses" not in sys.modules
    assert os.listdir(tmp_path) == []


def learn(folder):
    with generated.GeneratedCode(str(folder)):
        return make_class()


@pytest.fixture
def compilations(monkeypatch):
    """The texts that are really compiled."""
    texts = []
    monkeypatch.setattr(
        generated, "compile", lambda text, *a, **k: texts.append(text) or compile(text, *a, **k), raising=False
    )
    return texts


def test_second_start_compiles_nothing(tmp_path, compilations):
    learn(tmp_path)
    assert compilations
    compilations.clear()
    again = learn(tmp_path)
    assert compilations == []
    assert again(1) < again(2) and again(3) == again(3, []) and repr(again(1)).endswith("(x=1, y=[])")
    assert str(inspect.signature(again)) == str(inspect.signature(make_class()))
    assert os.listdir(tmp_path) == [path_in(tmp_path).name]
    assert stat.S_IMODE(path_in(tmp_path).stat().st_mode) == 0o600


def test_code_objects_are_not_shared(tmp_path):
    with generated.GeneratedCode(str(tmp_path)):
        one, other = make_class(), make_class()
    assert one.__init__.__code__ == other.__init__.__code__ and one.__init__.__code__ is not other.__init__.__code__


def test_nothing_is_left_behind(tmp_path):
    learn(tmp_path)
    assert "exec" not in vars(dataclasses)
    with generated.GeneratedCode(None):
        assert "exec" not in vars(dataclasses)


def broken(data):
    yield "empty", b""
    yield "cut short", data[:-1]
    yield "half", data[: len(data) // 2]
    yield "another Python's", data[:4] + b"\0\0\r\n" + data[8:]
    yield "a byte flipped", data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
    yield "another kind of file", b"PK\3\4" + data[4:]
    yield "well signed, but not one of ours", data[:8] + hashlib.sha256(b"N").digest() + b"N"
    yield "signed nonsense", data[:8] + hashlib.sha256(b"\xff").digest() + b"\xff"


def test_what_cannot_be_read_is_compiled_anew(tmp_path, compilations):
    learn(tmp_path)
    good = path_in(tmp_path).read_bytes()
    for what, data in broken(good):
        path_in(tmp_path).write_bytes(data)
        compilations.clear()
        assert learn(tmp_path)(1).x == 1, what
        assert compilations, what
        assert path_in(tmp_path).read_bytes()[:8] == good[:8], what


def test_files_of_others_are_not_read(tmp_path, compilations):
    learn(tmp_path)
    path = path_in(tmp_path)
    path.chmod(0o622)
    compilations.clear()
    learn(tmp_path)
    assert compilations
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    compilations.clear()
    learn(tmp_path)
    assert compilations


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path):
    assert learn(tmp_path / "missing")(1).x == 1


def test_drafts_of_the_killed_are_removed(tmp_path):
    """In a container the next process may have the id of the one that was killed, too."""
    old, fresh = (path_in(tmp_path).with_name(f"{path_in(tmp_path).name}.{end}") for end in (os.getpid(), "f" * 16))
    for draft in (old, fresh):
        draft.write_bytes(b"half")
    hours_ago = old.stat().st_mtime - 3 * 3600
    os.utime(old, (hours_ago, hours_ago))
    learn(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted([path_in(tmp_path).name, fresh.name])


def test_too_much_is_begun_anew(tmp_path, monkeypatch, compilations):
    learn(tmp_path)
    monkeypatch.setattr(generated, "TEXTS_MAX", 0)  # Python 3.13 makes one text of all methods
    compilations.clear()
    learn(tmp_path)
    assert compilations
