"""What an installer does under a zygote: libraries that are exchanged while it imports them, or that come later."""

import os
import textwrap

import pytest
from zygote_agent import BASE_ENV, Agent

BASE = {name: value for name, value in BASE_ENV.items() if name != "PYTHONDONTWRITEBYTECODE"}


@pytest.fixture
def place(tmp_path):
    """Writes libraries and a script, and gives an agent whose Pythons find these libraries."""
    packages = tmp_path / "site-packages"  # by its name no code of the user's own
    with Agent(base=BASE, env={"PYTHONPATH": str(packages)}) as agent:
        yield _Place(tmp_path / "own", packages, agent)


class _Place:
    def __init__(self, folder, packages, agent):
        self.folder, self.packages, self.agent = folder, packages, agent
        self.script = folder / "script.py"

    def library(self, **modules):
        _write(self.packages, modules)

    def start(self, script):
        _write(self.folder, {"script": script})
        answer = self.agent.start_zygote(self.script, cwd=self.folder)
        assert answer["type"] == "ready", answer

    def life(self):
        """(stdout, why it started afresh or None)."""
        worker = self.agent.fork().run(self.script, cwd=self.folder, base=self.agent.env)
        messages = worker.messages()
        status, out, err = worker.result()
        assert (status, err) == (0, "")
        return out, messages[0].get("cold")


def _write(folder, modules):
    for name, text in modules.items():
        path = folder / (name.replace("__in__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


# What an installer does in another process at this moment of the import. By `posix`, which nobody watches.
MIXED = """
    import os
    import posix
    here = os.path.dirname(__file__)
    {first}
    try:
        {work}
    except OSError:
        pass
    from . import second
    numbers = first.number, second.number
    """
FIRST = "from . import first"
FIRST_OR_NONE = """try:
        from . import first
    except ImportError:
        class first: number = 0"""
HOW = {
    "by names": "posix.rename(here + '/../' + name + '-new', here + '/' + name)",
    "by links": "posix.unlink(here + '/' + name); posix.link(here + '/../' + name + '-new', here + '/' + name)",
    "by pointers": "posix.unlink(here + '/' + name); posix.symlink(here + '/../' + name + '-new', here + '/' + name)",
}


def _aside(place, name, text):
    """A file as old as a wheel says, which an installer's cache has."""
    path = place.packages / f"{name}-new"
    path.write_text(text)
    os.utime(path, (1_600_000_000, 1_600_000_000))


@pytest.mark.parametrize("how", HOW)
def test_a_library_that_is_upgraded_while_it_is_imported(place, how):
    """Its first module is of the old version and its second of the new; its files agree with themselves later."""
    work = f"for name in ('first.py', 'second.py'): {HOW[how]}"
    place.library(mixed__in____init__=MIXED.format(first=FIRST, work=work))
    place.library(mixed__in__first="number = 1", mixed__in__second="number = 1")
    _aside(place, "first.py", "number = 22")
    _aside(place, "second.py", "number = 22")
    place.start("import mixed; print(mixed.numbers)")
    out, why = place.life()
    assert out == "(22, 22)\n"
    assert why == f"{place.packages / 'mixed' / 'first.py'} has changed while it was imported"


EXCHANGE = {
    "renamed": "posix.rename(here, here + '-old'); posix.rename(here + '-new', here)",
    "a pointer": "posix.unlink(here); posix.symlink(here + '-new', here)",
}


@pytest.mark.parametrize("how", EXCHANGE)
def test_a_folder_that_is_exchanged_while_it_is_imported(place, how):
    """All files of the new one are as old as it."""
    texts = {"__init__": MIXED.format(first=FIRST, work=EXCHANGE[how]), "second": "number = 1"}
    place.library(**{f"mixed__in__{name}": text for name, text in {**texts, "first": "number = 1"}.items()})
    for name, text in {**texts, "first": "number = 22", "second": "number = 22"}.items():
        place.library(**{f"mixed-new__in__{name}": text})
    if how == "a pointer":
        os.rename(place.packages / "mixed", place.packages / "mixed-1")
        os.symlink(place.packages / "mixed-1", place.packages / "mixed")
    for file in sorted((place.packages / "mixed-new").iterdir()):
        os.utime(file, (1_600_000_000, 1_600_000_000))
    place.start("import mixed; print(mixed.numbers)")
    out, why = place.life()
    assert out == "(22, 22)\n"
    assert why == f"{place.packages / 'mixed'} has changed while it was imported"


def test_a_module_that_an_upgrade_removes_while_it_is_imported(place):
    work = "posix.unlink(here + '/first.py')"
    place.library(mixed__in____init__=MIXED.format(first=FIRST_OR_NONE, work=work))
    place.library(mixed__in__first="number = 1", mixed__in__second="number = 22")
    place.start("import mixed; print(mixed.numbers)")
    why = f"{place.packages / 'mixed' / 'first.py'} has changed while it was imported"
    assert place.life() == ("(0, 22)\n", why)


def test_an_optional_library_that_comes_behind_the_look_for_it(place):
    """Another library has looked in vain, and goes without it."""
    place.library(
        looks="""
        import posix
        try:
            import optional
        except ImportError:
            optional = None
            posix.rename(__file__[:-8] + "optional.py-new", __file__[:-8] + "optional.py")
        """
    )
    _aside(place, "optional.py", "")
    place.start("import looks; print(looks.optional is not None)")
    why = f"{place.packages / 'optional.py'} has changed while it was imported"
    assert place.life() == ("True\n", why)


def test_what_python_compiles_meanwhile_is_no_change(place):
    place.library(package__in____init__="from . import part", package__in__part="", alone="")
    place.start("import package, alone; print('done')")
    assert place.life() == ("done\n", None)
    assert (place.packages / "package" / "__pycache__").is_dir()


OPTIONAL = """
    import sys
    try:
        import {name}
    except ImportError:
        import instead
    import seen
    print(seen.what)
    """


@pytest.mark.parametrize(("name", "behind"), [("fast", "instead"), ("package.fast", "package")])
def test_an_optional_library_of_the_script_that_comes_between_two_lives(place, name, behind):
    """What is imported behind it would have been imported without it."""
    what = "what = [name for name in ('fast', 'package.fast', 'instead') if name in sys.modules]"
    place.library(instead="", seen=f"import sys\n{what}", package__in____init__="")
    place.start(OPTIONAL.format(name=name))
    assert place.life() == ("['instead']\n", None)
    place.library(**{name.replace(".", "__in__"): ""})
    why = f"{name} has come, and the script does something else now before it imports {behind}"
    assert place.life() == (f"['{name}']\n", why)


def test_an_optional_library_that_changes_nothing_before_it_leaves_spares_warm(place):
    place.library(seen="")
    place.start(
        "import seen\nimport os\nos.getloadavg()\ntry: import fast\nexcept ImportError: fast = None\nprint(fast)"
    )
    assert place.life() == ("None\n", None)
    place.library(fast="")
    out, why = place.life()
    assert out.startswith("<module 'fast'") and why is None
