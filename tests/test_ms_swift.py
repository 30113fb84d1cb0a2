"""ms-swift's own command line below phalanx.shim: part of `./run test --callers`, elsewhere left out by conftest.py."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness import WORKLOADS, read_proc

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
