"""phalanx.elasticity, in Python: its calls, its exceptions, its command."""

import collections
import enum
import json
import logging
import math
import subprocess
import sys

import pytest
from harness import clean_environment
from phalanx import elasticity
from phalanx.elasticity import native
from test_elasticity import outcome, rows

DOCUMENTED = {
    "enabled": True,
    "max_train_batch_size": 8,
    "micro_batch_sizes": [4, 2],
    "min_gpus": 1,
    "max_gpus": 4,
    "version": 0.1,
}
REFUSALS = (elasticity.ElasticityError, ArithmeticError, NotImplementedError, TypeError, ValueError)


@pytest.fixture(autouse=True)
def no_world(monkeypatch):
    for name in ("WORLD_SIZE", elasticity.DEEPSPEED_ELASTICITY_CONFIG):
        monkeypatch.delenv(name, raising=False)


def asked(row, monkeypatch):
    """The outcome of a row of tests/data/elasticity, in its shape."""
    for name, value in row.get("env", {}).items():
        monkeypatch.setenv(name, value)
    try:
        answer = elasticity.compute_elastic_config(
            row["ds_config"], row["target_version"], row["world_size"], row["return_microbatch"]
        )
    except REFUSALS as error:
        return {"error": {"class": type(error).__name__, "message": str(error)}}
    finally:
        monkeypatch.delenv("WORLD_SIZE", raising=False)
    ok = {"final_batch_size": answer[0], "valid_gpus": None if answer[1] is None else {"list": answer[1]}}
    return {"ok": {**ok, **({"micro_batch_size": answer[2]} if len(answer) == 3 else {})}}


def test_rows_are_answered_as_deepspeed_did(monkeypatch):
    for row in rows("public.jsonl"):
        wanted = {key: row[key] for key in ("ok", "error") if key in row}
        assert outcome(asked(row, monkeypatch), row) == wanted, row


def test_exceptions_are_of_deepspeeds_family():
    for refused in (elasticity.ElasticityConfigError, elasticity.ElasticityIncompatibleWorldSize):
        assert issubclass(refused, elasticity.ElasticityError)
    with pytest.raises(elasticity.ElasticityConfigError, match="at most 1099511627776 is taken"):
        elasticity.compute_elastic_config({"elasticity": {**DOCUMENTED, "max_train_batch_size": 2**41}}, "0.16.5")
    with pytest.raises(ValueError, match=r"Invalid version: '\?'"):
        elasticity.compute_elastic_config({"elasticity": DOCUMENTED}, "?")
    with pytest.raises(ZeroDivisionError):
        elasticity.compute_elastic_config({"elasticity": DOCUMENTED}, "0.16.5", return_microbatch=True)


def test_the_rest_of_a_config_may_be_anything():
    config = {"elasticity": DOCUMENTED, "dtype": object(), 3: {1, 2}}
    assert elasticity.compute_elastic_config(config, "0.16.5") == (8, [1, 2, 4])
    with pytest.raises(ValueError, match="received a <class 'NoneType'>, containing: None"):
        elasticity.compute_elastic_config(None, "0.16.5")


