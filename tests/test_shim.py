"""phalanx.shim: programs that launch through torch get Phalanx, however they do it; workers see nothing of it."""

import ast
import importlib
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from harness import WORKLOADS
from phalanx._bootstrap.watching import load_watch
from phalanx._launch import flags, surroundings
from phalanx.shim import hooks

SHIM = [sys.executable, "-m", "phalanx.shim", "--"]
TELL = str(WORKLOADS / "tell.py")
RUN = [sys.executable, "-m", "torch.distributed.run"]
LAUNCH = [sys.executable, "-m", "torch.distributed.launch"]
REAL_TORCHRUN = [sys.executable, str(Path(sys.executable).parent / "torchrun")]


def through(job, *arguments, command, env=None):
    return job.run(*arguments, command=[*SHIM, *command], env=env)


def program(way):
    return [sys.executable, str(WORKLOADS / "through_torch.py"), way]


def check_workers(job, count, env):
    """They are Phalanx's, and nothing of the shim is left in their environment."""
    told = job.wait_events("told", count)
    for event in told:
        assert "PHALANX_EPOCH" in event["env"], "not launched by Phalanx"
        assert surroundings.SHIM_PYTHON not in event["env"]
        expected = job.environment(env)
        assert {name: event["env"].get(name) for name in ("PATH", "PYTHONPATH")} == {
            name: expected.get(name) for name in ("PATH", "PYTHONPATH")
        }
    return told


@pytest.mark.parametrize("env", [{}, {"PYTHONPATH": "/no/such:/place"}])
@pytest.mark.parametrize(
    "command", [RUN, [sys.executable, "-um", "torch.distributed.run"], ["torchrun"], REAL_TORCHRUN], ids=repr
)
def test_torchrun_however_it_is_called(job, command, env):
    node = through(job, "--standalone", "--nproc-per-node=2", TELL, "--lr", "1", command=command, env=env)
    assert node.wait() == 0, job.story()
    assert {tuple(event["argv"][1:]) for event in check_workers(job, 2, env)} == {("--lr", "1")}


def test_torchrun_where_pythonpath_is_set_anew(job):
    """As scripts do that are launched by the shim."""
    command = ["sh", "-c", 'PYTHONPATH=. torchrun "$@"', "sh"]
    node = through(job, "--standalone", "--nproc-per-node=2", TELL, command=command)
    assert node.wait() == 0, job.story()
    check_workers(job, 2, {"PYTHONPATH": "."})


FUNCTION_ELSEWHERE = """
import os, phalanx, sys

def where(word):
    import phalanx
    return word, sys.prefix, os.environ["RANK"]

if __name__ == "__main__":
    print(phalanx.elastic_launch(phalanx.LaunchConfig(1, 1, 2, max_restarts=0), where)("a"))
"""


def test_functions_of_an_environment_without_phalanx(job):
    """The caller has it by the shim, its workers by the path of the file that they run."""
    venv = job.folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (job.folder / "program.py").write_text(FUNCTION_ELSEWHERE)
    without = subprocess.run([venv / "bin" / "python", "-c", "import phalanx"], capture_output=True)
    assert without.returncode != 0
    node = through(job, job.folder / "program.py", command=[str(venv / "bin" / "python")])
    assert node.wait() == 0, job.story()
    assert ast.literal_eval(node.stdout) == {rank: ("a", str(venv), str(rank)) for rank in (0, 1)}


def test_slurm_does_not_count_for_a_namespace(job):
    """It says 1 of everything, where Slurm has more."""
    slurm = {"SLURM_JOB_ID": 7, "SLURM_STEP_ID": 0, "SLURM_NODEID": 0, "SLURM_STEP_NUM_NODES": 2}
    slurm.update(SLURM_STEP_NODELIST="127.0.0.[1-2]", SLURM_STEP_TASKS_PER_NODE="1(x2)", SLURM_GPUS_ON_NODE=2)
    node = through(job, "--nnodes=1:1", "--nproc-per-node=1", TELL, command=program("by_namespace"), env=slurm)
    assert node.wait() == 0, job.story()
    assert [event["env"]["WORLD_SIZE"] for event in job.found("told")] == ["1"]


