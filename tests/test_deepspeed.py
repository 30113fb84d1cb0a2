"""phalanx.elasticity beside DeepSpeed itself, of three versions, in environments of tools/deepspeeds.py. The first time
they are made here, which takes a minute or two."""

import functools
import json
import random
import subprocess
import sys
from pathlib import Path

import elasticity_oracle
import pytest
from harness import WORKLOADS, clean_environment, command_path
from test_elasticity_python import DOCUMENTED

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import deepspeeds  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WITH_ELASTICITY = ("0.16.5", "0.19.7")
FORMS = ("dict", "file", "base64")
ROWS = 20_000
SEED = 20_261_122
# All that DeepSpeed's elasticity raises; an AssertionError is so rare that not every seed meets one.
CLASSES = {
    *("ElasticityConfigError", "ElasticityError", "ElasticityIncompatibleWorldSize", "InvalidVersion"),
    *("JSONDecodeError", "NotImplementedError", "AttributeError", "OverflowError", "TypeError", "UFuncTypeError"),
    *("ValueError", "ZeroDivisionError"),
}


def long(version):
    """Of the versions in between, the random configurations are asked in each run, and the jobs in a long one."""
    return pytest.param(version, marks=pytest.mark.long)


environment = functools.lru_cache(maxsize=None)(deepspeeds.prepare)


@pytest.mark.parametrize("version", WITH_ELASTICITY)
def test_random_configurations_are_answered_as_deepspeed_does(version):
    command = [
        *(sys.executable, ROOT / "tests" / "elasticity_oracle.py"),
        *("--deepspeed", deepspeeds.modules(environment(version)), "--version", version),
        *("--command", command_path("phalanx"), "--count", ROWS, "--seed", SEED),
    ]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=clean_environment())
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    for who, classes in (("alike: ", CLASSES), ("alike of the command: ", CLASSES - {"OverflowError"})):
        alike = next(line for line in done.stdout.splitlines() if line.startswith(who))
        assert classes - set(alike.replace(",", "").split()) == set()


def config_with(block, **more):
    return {"elasticity": block, "zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True, **more}


@pytest.mark.parametrize("version", [deepspeeds.VERSIONS[0], long(deepspeeds.VERSIONS[1]), deepspeeds.VERSIONS[2]])
def test_a_job_trains_with_the_batch_of_its_size(make_job, tmp_path, version):
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(config_with(DOCUMENTED)))
    for nproc, batch, flags in ((1, [8, 4, 2], ["--no-warm"]), (2, [8, 4, 1], [])):
        job = zero_job(make_job(), version, path, nproc, flags)
        node = job.nodes[0]
        assert node.wait(300) == 0, job.story()
        told = json.loads(next(line for line in node.stdout.splitlines() if line.startswith('{"version"')))
        assert told == {"version": version, "batch": batch, "expected": batch, "steps": 3, "zero": 1}


@pytest.mark.parametrize("version", [*map(long, deepspeeds.VERSIONS[:-1]), deepspeeds.VERSIONS[-1]])
def test_a_size_that_the_block_has_no_place_for(make_job, tmp_path, version):
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(config_with(DOCUMENTED)))
    job = zero_job(make_job(), version, path, 3, ["--no-warm"])
    assert job.nodes[0].wait(300) == 1, job.story()
    words = "ElasticityIncompatibleWorldSize: World size (3) is not valid with the current list of valid GPU counts:"
    assert f"{words} [1, 2, 4]" in job.nodes[0].stderr, job.story()


def zero_job(job, version, path, nproc, flags=()):
    venv = environment(version)
    flags = [
        *flags,
        "--standalone",
        f"--nproc-per-node={nproc}",
        f"--state-dir={job.folder / 'state'}",
        "--max-restarts=0",
    ]
    command = [str(venv / "bin" / "phalanx-run")]
    job.run(*flags, WORKLOADS / "zero.py", path, 3, command=command, env=deepspeeds.ON_CPU)
    return job


def cases():
    """Configurations that differ in what DeepSpeedConfig itself looks at, then random ones."""
    fixed = {"train_batch_size": 64, "gradient_accumulation_steps": 2}
    ignoring = {**DOCUMENTED, "ignore_non_elastic_batch_info": True}
    parallel = {**DOCUMENTED, "version": 0.2, "num_gpus_per_node": 6, "model_parallel_size": 4}
    plain = {"train_batch_size": 8}
    yield from (case(config_with(DOCUMENTED), form, size) for form in FORMS for size in (None, 1, 2, 3, 4))
    yield from (case(config_with(block, **fixed)) for block in (DOCUMENTED, ignoring))
    yield from (case(config_with(DOCUMENTED, **{key: None})) for key in fixed)
    yield from (case(config_with({**DOCUMENTED, "enabled": False}, **plain), form) for form in FORMS)
    yield from (case(config_with(block, **plain)) for block in ({}, None, [], "no block", 7))
    yield from (case(config, form) for config in (plain, {}, {**plain, "elastic": 1}) for form in FORMS)
    yield from (case(config_with(DOCUMENTED), scheduler=block) for block in (DOCUMENTED, {}, parallel))
    yield from (case(config_with({**parallel, "num_gpus_per_node": count}), world_size=2) for count in (4, 8))
    yield from (case(config_with(DOCUMENTED, sequence_parallel_size=1), form) for form in FORMS)
    yield case({**plain, "sparse_attention": {}, "elasticity": DOCUMENTED})
    rng = random.Random(SEED)
    for number in range(300):
        row = elasticity_oracle.random_row(rng, number)
        if isinstance(row["ds_config"], dict):
            yield case(
                {**row["ds_config"], "steps_per_print": 5}, rng.choice(FORMS), rng.choice((None, 1, 2, 4, 8, 24))
            )


def case(config, form="dict", world_size=None, scheduler=None):
    return {"config": config, "form": form, "world_size": world_size, "scheduler": scheduler}


def outcomes(version, when, asked, folder):
    command = [
        environment(version) / "bin" / "python",
        ROOT / "tests" / "deepspeed_configs.py",
        when,
        folder / "c.json",
    ]
    text = "".join(f"{json.dumps(one)}\n" for one in asked)
    env = {**clean_environment(), **deepspeeds.ON_CPU, "WORLD_SIZE": "1"}
    done = subprocess.run(command, input=text, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return [json.loads(line[len("outcome ") :]) for line in done.stdout.splitlines() if line.startswith("outcome ")]


@pytest.mark.parametrize("when", ["before", "after"])
def test_configurations_mean_what_they_meant(tmp_path, when):
    """DeepSpeed without elasticity, and ours, against the last DeepSpeed that had it (and keeps its own)."""
    asked = list(cases())
    wanted, got = (outcomes(version, when, asked, tmp_path) for version in ("0.19.7", "0.19.8"))
    assert len(wanted) == len(asked)
    limited = 0
    for one, want, have in zip(asked, wanted, got, strict=True):
        if have.get("error", {}).get("class") == elasticity_oracle.OUR_LIMIT:
            limited += 1
        else:
            assert elasticity_oracle.same(want, have), (one, want, have)
    assert limited < len(asked) / 20, "what is beyond our limits is compared with nothing"