def test_long_answers_come_whole(monkeypatch):
    monkeypatch.setattr(native, "_ROOM", 10)
    block = {
        **DOCUMENTED,
        "max_train_batch_size": 10**12,
        "micro_batch_sizes": list(range(1, 1001)),
        "max_gpus": 10**12,
    }
    batch, gpus = elasticity.compute_elastic_config({"elasticity": block}, "0.16.5")
    assert len(gpus) > 10
    assert gpus == sorted(gpus)
    assert all(any(batch % size == 0 and batch // size % count == 0 for size in range(1, 1001)) for count in gpus)


def test_a_block_is_taken_as_json_would_carry_it():
    """What json.dumps makes of it counts: a tuple is a list, and what JSON cannot carry is refused."""

    class Size(enum.IntEnum):
        FOUR = 4

    block = {**DOCUMENTED, "micro_batch_sizes": (Size.FOUR, 2), "more": {"a": (1,)}}
    assert elasticity.compute_elastic_config({"elasticity": block}, "0.16.5") == (8, [1, 2, 4])
    assert elasticity.compute_elastic_config({"elasticity": collections.OrderedDict(block)}, "0.16.5")[0] == 8
    assert block["micro_batch_sizes"] == (Size.FOUR, 2)
    for value in (object(), {1, 2}):
        with pytest.raises(TypeError, match="not JSON serializable"):
            elasticity.compute_elastic_config({"elasticity": {**DOCUMENTED, "more": value}}, "0.16.5")
    for none in (None, [], "x", 4):
        with pytest.raises(AttributeError, match="the elasticity block should be a JSON object, and is <class"):
            elasticity.compute_elastic_config({"elasticity": none}, "0.16.5")


def said(error, version="0.1", **members):
    block = {**DOCUMENTED, "version": version, **members}
    with pytest.raises(error) as refused:
        elasticity.compute_elastic_config({"elasticity": block}, "0.16.5", world_size=3)
    return str(refused.value)


def test_refusals_have_deepspeeds_words():
    """Of types that people seldom write; tests/data has the others."""
    refused = elasticity.ElasticityConfigError
    assert said(refused, micro_batch_sizes="x").endswith("instead is: <class 'str'>, containing: x")
    assert said(refused, micro_batch_sizes=[4, 2.0, "a"]).endswith("instead contains: f[4, 2.0, 'a']")
    assert said(refused, micro_batch_sizes=[True, 0]).endswith("positive integers, instead contains: f[True, 0]")
    assert said(refused, min_gpus=False).endswith("must be > 0, given min_gpus: False, max_gpus: 4")
    assert said(refused, min_gpus=5).endswith("cannot be greater than max_gpus, given min_gpus: 5, max_gpus: 4")
    assert said(refused, model_parallel_size=0.5).endswith("less than 1, given model-parallel size: 0.5")
    assert said(refused, num_gpus_per_node=False).endswith("less than 1, given number of GPUs per node: False")
    assert said(refused, min_time=-1.5) == "Elasticity min time needs to be >= 0: given -1.5"
    assert said(refused, "nan", model_parallel_size=2).startswith("Elasticity Vnan does not support model-parallel")
    assert said(refused, " 1e0 ").startswith("Attempting to run elasticity version  1e0  but runtime")
    assert said(NotImplementedError, 0.15) == "Unable to find elastic logic for version: 0.15"
    assert said(ValueError, max_train_batch_size=3.5).endswith("or equal to max_acceptable_batch_size: 3.5")
    assert said(TypeError, max_gpus="4")
    assert said(TypeError, None)
    assert said(elasticity.UFuncTypeError, micro_batch_sizes=[True])
    why = said(elasticity.ElasticityIncompatibleWorldSize, max_train_batch_size=12, micro_batch_sizes=[4, 10])
    assert why.endswith("[1, np.int64(2)]")


def test_what_is_too_large_is_said_where_deepspeed_would_search():
    limit = elasticity.ElasticityLimitError
    assert said(limit, max_train_batch_size=10**400).startswith("max_train_batch_size is 1000")
    assert said(limit, "0.2", max_train_batch_size=10**400).startswith("max_train_batch_size is 1000")
    assert said(limit, "0.2", max_gpus=1e300) == "max_gpus is 1e+300: at most 1099511627776 is taken"
    assert said(limit, micro_batch_sizes=[1] * 1001) == "micro_batch_sizes has 1001 elements: at most 1000 are taken"
    assert said(OverflowError, "0.2", max_gpus=math.inf)
    assert said(ValueError, "0.2", num_gpus_per_node=2**41).startswith("All micro batches must be")
    with pytest.raises(limit, match="the world size is 10000001: at most 10000000 is taken"):
        elasticity.compute_elastic_config({"elasticity": DOCUMENTED}, "0.16.5", world_size=10_000_001)


def test_limits_that_are_no_numbers_leave_out_a_whole_batch():
    """Python's comparisons with NaN are false: a GPU for each micro batch is left out, all else stays."""

    def counts(**members):
        block = {**DOCUMENTED, "max_train_batch_size": 12, "micro_batch_sizes": [2], **members}
        return elasticity.compute_elastic_config({"elasticity": block}, "0.16.5")[1]

    assert counts(max_gpus=math.inf) == [1, 2, 3, 6]
    assert counts(min_gpus=math.nan, max_gpus=10) == [1, 2, 3]
    assert counts(min_gpus=2, max_gpus=math.nan) == [2, 3]
    assert counts(min_gpus=1.5, max_gpus=3.5) == [2, 3]
    assert counts(min_gpus=True, max_gpus=True) == [1]


NEW_ENOUGH = (
    *("0.16.5", "0.3.8", "0.4", "00.03.08", "0.3.8.0.1", " 0.16.5\n", "v0.4", "V1.0", "1!0.1", "0.3.8+local"),
    *(
        "0.3.8-1",
        "0.3.8.post1.dev1",
        "0.3.8_rev3",
        "0.3.8r",
        "0.16.5-rc.1",
        "\u00a00.16.5\u2028",
        "9" * 30,
        "1.0+a_b-1.c",
    ),
)
TOO_OLD = ("0.3.7", "0.3", "0!0.3.7", "0.3.8rc1", "0.3.8.dev0", "0.3.8a", "0.3.8-alpha_1", "0.3.8preview")
NO_VERSIONS = ("", "abc", "1.0.", ".1", "1..2", "1.0+", "1.0+a..b", "0.3.8--1", "1.0 0", "vv1", "0.3.\u0668", None, 5)


def test_versions_are_ordered_as_packaging_does():
    for version in NEW_ENOUGH:
        assert elasticity.compute_elastic_config({"elasticity": DOCUMENTED}, version)[0] == 8, version
    for version in TOO_OLD:
        with pytest.raises(elasticity.ElasticityError) as refused:
            elasticity.compute_elastic_config({"elasticity": DOCUMENTED}, version)
        why = f"Target deepspeed version of {version} is not compatible with minimum version 0.3.8"
        assert str(refused.value) == f"{why} supporting elasticity."
    for version in NO_VERSIONS:
        with pytest.raises(elasticity.InvalidVersion, match="Invalid version: "):
            elasticity.compute_elastic_config({"elasticity": DOCUMENTED}, version)


def test_behaviour_of_the_last_version():
    config = {"elasticity": {**DOCUMENTED, "micro_batch_sizes": [6, 8], "max_train_batch_size": 9}}
    assert elasticity.compute_elastic_config(config, "0.16.5")[0] == 24
    assert elasticity.compute_elastic_config(config, "0.16.5", deepspeed_version="0.19.7")[0] == 8
    with pytest.raises(ValueError, match=r"deepspeed_version is '0\.19\.8'"):
        elasticity.compute_elastic_config(config, "0.16.5", deepspeed_version="0.19.8")


def test_enabled():
    assert elasticity.elasticity_enabled({"elasticity": DOCUMENTED}) is True
    assert elasticity.elasticity_enabled({"elasticity": {}}) is False
    assert elasticity.elasticity_enabled({}) is False


def test_immutable_configs(monkeypatch, caplog):
    with caplog.at_level(logging.WARNING):
        elasticity.ensure_immutable_elastic_config(DOCUMENTED)
    assert "DEEPSPEED_ELASTICITY_CONFIG is not set" in caplog.text
    for row in rows("immutable.jsonl"):
        if row["scheduler_env"] is None:
            continue
        monkeypatch.setenv(elasticity.DEEPSPEED_ELASTICITY_CONFIG, json.dumps(row["scheduler_env"]))
        if "error" not in row:
            elasticity.ensure_immutable_elastic_config(row["runtime"])
            continue
        with pytest.raises(getattr(elasticity, row["error"]["class"])) as refused:
            elasticity.ensure_immutable_elastic_config(row["runtime"])
        assert str(refused.value) == row["error"]["message"]
    monkeypatch.setenv(elasticity.DEEPSPEED_ELASTICITY_CONFIG, "{")
    with pytest.raises(json.JSONDecodeError, match="no JSON"):
        elasticity.ensure_immutable_elastic_config(DOCUMENTED)


def test_learning_rates():
    assert elasticity.scale_lr(0.1, 8, 32) == pytest.approx(0.4)
    assert elasticity.scale_lr(0.1, 8, 32, rule="sqrt") == pytest.approx(0.2)
    assert elasticity.scale_lr(0.1, 8, 32, rule="none") == 0.1
    with pytest.raises(ValueError, match="rule is 'cubic': it may be 'linear', 'sqrt', 'none'"):
        elasticity.scale_lr(0.1, 8, 32, rule="cubic")
    for base, batch in ((0, 8), (8, -1), (8, math.inf)):
        with pytest.raises(ValueError, match="a batch size is above 0"):
            elasticity.scale_lr(0.1, base, batch)


def test_what_only_looks_like_deepspeed_is_left_alone(tmp_path):
    """(The real one is in test_deepspeed.py.)"""
    config = tmp_path / "deepspeed" / "runtime" / "config.py"
    script = (
        "import phalanx.elasticity.deepspeed, deepspeed\n"
        "try:\n"
        "    import deepspeed.elasticity\n"
        "except ModuleNotFoundError as error:\n"
        "    print(error.name)\n"
        "else:\n"
        "    import deepspeed.runtime.config as config\n"
        "    print(deepspeed.elasticity.ELASTICITY, vars(config.DeepSpeedConfig).get('_param_dict'))\n"
    )
    config.parent.mkdir(parents=True)
    (tmp_path / "deepspeed" / "__init__.py").touch()
    run = [sys.executable, "-c", script]
    environment = {**clean_environment(), "PYTHONPATH": str(tmp_path)}
    assert subprocess.check_output(run, text=True, env=environment) == "deepspeed.elasticity\n"
    config.write_text("class DeepSpeedConfig:\n    'One of the future.'\n")
    assert subprocess.check_output(run, text=True, env=environment) == "elasticity None\n"


def command(*arguments):
    command = [sys.executable, "-m", "phalanx.elasticity", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=clean_environment())


def test_the_command_prints_what_ds_elastic_printed(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"elasticity": DOCUMENTED}))
    block = json.dumps(DOCUMENTED, indent=4, sort_keys=True)
    line = "-" * 42
    shown = f"{line}\nElasticity config:\n{line}\n{block}\n{line}\n"
    plan = "final_batch_size .... 8\nvalid_gpus .......... [1, 2, 4]\n"
    assert command("-c", path).stdout == f"{shown}Calculated results:\n{line}\n{plan}"
    sized = f"{shown}Calculated results for world size 4:\n{line}\n{plan}micro_batch_size .... 2\n"
    assert command("-c", path, "-w", "4").stdout == sized


def test_the_command_says_what_is_wrong(tmp_path):
    path = tmp_path / "config.json"
    for text, why in (
        ("{", "JSONDecodeError"),
        ("[]", "ValueError: Expected ds_config to be a dictionary"),
        ("{}", "ElasticityConfigError: 'elasticity' is missing"),
        ('{"elasticity": {"enabled": true}}', "ElasticityConfigError: Elasticity config missing max_train_batch_size"),
    ):
        path.write_text(text)
        done = command("-c", path)
        assert done.returncode == 1
        assert done.stderr.startswith(f"phalanx.elasticity: {path}: {why}")
    assert "FileNotFoundError" in command("-c", tmp_path / "nothing").stderr
