"""For tests of compat/dlrover: its commands, in a job of the harness."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMPAT = ROOT / "compat" / "dlrover"


def with_compat(variables=None):
    """An environment in which `import dlrover` finds ours."""
    before = os.environ.get("PYTHONPATH")
    return {**(variables or {}), "PYTHONPATH": os.pathsep.join(filter(None, [str(COMPAT), before]))}


def command(module="dlrover.trainer.torch.main"):
    return [sys.executable, "-m", module]


def dlrover_run(job, *words, env=None, name=None):
    """Starts `dlrover-run` with these words."""
    return job.run(f"--state-dir={job.folder / 'state'}", *words, env=with_compat(env), command=command(), name=name)


def said(*words, module="dlrover.trainer.torch.main", environment=None):
    """The finished process of a command that starts no job."""
    return subprocess.run(
        [*command(module), *words],
        env={**os.environ, **with_compat(environment)},
        capture_output=True,
        text=True,
        timeout=60,
    )
