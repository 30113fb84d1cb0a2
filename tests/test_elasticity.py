"""Batch plans against what DeepSpeed answered: tests/data/elasticity."""

import hashlib
import json
import os
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest
from harness import command_path

DATA = Path(__file__).resolve().parent / "data" / "elasticity"
# Their texts are Python's own, or numpy's, and change with them.
ANY_TEXT = {"TypeError", "UFuncTypeError", "ZeroDivisionError"}


def rows(name):
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def ask(*arguments, given=None, expect=0):
    """What `phalanx elasticity` says; where it ends with another code, on stderr."""
    command = [command_path("phalanx"), "elasticity", *map(str, arguments)]
    environment = {key: value for key, value in os.environ.items() if key != "WORLD_SIZE"}
    done = subprocess.run(command, input=given, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == expect, (done.returncode, done.stdout, done.stderr)
    return done.stdout if expect == 0 else done.stderr


def answers(lines, *flags):
    text = ask("plan", "--jsonl", *flags, given="".join(f"{line}\n" for line in lines))
    return [json.loads(line) for line in text.splitlines()]


def summary(gpus):
    numbers = gpus["list"]
    digest = hashlib.sha256(",".join(map(str, numbers)).encode()).hexdigest()
    return {"len": len(numbers), "first": numbers[:5], "last": numbers[-5:], "sum": sum(numbers), "sha256": digest}


def outcome(answer, wanted):
    """What the answer says, as far as the wanted one says it."""
    if "error" in answer:
        error = dict(answer["error"])
        if error["class"] in ANY_TEXT:
            error["message"] = wanted.get("error", {}).get("message")
        return {"error": error}
    ok = dict(answer["ok"])
    if "len" in (wanted.get("ok", {}).get("valid_gpus") or ()):
        ok["valid_gpus"] = summary(ok["valid_gpus"])
    return {"ok": ok}


@pytest.mark.parametrize("version", ["0.16.5", "0.19.7"])
def test_rows_are_answered_as_deepspeed_did(version):
    asked = rows("public.jsonl")
    other = {row["id"]: row for row in rows("diff_0.19.7.jsonl")} if version == "0.19.7" else {}
    got = answers((DATA / "public.jsonl").read_text().splitlines(), "--deepspeed-version", version)
    assert [row["id"] for row in asked] == [answer["id"] for answer in got]
    for row, answer in zip(asked, got, strict=True):
        wanted = other.get(row["id"], row)
        assert outcome(answer, wanted) == {key: wanted[key] for key in ("ok", "error") if key in wanted}, row


def test_immutable_configs():
    asked = rows("immutable.jsonl")
    got = answers((DATA / "immutable.jsonl").read_text().splitlines())
    for row, answer in zip(asked, got, strict=True):
        assert answer.get("error") == row.get("error"), row
        assert "error" in answer or answer["ok"] == (row["scheduler_env"] is not None)


def test_rows_that_are_none_are_answered_in_their_place():
    lines = (DATA / "public.jsonl").read_text().splitlines()
    first, second = (json.loads(line)["id"] for line in lines[:2])
    got = answers(['{"id": 1', lines[0], "", '"\x01"', "[]", lines[1]])
    assert [answer["id"] for answer in got] == [None, first, None, None, None, second]
    classes = [answer["error"]["class"] for answer in got if answer["id"] is None]
    assert classes == ["JSONDecodeError", "JSONDecodeError", "JSONDecodeError", "InvalidRequest"]


def test_rows_are_answered_as_they_come():
    """Who asks a second time only after the first answer is no worse off than who pipes a file."""
    line = (DATA / "public.jsonl").read_text().splitlines()[0] + "\n"
    command = [command_path("phalanx"), "elasticity", "plan", "--jsonl"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        for _ in range(3):
            process.stdin.write(line)
            assert select.select([process.stdout], [], [], 30)[0], "no answer"
            assert json.loads(process.stdout.readline())["id"] == json.loads(line)["id"]
        process.stdin.write(line.rstrip("\n"))  # the last one has no end
        process.stdin.close()
        assert json.loads(process.stdout.read())["id"] == json.loads(line)["id"]
        assert process.wait() == 0


@pytest.fixture
def config(tmp_path):
    """Writes a config whose elasticity block is the documented one, but for the given members."""

    def write(**members):
        block = {"enabled": True, "max_train_batch_size": 2000, "micro_batch_sizes": [2, 4, 6], "min_gpus": 1}
        path = tmp_path / "ds_config.json"
        path.write_text(json.dumps({"elasticity": {**block, "max_gpus": 10000, "version": 0.1, **members}}))
        return path

    return write


def test_a_plan_is_told_and_written_as_json(config):
    told = dict(line.split("  ", 1) for line in ask("plan", config(), "--world-size", 60).splitlines())
    assert {key: value.strip() for key, value in told.items()} == {
        "final batch": "1680",
        "valid world sizes": (
            "1-8, 10, 12, 14-15, 20-21, 24, 28, 30, 35, 40, 42, 56, 60, 70, 84, 105, 120, 140, 168, 210, 280, 420, 840"
            " (32 of them)"
        ),
        "world size": "60",
        "micro batch": "4",
        "accumulation steps": "7",
    }
    plan = json.loads(ask("plan", config(), "--world-size", 60, "--json"))
    assert len(plan.pop("valid_gpus")) == 32
    assert plan == {"final_batch_size": 1680, "world_size": 60, "micro_batch_size": 4, "gradient_accumulation_steps": 7}
    assert ask("plan", "-", given=config().read_text()) == ask("plan", config())


def test_every_number_of_gpus_is_explained_as_it_is_planned(config):
    path = config(version=0.2, max_gpus=64, micro_batch_sizes=[5, 7], max_train_batch_size=300)
    told = json.loads(ask("explain", path, "--json"))
    assert [entry["gpus"] for entry in told["gpus"]] == list(range(1, 65))
    rows = [{"ds_config": json.loads(path.read_text()), "world_size": size} for size in range(1, 65)]
    used = 0
    for entry, answer in zip(told["gpus"], answers(map(json.dumps, rows)), strict=True):
        splits = answer.get("ok", {}).get("final_batch_size", 0) > 0  # DeepSpeed also grants batches of nothing
        used = entry["gpus"] if splits else used
        assert (entry["world_size"], entry["idle_gpus"]) == (used, entry["gpus"] - used)
        if splits:
            assert entry["final_batch_size"] == answer["ok"]["final_batch_size"]
            assert entry["micro_batch_size"] == answer["ok"]["micro_batch_size"]
            split = entry["micro_batch_size"] * entry["gradient_accumulation_steps"] * entry["gpus"]
            assert split == entry["final_batch_size"]
    assert used == 60


def test_versions_are_chosen(config):
    path = config(micro_batch_sizes=[6, 8], max_train_batch_size=9)
    assert json.loads(ask("plan", path, "--json"))["final_batch_size"] == 24
    assert json.loads(ask("plan", path, "--json", "--deepspeed-version=0.19.7"))["final_batch_size"] == 8
    said = ask("plan", path, "--target-version=0.3.7", expect=2)
    assert "ElasticityError: Target deepspeed version of 0.3.7 is not compatible" in said
    assert "0.16.5,0.19.7" in ask("plan", path, "--deepspeed-version=0.19.8", expect=2)


def test_a_size_that_is_refused_and_a_config_that_has_no_plan(config):
    said = ask("plan", config(), "--world-size=9", expect=1)
    assert "ElasticityIncompatibleWorldSize: World size (9) is not valid with the current list" in said
    said = ask("plan", config(version=0.2), expect=2)
    assert "ElasticityConfigError: Elasticity V 0.2 needs WORLD_SIZE to compute valid batch size." in said
    said = ask("plan", config(version=0.3), expect=2)
    assert "ElasticityConfigError: Attempting to run elasticity version 0.3" in said


@pytest.mark.parametrize("command", ["plan", "explain"])
def test_what_is_no_config_is_refused_in_a_sentence(config, command, tmp_path):
    def refused(path, given=None):
        said = ask(command, path, given=given, expect=2)
        assert said.startswith("phalanx: ") and said.count("\n") == 1
        return said

    assert "none.json: No such file or directory" in refused(tmp_path / "none.json")
    assert "Is a directory" in refused(tmp_path)
    assert "/dev/zero: more than the 67108864 bytes" in refused("/dev/zero")
    assert "standard input: JSONDecodeError: no JSON: line 1" in refused("-", given='{"elasticity": nonsense}')
    assert "standard input: ElasticityConfigError: 'elasticity' is missing" in refused("-", given="{}")
    assert "standard input: ValueError: Expected ds_config to be a dictionary" in refused("-", given="[1]")
    assert "'max_gpus' in the elasticity block is '8': it should be a number" in refused(config(max_gpus="8"))
    assert "'min_gpus' in the elasticity block is True: it should" in refused(config(min_gpus=True))
    assert "JSONDecodeError: no JSON: line 1, column " in refused(config(min_gpus=float("nan")))
    assert "ElasticityLimitError: max_train_batch_size is" in refused(config(max_train_batch_size=2**40 + 1))
    assert "ElasticityLimitError: micro_batch_sizes has 1001 el" in refused(config(micro_batch_sizes=[1] * 1001))
    assert "micro_batch_sizes to only contain a list of integers" in refused(config(micro_batch_sizes=[2.5]))
    assert "Elasticity is disabled" in refused(config(enabled=False))


def test_flags_that_do_not_go_together(config):
    assert "CONFIG is missing" in ask("plan", expect=2)
    assert "only one of them may be given" in ask("plan", config(), "--jsonl", expect=2)
    assert "--world-size: Value 0 not in range 1 to 10000000" in ask("plan", config(), "--world-size=0", expect=2)


def blocks(text, kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_commands_of_the_documentation_say_what_it_says(tmp_path):
    text = (Path(__file__).parent.parent / "docs" / "elastic-batch.md").read_text()
    (tmp_path / "ds_config.json").write_text(blocks(text, "json")[0])
    (tmp_path / "plan.py").write_text(blocks(text, "python")[0])
    folders = (Path(sys.executable).parent, Path(command_path("phalanx")).parent, os.environ["PATH"])
    environment = {"PATH": os.pathsep.join(map(str, folders))}
    told = blocks(text, "console")
    assert len(told) == 6
    for block in told:
        command, expected = block.removeprefix("$ ").split("\n", 1)
        said = subprocess.run(
            command,
            shell=True,
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert said.stdout == expected, command
