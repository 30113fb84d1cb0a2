"""Environments with a DeepSpeed each, for tests/test_deepspeed.py: one DeepSpeed and what it imports, over .venv.

tools/venv.py makes them in build/deepspeeds and keeps them in its cache. They are small (some 40 MB): torch is .venv's.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import torches  # noqa: E402
from tools.venv import locked  # noqa: E402

FOLDER = ROOT / "build" / "deepspeeds"
# The one that ms-swift's guide names, the last one with elasticity, the newest.
VERSIONS = ("0.16.5", "0.19.7", "0.19.8")
# Of a process that trains without a device. What newer ones have torch compile at an import that nobody asked for (an
# optimizer, deepspeed/runtime/zero/muon) takes two seconds of a processor, before anything is tested.
ON_CPU = {"DS_ACCELERATOR": "cpu", "TORCHDYNAMO_DISABLE": "1"}
REQUIREMENTS = """\
deepspeed=={}
einops==0.8.2
hjson==3.1.0
msgpack==1.2.4
ninja==1.13.2
py-cpuinfo==9.0.0
pydantic==2.14.3
"""


def requirements(version):
    """What tools/locks/deepspeed-VERSION.lock is made of."""
    return REQUIREMENTS.format(version)


def prepare(version, over=ROOT / ".venv"):
    """The environment, with our commands and our package in it. Needs `over`: .venv, as ./run makes it, or that of
    tools/callers.py. Tests that run beside each other may ask at once: one makes it, the others find it made."""
    folder = FOLDER if over == ROOT / ".venv" else FOLDER / over.parent.name
    folder.mkdir(parents=True, exist_ok=True)
    venv = folder / version
    lock = ROOT / "tools" / "locks" / f"deepspeed-{version}.lock"
    command = [sys.executable, ROOT / "tools" / "venv.py", "--venv", venv, "--requirements", lock]
    command += ["--cache", torches.default_cache(), "--over", over]
    # Its operators would be compiled for minutes; none is needed on a CPU.
    with locked(folder / f"{version}.lock"):
        subprocess.run(command, check=True, env={**os.environ, "DS_BUILD_OPS": "0"})
        torches.put_ours(venv)
    return venv


def modules(venv):
    """The folder of DeepSpeed's own modules."""
    return next(venv.glob("lib/python3*/site-packages/deepspeed"))
