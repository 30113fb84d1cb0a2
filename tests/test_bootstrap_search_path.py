"""Whether sys.path finds what it found: each way to change that is noticed, or nothing is promised."""

import os
import sys
import zipfile
from importlib.machinery import FileFinder

import pytest
from phalanx._bootstrap import search_path

OLD_NS = 1_600_000_000_000_000_000


@pytest.fixture
def folders(tmp_path, monkeypatch):
    for name in ("first", "second"):
        _make_old(tmp_path / name)
    monkeypatch.setattr(sys, "path", [str(tmp_path / name) for name in ("first", "none", "second")])
    monkeypatch.setattr(sys, "path_hooks", list(sys.path_hooks))
    monkeypatch.setattr(sys, "path_importer_cache", dict(sys.path_importer_cache))
    return tmp_path


def _make_old(folder):
    folder.mkdir()
    os.utime(folder, ns=(OLD_NS, OLD_NS))


def _exchange(folder):
    folder.rename(folder.with_name("third"))
    _make_old(folder)


CHANGES = {
    "a file that has come": lambda folders: (folders / "second" / "module.py").touch(),
    "a folder that was not there": lambda folders: (folders / "none").mkdir(),
    "a folder that has gone": lambda folders: (folders / "second").rmdir(),
    "another folder": lambda folders: _exchange(folders / "second"),
    "an entry": lambda folders: sys.path.append("elsewhere"),
    "another order": lambda folders: sys.path.reverse(),
    "a hook": lambda folders: sys.path_hooks.insert(0, FileFinder.path_hook()),
    "a finder of another kind": lambda folders: sys.path_importer_cache.update({sys.path[0]: object()}),
    "an archive": lambda folders: zipfile.ZipFile(folders / "none", "w").close(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_is_seen(folders, change):
    known = search_path.look()
    assert known is not None and search_path.look() == known
    CHANGES[change](folders)
    assert search_path.look() != known


def test_of_archives_nothing_is_promised(folders):
    zipfile.ZipFile(folders / "none", "w").close()
    assert search_path.look() is None