LOADERS = """
import importlib.machinery, sys

class Slotted:
    __slots__ = ()
    def create_module(self, spec): return None
    def exec_module(self, module): module.main = "theirs"

class Plain(Slotted):
    pass

class Old:
    def load_module(self, name):
        module = sys.modules[name] = type(sys)(name)
        module.main = "theirs"
        return module

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name not in ("torch", "torch.distributed", "torch.distributed.run"): return None
        loader = {KIND}() if name == "torch.distributed.run" else Plain()
        return importlib.machinery.ModuleSpec(name, loader, is_package=name != "torch.distributed.run")

sys.meta_path.insert(0, Finder())  # the watch comes before it
import phalanx.shim
phalanx.shim.install()
phalanx.shim.install()
import torch.distributed.run
print(torch.distributed.run.main if torch.distributed.run.main == "theirs" else torch.distributed.run.main.__module__)
"""


@pytest.mark.parametrize(("kind", "module"), [("Plain", "phalanx.run"), ("Slotted", "theirs"), ("Old", "theirs")])
def test_modules_of_unusual_loaders(job, kind, module):
    """What cannot be watched is left as it is; the program does not end by it."""
    node = job.run("-c", LOADERS.replace("{KIND}", kind), command=[sys.executable])
    assert node.wait() == 0, job.story()
    assert node.stdout.strip() == module


