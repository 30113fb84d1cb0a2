"""What the trainings of flash_*.py have in common: files that appear in a folder, and weights told as a digest."""

import hashlib
import os
import signal

from report import report


def files_now(folder):
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def die_at_file(name, folder):
    """Killed between a step's being stored and its file's appearing."""
    from phalanx.checkpoint.adapters import published  # a stock training has none of it

    publish = published.publish_file

    def dies(source, target):
        if os.path.basename(target) == name:
            report("dies", files=files_now(folder))
            os.kill(os.getpid(), signal.SIGKILL)
        publish(source, target)

    published.publish_file = dies


def digest_of(weights):
    """Of {name: tensor}."""
    found = hashlib.sha256()
    for name, value in sorted(weights.items()):
        found.update(name.encode() + value.detach().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]
