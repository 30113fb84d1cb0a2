"""The helper functions of torch's launching modules, by Phalanx's modules: what they return and raise is torch's."""

import ast
import importlib
import os
import subprocess
import sys

import phalanx.distributed.run
import phalanx.launch
import phalanx.launcher
import phalanx.run
import pytest
import torch.distributed.launch
import torch.distributed.run
from harness import WORKLOADS
from phalanx._launch import torch_names

TELL = str(WORKLOADS / "tell.py")
MODULES = {
    phalanx.run: torch.distributed.run,
    phalanx.distributed.run: torch.distributed.run,
    phalanx.launch: torch.distributed.launch,
}


def outcome(call, *arguments):
    try:
        return call(*arguments)
    except (ValueError, RuntimeError, AssertionError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("own", MODULES, ids=lambda module: module.__name__)
def test_every_function_of_torchs_is_there(own):
    """All that is public and its own in torch's module, of the torch that is installed."""
    theirs = MODULES[own]
    public = [
        name
        for name, value in vars(theirs).items()
        if callable(value) and not name.startswith("_") and value.__module__ == theirs.__name__
    ]
    assert len(public) >= 3
    assert [name for name in public if not callable(getattr(own, name, None))] == []
    assert set(torch_names.RUN if own is not phalanx.launch else torch_names.LAUNCH) <= set(dir(own))


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        *(("parse_min_max_nnodes", text) for text in ("1", "1:4", "4:1", "0", "1:2:3", "", "a", "1:b")),
        *(("determine_local_world_size", text) for text in ("1", "8", "-1", "cpu", "auto", "gpu", "xpu", "tpu", "")),
    ],
)
def test_same_results_and_exceptions(name, argument):
    assert outcome(getattr(phalanx.run, name), argument) == outcome(getattr(torch.distributed.run, name), argument)


LINES = [
    ["x.py"],
    ["--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:1", "--max-restarts=3", "-m", "x", "--", "a"],
    ["--no-python", "x.sh", "b"],
    ["--no-python", "-m", "x"],
    ["--nnodes=2:1", "x.py"],
    ["--max-restarts=-1", "x.py"],
    ["--local-ranks-filter=a", "x.py"],
    ["--logs-specs=mine", "x.py"],
    ["--run-path", "x.py", "c"],
    ["--rdzv-conf=join_timeout", "x.py"],
    ["--redirect=3", "--tee=0:1", "x.py"],
]


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_config_from_args(line):
    """What torch's parser and config make of a line, torch's objects: phalanx.launcher takes them."""

    def shown(module):
        parsed = module.parse_args(["--log-dir=/no/such", *line])  # else a folder is made, by a random name
        config, command, arguments = module.config_from_args(parsed)
        fields = {**vars(config), "logs_specs": vars(config.logs_specs)}
        return fields, command, arguments

    assert outcome(shown, phalanx.run) == outcome(shown, torch.distributed.run)


def test_what_launches_is_ours():
    assert phalanx.run.elastic_launch is phalanx.launcher.elastic_launch
    assert phalanx.run.LaunchConfig is phalanx.launcher.LaunchConfig


@pytest.mark.parametrize("own", MODULES, ids=lambda module: module.__name__)
def test_other_names_are_refused(own):
    with pytest.raises(
        AttributeError, match=r"no attribute '_get_logs_specs_class'; of torch\.distributed\.\w+ it has"
    ):
        getattr(own, "_get_logs_specs_class")  # noqa: B009 - an attribute alone is no statement
    with pytest.raises(ImportError, match="cannot import name 'no_such'"):
        importlib.import_module("builtins").exec(f"from {own.__name__} import no_such", {})


def test_a_name_that_this_torch_lacks(monkeypatch):
    monkeypatch.delattr(torch.distributed.run, "run_script_path")
    with pytest.raises(AttributeError, match=r"no attribute 'run_script_path': torch\.distributed\.run of this torch"):
        getattr(phalanx.run, "run_script_path")  # noqa: B009


def test_without_torch():
    """The module can be imported and launches; a helper says why it is not there."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import phalanx.run\n"
        "try: phalanx.run.parse_args\n"
        "except ImportError as error: print(error)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.startswith("phalanx.run.parse_args is torch's, and torch cannot be imported: ")


CONFIGURED = """
import sys
import phalanx.run
config, command, arguments = phalanx.run.config_from_args(phalanx.run.parse_args(sys.argv[1:]))
print(phalanx.run.elastic_launch(config, command)(*arguments))
"""


def test_a_program_that_builds_its_launch(job):
    """As TorchX and others do: parse, config_from_args, elastic_launch."""
    flags = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nproc-per-node=2"]
    node = job.run(*flags, TELL, "--lr", "1", command=[sys.executable, "-c", CONFIGURED])
    assert node.wait() == 0, job.story()
    assert ast.literal_eval(node.stdout) == {0: None, 1: None}
    assert {tuple(event["argv"][1:]) for event in job.wait_events("told", 2)} == {("--lr", "1")}


@pytest.mark.parametrize(("use_env", "arguments"), [([], ["--local-rank={}", "x"]), (["--use-env"], ["x"])])
def test_the_deprecated_launcher_as_a_command(job, use_env, arguments):
    """Phalanx's own flags count, too."""
    line = [*use_env, "--no-warm", "--nproc-per-node=2", TELL, "x"]
    node = job.run(*line, command=[sys.executable, "-m", "phalanx.launch"])
    assert node.wait() == 0, job.story()
    for event in job.wait_events("told", 2):
        assert event["argv"][1:] == [word.format(event["rank"]) for word in arguments]


FROM_WITHIN = {
    "main": "phalanx.launch.main(sys.argv[1:])",
    "namespace": "phalanx.launch.launch(phalanx.launch.parse_args(sys.argv[1:]))",
}


@pytest.mark.parametrize("way", FROM_WITHIN)
def test_the_deprecated_launcher_from_within(job, way):
    code = f"import sys, phalanx.launch; {FROM_WITHIN[way]}"
    node = job.run("--standalone", "--nproc-per-node=1", TELL, "x", command=[sys.executable, "-c", code])
    assert node.wait() == 0, job.story()
    assert [event["argv"][1:] for event in job.wait_events("told")] == [["--local-rank=0", "x"]]


def test_a_program_that_is_not_python_needs_use_env():
    """torch's words for a namespace; main has phalanx-run's, and an exception that is a ValueError, too."""
    with pytest.raises(ValueError, match="you must also set the '--use-env' flag"):
        phalanx.launch.launch(phalanx.launch.parse_args(["--no-python", os.devnull]))
    with pytest.raises(ValueError, match="phalanx-run refuses"):
        phalanx.launch.main(["--no-python", os.devnull])
