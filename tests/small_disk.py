"""A disk of its own for a test, small enough to fill: a tmpfs."""

import contextlib
import os
import subprocess

BYTES = 1 << 20
FILES = 256


class SmallDisk:
    """Mounted at `path`, until `unmount`. Needs root."""

    def __init__(self, path):
        self.path = path
        path.mkdir()
        options = f"size={BYTES},nr_inodes={FILES},mode=0755"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], check=True, capture_output=True)

    def fill(self):
        """Takes all that is free: no file can grow by a page."""
        with open(str(self.path / "ballast"), "ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    def use_up_files(self):
        """No file and no folder can be made."""
        (self.path / "many").mkdir()
        with contextlib.suppress(OSError):
            for number in range(FILES):
                (self.path / "many" / str(number)).touch()

    def make_room(self):
        os.unlink(str(self.path / "ballast"))

    def unmount(self):
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)
