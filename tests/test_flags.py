"""phalanx-run splits any command line as torchrun's own parser does: both read the same few thousand random lines."""

import argparse
import contextlib
import io
import json
import os
import random
import re
import subprocess
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

ROOT = Path(__file__).resolve().parent.parent
DUMP = Path(os.environ.get("PHALANX_FLAGS_DUMP", ROOT / "build/release/src/agent/flags/flags_dump"))

# Flag -> values that both sides accept. Flags with an underscore spelling are tried in both.
VALUED = {
    "--nnodes": ["1", "2", "1:3"],
    "--nproc-per-node": ["1", "4"],
    "--rdzv-backend": ["c10d", "static"],
    "--rdzv-endpoint": ["", "h", "h:1234", "[::1]:5", "10.0.0.1:7"],
    "--rdzv-id": ["j", "a=b", "-1"],
    "--max-restarts": ["0", "3"],
    "--role": ["r", "", "-", "-1", "-2.5", "-a b", "a=b"],
    "--log-dir": ["/l", "rel"],
    "--redirects": ["0", "3", "0:1", "0:3,1:2"],
    "-r": ["0", "3"],
    "--tee": ["1", "1:2"],
    "-t": ["2"],
    "--local-ranks-filter": ["0", "0,1"],
    "--node-rank": ["0"],
    "--master-addr": ["m", "127.0.0.1"],
    "--master-port": ["1234"],
    "--local-addr": ["l"],
    "--signals-to-handle": ["SIGTERM", "SIGUSR1,SIGINT"],
    "--shutdown-timeout": ["1", "20"],
    "--start-method": ["spawn", "fork"],
    "--monitor-interval": ["1", "0.5", ".5"],
    "--numa-binding": ["node", "socket", "exclusive", "core-complex"],
}
SWITCHES = ["--standalone", "-m", "--module", "--no-python", "--virtual-local-rank"]
ODD = [
    "--",
    "-",
    "-x",
    "--nope",
    "-1",
    "",
    "-mr3",
    "-mt",
    "-mfoo",
    "--standalone=1",
    "--rdzv",
    "--n=1",
    "--log",
    "-r=3",
    "-h",
]
SCRIPTS = ["s.py", "-", "mod", "a b", "-a b"]
REST = ["--lr", "0.1", "--", "-x", "--nnodes=9", "", "-", "--standalone", "-r", "s.py"]


def random_flag(rng: random.Random) -> list[str]:
    if rng.random() < 0.2:
        return [rng.choice(SWITCHES)]
    flag = rng.choice(list(VALUED))
    value = rng.choice(VALUED[flag])
    if flag.startswith("--"):
        if rng.random() < 0.4:
            flag = "--" + flag[2:].replace("-", "_")
        if rng.random() < 0.2:
            flag = flag[: rng.randint(4, len(flag))]
        return [f"{flag}={value}"] if rng.random() < 0.5 else [flag, value]
    return [flag + value] if rng.random() < 0.5 else [flag, value]


def random_case(rng: random.Random) -> dict:
    args = []
    for _ in range(rng.randint(0, 4)):
        args += random_flag(rng)
        if rng.random() < 0.08:
            args.append(rng.choice(ODD))
    if rng.random() < 0.97:
        args.append(rng.choice(SCRIPTS))
        args += rng.choices(REST, k=rng.randint(0, 4))
    env = {}
    for _ in range(rng.choice([0, 0, 0, 1, 3])):
        flag = rng.choice([name for name in VALUED if name.startswith("--")])
        env["PET_" + flag[2:].replace("-", "_").upper()] = rng.choice(VALUED[flag])
    if rng.random() < 0.1:
        env["PET_" + rng.choice(["STANDALONE", "MODULE", "NO_PYTHON"])] = rng.choice("01")
    return {"args": args, "env": env}


