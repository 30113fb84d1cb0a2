"""ms-swift's own command line below phalanx.shim: part of `./run test --callers`, elsewhere left out by conftest.py."""

import itertools
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness import WORKLOADS, read_proc
from pidfd import pidfd_open, pidfd_send_signal

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import deepspeeds  # noqa: E402

pytestmark = pytest.mark.timeout(900)

BIN = Path(sys.executable).parent
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "MODELSCOPE_OFFLINE", "USE_HF")
STEPS = 60


def pid_of_rank(job, rank):
    marks = {f"RANK={rank}".encode(), b"TORCHELASTIC_RESTART_COUNT=0"}
    pids = [pid for pid in job.processes() if marks <= set(read_proc(pid, "environ").split(b"\0"))]
    return next(pid for pid in pids if b"sft.py" in read_proc(pid, "cmdline"))


def test_swift_sft(job):
    """`swift sft` with two workers and a real model of random weights: a rank is killed, training goes on."""
    subprocess.run([sys.executable, WORKLOADS / "tiny_chat_model.py", job.folder], check=True)
    env = {**dict.fromkeys(OFFLINE, "1"), "NPROC_PER_NODE": "2", "CUDA_VISIBLE_DEVICES": "", "HOME": job.folder}
    line = [
        *("sft", "--model", job.folder / "model", "--model_type", "qwen3", "--template", "qwen3"),
        *("--tuner_type", "lora", "--lora_rank", "4", "--target_modules", "all-linear", "--torch_dtype", "float32"),
        *("--dataset", job.folder / "data.jsonl", "--split_dataset_ratio", "0", "--max_length", "128"),
        *("--max_steps", STEPS, "--save_steps", "20", "--logging_steps", "1", "--output_dir", job.folder / "out"),
        *("--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "1", "--learning_rate", "1e-3"),
        *("--dataloader_num_workers", "0", "--dataset_num_proc", "1", "--attn_impl", "eager"),
        *("--use_cpu", "true", "--report_to", "none"),
    ]
    node = job.run(*line, command=[sys.executable, "-m", "phalanx.shim", "--", str(BIN / "swift")], env=env)
    node.wait_line(f"'global_step/max_steps': '5/{STEPS}'", "stdout", 300)
    os.kill(pid_of_rank(job, 1), signal.SIGKILL)
    assert node.wait(300) == 0, job.story()
    assert "restart 1 of 3" in node.stderr
    assert node.stdout.count(f"'global_step/max_steps': '{STEPS}/{STEPS}'") >= 1
    versions = sorted((job.folder / "out").iterdir())
    assert len(versions) == 2, "one folder for each life"
    assert (versions[1] / f"checkpoint-{STEPS}" / "adapter_model.safetensors").stat().st_size > 0


# DeepSpeed's configuration, elastic.
ELASTIC = ROOT / "tests" / "data" / "ms_swift_zero1.json"


def kill_ranks(job):
    """Rank 1 is killed by SIGKILL; returns when the others have ended as well."""
    handles = {}
    for pid in job.processes():
        rank = [word for word in read_proc(pid, "environ").split(b"\0") if word.startswith(b"RANK=")]
        if rank and b"swift_sft.py" in read_proc(pid, "cmdline"):
            handles.setdefault(rank[0], []).append(pidfd_open(pid))
    pidfd_send_signal(handles[b"RANK=1"][0], signal.SIGKILL)
    for handle in itertools.chain.from_iterable(handles.values()):
        assert select.select([handle], [], [], 60)[0], "a rank has not ended"
        os.close(handle)


def losses_of(text):
    """[(step, loss)] in the order in which they were logged."""
    found = re.findall(r"{'loss': '([0-9.]+)'.*?'global_step/max_steps': '(\d+)/", text)
    return [(int(step), loss) for loss, step in found]


def test_flash_checkpoints_of_an_elastic_job(job):
    """The command of ms-swift's guide, with compat/dlrover in the place of DLRover: a rank is killed by SIGKILL, and
    all go on from the newest step, with the losses of before, though that life had no time to make a universal
    checkpoint of it."""
    subprocess.run([sys.executable, WORKLOADS / "tiny_chat_model.py", job.folder], check=True)
    venv = deepspeeds.prepare(deepspeeds.VERSIONS[0], over=Path(sys.prefix))
    (job.folder / "zero1.json").write_text(ELASTIC.read_text())
    out = job.folder / "out"
    line = [
        *("--model", job.folder / "model", "--model_type", "qwen3", "--template", "qwen3"),
        *("--tuner_type", "lora", "--lora_rank", "4", "--target_modules", "all-linear", "--torch_dtype", "bfloat16"),
        *("--dataset", job.folder / "data.jsonl", "--split_dataset_ratio", "0", "--max_length", "128"),
        *("--max_steps", "24", "--save_steps", "4", "--save_total_limit", "2", "--logging_steps", "1"),
        *("--output_dir", out, "--learning_rate", "1e-3", "--attn_impl", "eager", "--use_cpu", "true"),
        *("--dataloader_num_workers", "0", "--dataset_num_proc", "1", "--report_to", "none"),
        *("--use_flash_ckpt", "true", "--callbacks", "deepspeed_elastic", "graceful_exit"),
        *("--deepspeed", job.folder / "zero1.json"),
    ]
    own = {"CUDA_VISIBLE_DEVICES": "", "HOME": job.folder, "PYTHONPATH": str(ROOT / "compat" / "dlrover")}
    command = [str(venv / "bin" / "phalanx-run"), "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    env = {**dict.fromkeys(OFFLINE, "1"), "DS_ACCELERATOR": "cpu", **own}
    node = job.run(WORKLOADS / "swift_sft.py", *line, command=command, env=env)
    node.wait_line("'global_step/max_steps': '14/24'", "stdout", 300)
    kill_ranks(job)
    (first,) = out.iterdir()
    # The ranks of the next life import for seconds before they look for them.
    for path in (*first.glob("checkpoint-*/latest_universal"), *first.glob("ucp.txt")):
        path.unlink()
    assert node.wait(300) == 0, job.story()
    first, second = sorted(out.iterdir())
    kept = int((first / "ucp.txt").read_text())
    assert kept == 12
    assert (first / "checkpoint-12" / "ucp" / "universal.json").exists()
    told = losses_of(node.stdout)
    begins = max(at for at, (step, _) in enumerate(told) if step == kept + 1)
    again, before = dict(told[begins:]), dict(told[:begins])
    assert min(again) == kept + 1 and max(again) == 24
    assert {step: again[step] for step in before if step > kept} == {s: x for s, x in before.items() if s > kept}
    assert (second / "dlrover_latest.txt").read_text() == (second / "ucp.txt").read_text() == "24"
    assert sorted(path.name for path in second.glob("checkpoint-*")) == ["checkpoint-20", "checkpoint-24"]
    assert not any(path.is_symlink() for path in (second / "checkpoint-24").rglob("*"))
