"""docs/dlrover.md says of each name of DLRover what compat/dlrover says, and that is so; the wheel phalanx-dlrover, as
a user gets it."""

import importlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from dlrover_jobs import COMPAT, ROOT, said  # noqa: E402
from harness import WORKLOADS  # noqa: E402

sys.path[:0] = [str(ROOT), str(COMPAT)]

from tools import dlrover_page  # noqa: E402

PAGE = (ROOT / "docs" / "dlrover.md").read_text()
# What a module needs that not every environment has.
NEEDS = {
    "dlrover.trainer.torch.flash_checkpoint.deepspeed": "deepspeed",
    "dlrover.trainer.torch.flash_checkpoint.hf_flash_trainer": "transformers",
    "dlrover.trainer.torch.flash_checkpoint.hf_trainer.FlashCkptTrainer": "transformers",
}


def is_here(name):
    return name not in NEEDS or importlib.util.find_spec(NEEDS[name]) is not None


# --- the page


@pytest.mark.parametrize("heading", [heading for heading, _ in dlrover_page.page()])
def test_the_page_has_the_tables(heading):
    table = dict(dlrover_page.page())[heading]
    assert table in PAGE, "put the output of python tools/dlrover_page.py into docs/dlrover.md"


@pytest.mark.parametrize("module", dlrover_page.modules())
def test_a_module_is_what_it_says(module):
    if not is_here(module):
        pytest.skip(f"no {NEEDS[module]} here")
    offered, refused = dlrover_page.declared(dlrover_page.modules()[module])
    found = importlib.import_module(module)
    assert (found.OFFERED, getattr(found, "REFUSED", {})) == (offered, refused)
    for name in offered:
        if is_here(f"{module}.{name}"):
            assert getattr(found, name) is not None
    for name, why in refused.items():
        with pytest.raises(ImportError) as error:
            getattr(found, name)
        assert str(error.value) == f"phalanx-dlrover does not offer {module}.{name}: {why}"


@pytest.mark.parametrize("module", dlrover_page.modules())
def test_a_module_has_no_other_names(module):
    """A public name that it defines is in its table, so that the page has all of them."""
    if not is_here(module):
        pytest.skip(f"no {NEEDS[module]} here")
    offered, _ = dlrover_page.declared(dlrover_page.modules()[module])
    found = importlib.import_module(module)
    own = {
        name
        for name, value in vars(found).items()
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", None) == module
    }
    internal = {"UsageError", "Plan", "planned", "nodes", "answers", "taken_on", "parser", "arguments_for"}
    if offered:  # modules without are our own
        assert own - internal <= set(offered)


@pytest.mark.parametrize("name", dlrover_page.offered.ABSENT)
def test_a_module_that_is_not_there(name):
    with pytest.raises(ImportError) as error:
        importlib.import_module(f"{name}.anything")
    assert dlrover_page.offered.ABSENT[name] in str(error.value)


def test_other_names():
    for line, sentence in (
        ("import dlrover.nothing", "does not offer the module dlrover.nothing; docs/dlrover.md lists what there is"),
        ("from dlrover.python import unified", "jobs of several roles on Ray are not offered"),
        ("from dlrover.trainer.torch.flash_checkpoint.ddp import Other", "cannot import name 'Other'"),
        (
            "from dlrover.python.elastic_agent.master_client import MasterClient as M; M(None, 0, 1).get_task()",
            "MasterClient.get_task: ShardingClient has it",
        ),
    ):
        done = said_by(line)
        assert done.returncode == 1 and sentence in done.stderr, done.stderr


def said_by(line):
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(COMPAT)!r}); {line}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


# --- the wheel


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the wheel's files and command, built and installed without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(COMPAT, folder / "source", ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder, folder / "source"]
    install = [*pip, "install", "--no-deps", "--no-index", "--target", folder / "site"]
    subprocess.run(build, check=True, capture_output=True, timeout=240)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*install, wheel], check=True, capture_output=True, timeout=240)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wheel(installed, job):
    (wheel,) = installed.glob("*.whl")
    assert wheel.name == "phalanx_dlrover-0.1.0-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {str(path.relative_to(COMPAT)) for path in (COMPAT / "dlrover").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == sources
    node = job.run(
        f"--state-dir={job.folder / 'state'}",
        *("--standalone", "--nproc-per-node=1", WORKLOADS / "light_steps.py", "--steps=3"),
        command=[str(installed / "site" / "bin" / "dlrover-run")],
        env={"PYTHONPATH": str(installed / "site")},
    )
    assert node.wait() == 0, job.story()
    assert [event["n"] for event in job.found("step")] == [1, 2, 3]


def test_nothing_is_pickled():
    for path in (Path(COMPAT) / "dlrover").rglob("*.py"):
        assert "import pickle" not in path.read_text(), path


def test_an_interpreter_without_torch_has_the_command():
    """What starts a job on a login node."""
    line = "import sys; sys.modules['torch'] = None; from dlrover.trainer.torch import main; sys.argv[1:] = ['--help']"
    done = said_by(f"{line}; sys.exit(main.main())")
    assert done.returncode == 0 and done.stdout.startswith("usage: dlrover-run"), done.stderr
    assert said("--help").stdout == done.stdout