def torchruns_answer(case: dict) -> tuple[argparse.Namespace | None, str]:
    """What torchrun's parser makes of it, or None and its complaint ("" for --help)."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        for name, value in case["env"].items():
            patch.setenv(name, value)
        try:
            return get_args_parser().parse_args(case["args"]), ""
        except SystemExit:
            complaint = err.getvalue().strip()
            return None, complaint.splitlines()[-1] if complaint else ""


def better_than_argparse(complaint: str, ours: dict) -> bool:
    """Ambiguities that are none: between the two spellings of one flag, or in words that belong to the script."""
    if "ambiguous option" not in complaint:
        return False
    word, candidates = complaint.split("ambiguous option: ")[1].split(" could match ")
    one_flag = len({name.replace("_", "-") for name in candidates.split(", ")}) == 1
    return one_flag or word in ours.get("config", {}).get("script_args", REST)


def expected(namespace: argparse.Namespace) -> dict:
    nodes = [int(part) for part in namespace.nnodes.split(":")]
    return {
        "script": namespace.training_script,
        "script_args": namespace.training_script_args,
        "kind": 2 if namespace.no_python else 1 if namespace.module else 0,
        "nproc_per_node": int(namespace.nproc_per_node),
        "max_nodes": nodes[-1],
        "role": namespace.role,
        "signals": namespace.signals_to_handle,
        "redirects": stream_map(namespace.redirects),
        "tee": stream_map(namespace.tee),
        "local_addr": namespace.local_addr or "",
        "local_ranks_filter": sorted({int(rank) for rank in namespace.local_ranks_filter.split(",") if rank}),
        "stop_timeout_ms": 30_000 if namespace.shutdown_timeout is None else namespace.shutdown_timeout * 1000,
        "log_dir": os.path.join("/cwd", namespace.log_dir) if namespace.log_dir else "",
        "numa_binding": [None, *VALUED["--numa-binding"]].index(namespace.numa_binding),
        "virtual_local_rank": namespace.virtual_local_rank,
    }


def stream_map(text: str) -> dict:
    if ":" not in text:
        return {"all": int(text), "by_rank": {}}
    return {"all": 0, "by_rank": {rank: int(value) for rank, value in (e.split(":") for e in text.split(","))}}


def refused_on_purpose(namespace: argparse.Namespace) -> bool:
    """What torchrun's parser lets through, and torchrun itself or a job of its fails at later."""
    return bool(
        (namespace.no_python and namespace.module)
        or (namespace.standalone and not namespace.nnodes.startswith("1"))
        or namespace.training_script == ""
        or not all(re.fullmatch(r"[0-3]|\d+:[0-3](,\d+:[0-3])*", text) for text in (namespace.redirects, namespace.tee))
    )


def test_reads_command_lines_as_torchrun_does():
    assert DUMP.exists(), f"{DUMP} is missing: build it (./run build), or name it by PHALANX_FLAGS_DUMP"
    rng = random.Random(2025)
    cases = [random_case(rng) for _ in range(3000)]
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    done = subprocess.run([DUMP], input=lines, capture_output=True, text=True, check=True, timeout=60)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(cases)
    compared = 0
    for case, ours in zip(cases, answers, strict=True):
        theirs, complaint = torchruns_answer(case)
        if theirs is None:
            if "config" in ours:
                assert better_than_argparse(complaint, ours), (case, complaint, ours)
            elif not better_than_argparse(complaint, ours):
                # Where there is both -h and a fault, argparse's order is its own affair.
                assert ours["exit"] == (2 if complaint else 0) or "-h" in case["args"], (case, complaint, ours)
            continue
        if "config" not in ours:
            assert refused_on_purpose(theirs), (case, ours)
            continue
        got = ours["config"]
        want = expected(theirs)
        if got["rendezvous"] == 0:
            want["max_nodes"] = 1  # nobody else can come
        assert {key: got[key] for key in want} == want, case
        compared += 1
    assert compared > 1000


def test_the_page_names_every_variable_that_is_read():
    """Those that the flags' sources ask the environment for, by a text or by a constant that has it."""
    sources = [path for path in (ROOT / "src/agent/flags").glob("*.*") if not path.stem.endswith("_test")]
    text = "\n".join(path.read_text() for path in sources)
    constants = dict(re.findall(r'constexpr const char\* (k\w+) = "([A-Z][A-Z0-9_]+)";', text))
    asked = re.findall(r'\.(?:Get|NonEmptyOr)\("?(\w+)"?[,)]', text)
    profilers = re.findall(r'\{"(\w+)"', text.partition("kFollowFromTheStart = {{")[2].partition("}};")[0])
    read = {name for name in (*(constants.get(name, name) for name in asked), *profilers) if name.isupper()}
    assert {"PYTHON_EXEC", "PHALANX_BOOTSTRAP_DIR", "PYTHONVERBOSE", "DEEPSPEED_ELASTICITY_CONFIG"} <= read
    rows = (ROOT / "docs/flags.md").read_text().partition("## Variables that phalanx-run reads")[2]
    named = set(re.findall(r"`(?:\w+=)?([A-Z][A-Z0-9_]+\*?)`", rows))
    unnamed = {
        name
        for name in read
        if name not in named and not any(pattern.endswith("*") and name.startswith(pattern[:-1]) for pattern in named)
    }
    assert not unnamed