def test_two_watches_for_one_module(tmp_path, monkeypatch):
    (tmp_path / "watched_module.py").write_text("x = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = []
    for word in ("a", "b"):
        load_watch.when_loaded({"watched_module": lambda module, word=word: seen.append((word, module.x))})
    assert load_watch.is_awaited("watched_module")
    importlib.import_module("watched_module")
    assert sorted(seen) == [("a", 1), ("b", 1)]
    assert not load_watch.is_awaited("watched_module")


@pytest.mark.parametrize("command", [RUN, LAUNCH, ["torchrun"]], ids=repr)
def test_torch_is_not_imported_to_launch(job, command):
    """`-m torch.distributed.run` (or `.launch`) is caught before Python looks for torch: a second of every launch."""
    trap = job.folder / "torch"
    trap.mkdir()
    (trap / "__init__.py").write_text("raise SystemExit('torch was imported')")
    node = through(job, "--standalone", TELL, command=command, env={"PYTHONPATH": str(job.folder)})
    assert node.wait() == 0, job.story()
    assert "torch was imported" not in node.stderr


@pytest.mark.parametrize(("use_env", "arguments"), [([], ["--local-rank={}", "x"]), (["--use-env"], ["x"])])
def test_the_deprecated_launcher(job, use_env, arguments):
    """It gives the script --local-rank, unless it is asked not to."""
    node = through(job, *use_env, "--nproc-per-node=2", TELL, "x", command=LAUNCH)
    assert node.wait() == 0, job.story()
    for event in check_workers(job, 2, {}):
        assert event["argv"][1:] == [word.format(event["rank"]) for word in arguments]


@pytest.mark.parametrize(
    "way", ["by_name", "by_main", "by_namespace", "by_launch", "install", "install_late", "install_late_launch"]
)
def test_programs_that_launch(job, way):
    """torchrun by name through subprocess, and torch.distributed.run from within."""
    command = program(way)
    arguments = ["--standalone", "--nproc-per-node=2", TELL, "--", "a b"]
    node = job.run(*arguments, command=command) if "install" in way else through(job, *arguments, command=command)
    assert node.wait() == 0, job.story()
    event = job.wait_events("launched")[0]
    assert event.get("status", 0) == 0 and event.get("values") is None and "raised" not in event
    assert {tuple(event["argv"][1:])[-1] for event in check_workers(job, 2, {})} == {"a b"}


@pytest.mark.parametrize("way", ["by_main", "by_namespace"])
def test_failures_are_raised_in_the_program(job, way):
    arguments = ["--standalone", "--max-restarts=0", "--nproc-per-node=1"]
    node = through(job, *arguments, TELL, "--exit", "3", command=program(way))
    assert node.wait() == 0, job.story()
    # A Namespace does not tell 0 that was given from 0 that is torch's default: Phalanx's own default counts then.
    assert job.wait_events("launched")[0]["raised"] == "ChildFailedError"


@pytest.mark.parametrize("way", ["by_main", "by_namespace", "by_name"])
def test_what_phalanx_refuses_stays_refused(job, way):
    """In its own words, whichever way the flag came."""
    node = through(job, "--logs-specs=mine", TELL, command=program(way))
    assert node.wait() == 0, job.story()
    event = job.wait_events("launched")[0]
    assert event.get("code", event.get("status")) == 2
    assert "--logs-specs" in node.stderr and "plug-ins of torchrun" in node.stderr
    assert not job.found("told")


def test_functions_through_torch(job):
    node = through(job, "word", command=program("by_elastic_launch"))
    assert node.wait() == 0, job.story()
    assert job.wait_events("launched")[0]["values"] == {"0": ["word", "0", True], "1": ["word", "1", True]}


def test_launch_agent(job):
    node = through(job, TELL, command=program("by_launch_agent"))
    assert node.wait() == 0, job.story()
    check_workers(job, 2, {})


def test_a_sitecustomize_that_it_hides(job):
    """It is run, once, by its name; and the program finds its own."""
    (job.folder / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = __name__\n")
    code = "import sitecustomize; print(mine, sitecustomize.__file__)"
    node = through(job, "-c", code, command=[sys.executable], env={"PYTHONPATH": str(job.folder)})
    assert node.wait() == 0, job.story()
    assert node.stdout.split() == ["sitecustomize", str(job.folder / "sitecustomize.py")]


def test_a_program_that_has_nothing_to_do_with_it(job):
    """torch is not imported for it, and its own exit status is the command's."""
    code = "import sys; print('torch' in sys.modules, sys.argv[1:]); sys.exit(5)"
    node = through(job, "-c", code, "--", "a", command=[sys.executable])
    assert node.wait() == 5
    assert node.stdout == "False ['--', 'a']\n"


@pytest.mark.parametrize(
    ("words", "status", "text"), [([], 2, "no command"), (["no-such-program"], 127, "no-such-program")]
)
def test_commands_that_are_none(job, words, status, text):
    node = job.run(*words, command=SHIM)
    assert node.wait() == status
    assert text in node.stderr


@pytest.mark.parametrize(
    ("argv", "line", "module"),
    [
        (["-m", "a"], ["py", "-m", "x.y", "a"], "x.y"),
        (["-m"], ["py", "-um", "x.y"], "x.y"),
        (["-m", "-m", "z"], ["py", "-u", "-mx.y", "-m", "z"], "x.y"),
        (["x.py", "-m", "z"], ["py", "x.py", "-m", "z"], None),
        (["-c", "a"], ["py", "-c", "pass", "a"], None),
        ([""], ["py"], None),
        ([], [], None),
        (["-m", "a"], [], None),
    ],
)
def test_which_module_python_runs(argv, line, module):
    assert hooks.module_to_run(argv, line) == module


@pytest.mark.parametrize("base", [{}, {"PATH": "/a"}, {"PATH": "/a:/b", "PYTHONPATH": "/c"}])
def test_the_shim_leaves_no_trace(base):
    """Also where a program has put something before it."""
    changed = surroundings.with_shim(base, "/py")
    again = surroundings.with_shim(changed, "/py")
    assert again == changed, "a shim within a shim is one shim"
    assert surroundings.without_shim(changed) == {"PATH": os.defpath, **base}
    changed["PATH"] = "/first:" + changed["PATH"]
    assert surroundings.without_shim(changed)["PATH"] == "/first:" + base.get("PATH", os.defpath)


DEFAULTS = {
    "nnodes": "1:1",
    "nproc_per_node": "1",
    "standalone": False,
    "max_restarts": 0,
    "master_port": None,
    "duplicate_stdout_filters": [],
    "module": False,
    "training_script": None,
    "training_script_args": None,
}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, []),
        ({"max_restarts": "0", "nnodes": None}, []),  # of another type, as programs set them
        ({"nnodes": "1:1", "nproc_per_node": 1}, ["--nnodes=1:1", "--nproc-per-node=1"]),  # where Slurm says otherwise
        ({"nnodes": 2, "master_port": 29501}, ["--nnodes=2", "--master-port=29501"]),
        ({"standalone": True, "module": True}, ["--standalone", "--module"]),
        ({"duplicate_stdout_filters": ["a", "b,c"]}, ["--duplicate-stdout-filters=a,b,,c"]),
        ({"not_of_torchrun": 5}, []),
    ],
)
def test_flags_of_a_namespace(values, words):
    parsed = vars(Namespace(training_script="x.py", training_script_args=["--", 1], **values))
    assert flags.from_namespace(parsed, DEFAULTS) == [*words, "--", "x.py", "--", "1"]
    old = flags.from_namespace({**parsed, "use_env": False}, DEFAULTS)
    assert old == [*words, "--", "x.py", "--local-rank=${local_rank}", "--", "1"]
    assert flags.from_namespace({**parsed, "use_env": True}, DEFAULTS) == [*words, "--", "x.py", "--", "1"]


