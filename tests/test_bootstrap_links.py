"""Libraries behind links (uv, conda, Nix, a --target folder), and the user's own code that is linked to where libraries
are: whose it is decides where it really lies."""

import json
import os

import pytest
from zygote_agent import Agent

SCRIPT = """
import sys, json
loaded = sorted(sys.__dict__["modules"])
import linked
print(json.dumps([name for name in ("linked", "linked.part", "uses") if name in loaded]))
"""
PACKAGE = {"linked/__init__.py": "from . import part", "linked/part.py": ""}
MODULE = {"linked.py": ""}


@pytest.fixture
def place(tmp_path):
    packages = tmp_path / "lib" / "site-packages"
    packages.mkdir(parents=True)
    with Agent(env={"PYTHONPATH": str(packages)}) as agent:
        yield _Place(tmp_path, packages, agent)


class _Place:
    def __init__(self, folder, packages, agent):
        self.folder, self.packages, self.agent = folder, packages, agent
        self.script = folder / "job" / "script.py"

    def write(self, where, files):
        for name, text in files.items():
            path = self.folder / where / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return self.folder / where

    def link(self, where, files, each_file):
        """From site-packages to what is at `where`."""
        source = self.write(where, files)
        for name in files if each_file else {name.partition("/")[0] for name in files}:
            target = self.packages / name
            target.parent.mkdir(exist_ok=True)
            os.symlink(source / name, target)

    def start(self, script=SCRIPT, deny=()):
        self.write("job", {"script.py": script})
        return self.agent.start_zygote(self.script, cwd=self.script.parent, deny=deny)

    def loaded(self):
        status, out, err = self.agent.fork().run(self.script, env={"PYTHONPATH": str(self.packages)}).result()
        assert (status, err) == (0, "")
        return json.loads(out)


# Nix and conda; a cache of uv or pdm, or a --target folder, where an installer has written what it has put there.
INSTALLED = {"another site-packages": "store/lib/python3.11/site-packages", "an installer": "cache/archive-v0/4Xy"}
LINKS = pytest.mark.parametrize(
    ("files", "each_file"),
    [(PACKAGE, False), (PACKAGE, True), (MODULE, True)],
    ids=["a package", "the files of a package", "a module"],
)


@LINKS
@pytest.mark.parametrize("what", INSTALLED)
def test_a_library_behind_links_is_imported_ahead(place, what, files, each_file):
    if what == "an installer":
        names = "".join(f"{name},,\n" for name in files)
        place.write(INSTALLED[what], {"linked-1.0.dist-info/RECORD": names})
    place.link(INSTALLED[what], files, each_file)
    assert place.start()["type"] == "ready"
    assert place.loaded() == (["linked", "linked.part"] if files is PACKAGE else ["linked"])


@LINKS
def test_own_code_linked_to_where_libraries_are_is_never_imported_ahead(place, files, each_file):
    """Nor where a library would import it."""
    place.write("lib/site-packages", {"uses.py": "import linked"})
    names = {"other-1.0.dist-info/RECORD": "other.py,,\n"}  # pip install --target has put something else beside it
    place.write("project/src", names)
    place.link("project/src", files, each_file)
    assert place.start()["type"] == "ready"
    assert place.loaded() == []
    uses = SCRIPT.replace("import linked", "import uses")
    answer = place.start(uses)
    assert answer["type"] == "tainted" and answer["module"] == "uses"
    assert "which is the user's own" in answer["why"]
    assert place.start(uses, deny=["uses"])["type"] == "ready" and place.loaded() == []
