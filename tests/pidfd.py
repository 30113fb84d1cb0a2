"""Handles of processes. Python has them since 3.9; the kernel has had them since 5.3."""

import ctypes
import os
import signal

# The same numbers on every architecture.
_PIDFD_SEND_SIGNAL, _PIDFD_OPEN = 424, 434

_libc = ctypes.CDLL(None, use_errno=True)


def _call(number, *arguments):
    result = _libc.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def pidfd_open(pid):
    """A descriptor that becomes readable when the process ends. Raises ProcessLookupError where it is gone."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    handle = _call(_PIDFD_OPEN, pid, 0)
    os.set_inheritable(handle, False)
    return handle


def pidfd_send_signal(handle, number):
    if hasattr(signal, "pidfd_send_signal"):
        return signal.pidfd_send_signal(handle, number)
    return _call(_PIDFD_SEND_SIGNAL, handle, number, None, 0)
