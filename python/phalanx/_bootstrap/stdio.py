"""The standard streams as `python -u` makes them, on descriptors that have just been put in place."""

import errno
import fcntl
import io
import os
import stat
import sys

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_NO_READER = (errno.EPIPE, errno.ECONNRESET, errno.EIO)


class _Stream(io.FileIO):
    def __repr__(self):
        return super().__repr__().replace("<FileIO ", "<_io.FileIO ", 1)  # Python 3.13 leaves out a subclass's module


class _LogFile(_Stream):
    """A log file behind a standard stream. A disk that takes nothing more costs lines, never the training.

    What is lost counts as written. The first loss is told to `on_loss(fd, error number)`; when there is room again, a
    line says how much is missing, before what comes next. For threads as safe as its parent: such a line may count
    wrongly, and nothing else. In a signal handler as well: there is no lock.
    """

    on_loss = None
    _lost = 0  # bytes since the last that were written
    _error = 0
    _in_line = False  # the file does not end with a newline, as far as we wrote it

    def write(self, data):
        lost, self._lost = self._lost, 0
        if lost:
            return self._write_behind_gap(data, lost)
        count = self._write(data)
        size = memoryview(data).nbytes
        while count is not None and count < size:
            more = self._write(memoryview(data).cast("B")[count:])
            if not more:
                self._lost += size - count
                break
            count += more
        return size

    def _write_behind_gap(self, data, lost):
        """One write for the line about the gap and what follows it: as long as that does not fit, nothing does."""
        size = memoryview(data).nbytes
        reason = os.strerror(self._error)
        line = f"[phalanx: {lost} bytes of this log were lost here: {reason}]\n".encode("utf-8", "replace")
        both = (b"\n" if self._in_line else b"") + line + bytes(data)
        if self._write(both) != len(both):
            self._lost += lost + size
        return size

    def _write(self, data):
        """How much was written: 0 where the disk takes nothing."""
        try:
            count = super().write(data)
        except OSError as error:
            if error.errno not in _NO_ROOM or not stat.S_ISREG(os.fstat(self.fileno()).st_mode):
                raise
            self._error = error.errno
            on_loss, self.on_loss = self.on_loss, None
            if on_loss is not None:
                on_loss(self.fileno(), error.errno)
            return 0
        if count:
            self._in_line = bytes(memoryview(data).cast("B")[count - 1 : count]) != b"\n"
        return count


class _Console(_Stream):
    """A pipe, a socket or a terminal behind a standard stream. Where its reader has gone, what is written counts as
    written: the launcher says so, and the training goes on."""

    def write(self, data):
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in _NO_READER:
                raise
            return memoryview(data).nbytes


# Seen by scripts as what they stand for.
for _kind in _Stream, _LogFile, _Console:
    _kind.__name__ = _kind.__qualname__ = "FileIO"
    _kind.__module__ = io.FileIO.__module__


def put_in_place(fds):
    """Moves three descriptors to 0, 1 and 2."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) if fd < 3 else fd for fd in fds]
    for target, fd in enumerate(high):
        os.dup2(fd, target, inheritable=True)
    for fd in set(fds) | set(high):
        if fd > 2:
            os.close(fd)


def renew(logs=0, on_loss=None):
    """Re-makes sys.stdin, sys.stdout and sys.stderr. The objects stay the same, so that what holds them (a logging
    handler made by an import) goes on as in a fresh process; what they know of their descriptor is asked anew.

    `logs`: which of stdout (1) and stderr (2), added up, are log files of the launcher's. What a person has redirected
    to a file of their own is an error to lose. `on_loss(fd, error number)` hears, once for each stream, that its log
    file takes nothing more."""
    _renew("stdin", "__stdin__", 0, "strict")
    _renew("stdout", "__stdout__", 1, "strict", logs & 1, on_loss)
    _renew("stderr", "__stderr__", 2, "backslashreplace", logs & 2, on_loss)


def _has_reader(fd):
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)


def _renew(name, original_name, fd, errors, is_log=False, on_loss=None):
    stream = getattr(sys, original_name)
    old_encoding = getattr(stream, "encoding", None) or "utf-8"
    old_errors = getattr(stream, "errors", None) or errors
    try:
        if fd == 0:
            buffer = open(fd, "rb", buffering=-1, closefd=False)
            buffer.raw.name = f"<{name}>"
        else:
            kind = _LogFile if is_log else _Console if _has_reader(fd) else io.FileIO
            buffer = kind(fd, "wb", closefd=False)
            if is_log:
                buffer.on_loss = on_loss
            buffer.name = f"<{name}>"
    except OSError:
        return  # closed, as `<&-` leaves it
    settings = {"encoding": old_encoding, "errors": old_errors, "newline": "\n", "write_through": True}
    if type(stream) is io.TextIOWrapper:
        stream.__init__(buffer, **settings)
    else:
        replaced = getattr(sys, name) is not stream
        stream = io.TextIOWrapper(buffer, **settings)
        setattr(sys, original_name, stream)
        if not replaced:
            setattr(sys, name, stream)
    stream.mode = "r" if fd == 0 else "w"
