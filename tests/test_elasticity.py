"""Batch plans against what DeepSpeed answered: tests/data/elasticity."""

import hashlib
import json
import subprocess
from pathlib import Path

import pytest
from harness import command_path

DATA = Path(__file__).resolve().parent / "data" / "elasticity"
# Their texts are Python's own, or numpy's, and change with them.
ANY_TEXT = {"TypeError", "UFuncTypeError", "ZeroDivisionError"}


def rows(name):
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def answers(lines, *flags):
    command = [command_path("phalanx-elasticity-rows"), *flags]
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


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
    got = answers((DATA / "immutable.jsonl").read_text().splitlines(), "--immutable")
    for row, answer in zip(asked, got, strict=True):
        assert answer.get("error") == row.get("error"), row
        assert "error" in answer or answer["ok"] == (row["scheduler_env"] is not None)


def test_the_command_refuses_other_flags():
    command = [command_path("phalanx-elasticity-rows"), "--deepspeed-version", "0.19.8"]
    done = subprocess.run(command, input="", capture_output=True, text=True)
    assert done.returncode == 2
    assert "0.16.5|0.19.7" in done.stderr