@pytest.mark.parametrize("command", [RUN, ["torchrun"], REAL_TORCHRUN], ids=repr)
def test_who_launches_is_not_told_that_nothing_was(job, command):
    node = through(job, "--standalone", TELL, command=[sys.executable, str(WORKLOADS / "calls.py"), *command])
    assert node.wait() == 0, job.story()
    assert "nothing was launched" not in node.stderr


RANK_OF_MPI = "OMPI_COMM_WORLD_RANK={} OMPI_COMM_WORLD_SIZE=2 {} -c '{}'"
AS_MPIRUN = [
    "phalanx.shim: nothing was launched through Phalanx: mpirun has started 2 processes itself: give phalanx-run the "
    "script in its place, with --nproc-per-node"
]


@pytest.mark.parametrize("through_python", [False, True], ids=["the-command", "below-python"])
def test_what_mpirun_starts_is_told_of_once(job, through_python):
    ranks = "; ".join(RANK_OF_MPI.format(rank, sys.executable, "pass") for rank in (0, 1))
    words = ["sh", "-c", ranks]
    if through_python:
        words = [sys.executable, "-c", f"import subprocess; subprocess.check_call({words!r})"]
    node = job.run(*words[1:], command=[*SHIM, words[0]])
    assert node.wait() == 0
    assert node.stderr.splitlines() == AS_MPIRUN


@pytest.mark.parametrize("command", [["torchrun"], REAL_TORCHRUN], ids=repr)
def test_a_launcher_below_mpirun_goes_through_phalanx(job, command):
    first_of_two = ["env", "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2"]
    node = through(job, "--standalone", "--nproc-per-node=2", TELL, command=[*first_of_two, *command])
    assert node.wait() == 0, job.story()
    check_workers(job, 2, {})
    assert "nothing was launched" not in node.stderr


def test_a_command_that_launches_nothing_is_told_of(job):
    node = job.run("-c", "print('hello')", command=[*SHIM, sys.executable])
    assert node.wait() == 0
    assert node.stdout == "hello\n"
    assert node.stderr == "phalanx.shim: nothing was launched through Phalanx: -c has not started torch's launcher\n"
