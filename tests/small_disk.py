"""Disks of their own for a test: one that is small enough to fill, a tmpfs, and one that can hang, ext4 in a file."""

import contextlib
import errno
import fcntl
import os
import shutil
import subprocess

BYTES = 1 << 20
FILES = 256
LOOP_CTL_GET_FREE = 0x4C82
# What a container says that has no loop devices, or may not use them.
REFUSALS = (errno.EACCES, errno.ENODEV, errno.ENOENT, errno.ENXIO, errno.EPERM)


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

    def free_files(self):
        shutil.rmtree(str(self.path / "many"))

    def make_room(self):
        os.unlink(str(self.path / "ballast"))

    def make_read_only(self, read_only):
        """Fails while a file is open for writing."""
        options = f"remount,{'ro' if read_only else 'rw'}"
        subprocess.run(["mount", "-o", options, str(self.path)], check=True, capture_output=True)

    def unmount(self):
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)


def why_no_hanging_disk():
    """Why there can be none here; empty where there can. Asks for a loop device, no more."""
    try:
        with open("/dev/loop-control", "rb") as control:
            number = fcntl.ioctl(control, LOOP_CTL_GET_FREE)
        open(f"/dev/loop{number}", "rb").close()
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        return str(error)
    return ""


class HangingDisk:
    """Mounted at `path`, until `unmount`. While it hangs whoever writes waits, and cannot be killed. Needs root."""

    def __init__(self, path):
        self.path, self.image = path, path.with_suffix(".image")
        path.mkdir()
        with open(str(self.image), "wb") as file:
            file.truncate(64 << 20)
        for command in (["mkfs.ext4", "-q", str(self.image)], ["mount", "-o", "loop", str(self.image), str(path)]):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")

    @contextlib.contextmanager
    def hanging(self):
        """A disk that hung for longer than this would also hold the test, which waits for its processes' ends."""
        subprocess.run(["fsfreeze", "--freeze", str(self.path)], check=True)
        try:
            yield
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", str(self.path)], check=True)

    def unmount(self):
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)
