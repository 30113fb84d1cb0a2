"""phalanx.elasticity, in Python: its calls, its exceptions, its command."""

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
    monkeypatch.setattr(native, "_ROOM_BYTES", 100)
    block = {
        **DOCUMENTED,
        "max_train_batch_size": 10**12,
        "micro_batch_sizes": list(range(1, 1001)),
        "max_gpus": 10**12,
    }
    batch, gpus = elasticity.compute_elastic_config({"elasticity": block}, "0.16.5")
    assert gpus == sorted(gpus)
    assert all(any(batch % size == 0 and batch // size % count == 0 for size in range(1, 1001)) for count in gpus)


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
