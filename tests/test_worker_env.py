"""A worker of phalanx-run sees the environment that a worker of the real torchrun sees, and three variables more."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / ".venv/bin"
PHALANX_RUN = Path(os.environ.get("PHALANX_RUN", BIN / "phalanx-run"))
DUMP = "import json, os, sys\nwith open(sys.argv[1], 'w') as out:\n    json.dump(dict(os.environ), out)\n"
NPROC = 2


def launch(command: Path, where: Path, extra_env: dict) -> list[dict]:
    """The environments of the workers, by local rank."""
    where.mkdir()
    script = where / "dump.py"
    script.write_text(DUMP)
    env = {"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(where), "LC_ALL": "C.UTF-8", "USER_MARK": "a=b", **extra_env}
    args = [f"--nproc-per-node={NPROC}", "--max-restarts=2", "--role=trainer", "--rdzv-backend=c10d"]
    args += [
        "--rdzv-endpoint=localhost:0",
        "--rdzv-id=job7",
        f"--log-dir={where}/logs",
        "--signals-to-handle=SIGTERM,SIGINT",
    ]
    line = [command, *args, script, f"{where}/env_${{local_rank}}.json"]
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return [json.loads((where / f"env_{rank}.json").read_text()) for rank in range(NPROC)]


def comparable(env: dict, where: Path) -> dict:
    """Without what must differ between two launches, each of which is checked for its form."""
    env = {name: value.replace(str(where), "<where>") for name, value in env.items()}
    assert 0 < int(env.pop("MASTER_PORT")) < 65536
    assert env.pop("MASTER_ADDR")
    error_file = env["TORCHELASTIC_ERROR_FILE"]
    pattern = rf"<where>/logs/job7_[^/]+/attempt_0/{env['LOCAL_RANK']}/error\.json"
    assert re.fullmatch(pattern, error_file), error_file
    env["TORCHELASTIC_ERROR_FILE"] = pattern
    return env


@pytest.mark.parametrize(
    "extra_env",
    [
        {},
        {
            "OMP_NUM_THREADS": "3",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "RANK": "99",
        },
    ],
    ids=["plain", "user-set"],
)
def test_worker_environment_is_torchruns(tmp_path, extra_env):
    assert PHALANX_RUN.exists(), f"{PHALANX_RUN} is missing: build it (./run build), or name it by PHALANX_RUN"
    theirs = launch(BIN / "torchrun", tmp_path / "torchrun", extra_env)
    ours = launch(PHALANX_RUN, tmp_path / "phalanx", extra_env)
    for rank in range(NPROC):
        own = comparable(ours[rank], tmp_path / "phalanx")
        assert int(own.pop("PHALANX_EPOCH")) >= 1
        assert own.pop("PHALANX_JOB_ID") == "job7"
        assert own.pop("PHALANX_NODE_MARK")
        board, slot = own.pop("PHALANX_BOARD").rsplit(":", 1)
        assert (board.startswith("/dev/shm/"), slot) == (True, str(rank))
        assert own == comparable(theirs[rank], tmp_path / "torchrun")
