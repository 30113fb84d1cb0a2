"""Debian packages that single tests need, installed where they are missing: groups of tools/apt-packages.txt."""

import functools
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@functools.lru_cache(maxsize=None)
def install(group):
    """As ./run does it; several processes of tests may ask at once."""
    script = 'set -euo pipefail; source tools/setup.sh; install_packages "$1"'
    answer = subprocess.run(["bash", "-c", script, "packages", group], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert answer.returncode == 0, answer.stderr
