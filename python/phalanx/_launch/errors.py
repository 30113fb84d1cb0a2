"""What a launch that failed raises: torch's own exceptions where torch can be imported, else these, of the same shape.

torch is imported by `classes` alone: a launch that succeeds never waits for it.
"""

import os
import signal
import time


class LaunchError(RuntimeError):
    """phalanx-run could not be started, was killed, or ended the job without any worker having failed."""


class UsageError(SystemExit, ValueError):
    """phalanx-run has refused its arguments, and said why on standard error. torch raises SystemExit(2) for some of
    these and ValueError for others, so programs that call it catch the one or the other."""

    def __init__(self, arguments):
        super().__init__(2)
        self.arguments_refused = list(arguments)

    def __str__(self):
        return f"phalanx-run refuses {self.arguments_refused}, and has said why on standard error"


class ProcessFailure:
    """torch's ProcessFailure: one failed worker."""

    def __init__(self, local_rank, pid, exitcode, error_file):
        self.local_rank = local_rank
        self.pid = pid
        self.exitcode = exitcode
        self.error_file = error_file or "<N/A>"
        self.error_file_data = {"message": "<NONE>"}
        self.message = (
            f"Signal {-exitcode} ({self.signal_name()}) received by PID {pid}"
            if exitcode < 0
            else "no traceback: the script's main function is not decorated with @record"
        )
        self.timestamp = int(time.time())

    def signal_name(self):
        try:
            return signal.Signals(-self.exitcode).name
        except ValueError:
            return "<N/A>"

    def timestamp_isoformat(self):
        return time.strftime("%Y-%m-%d_%H:%M:%S", time.localtime(self.timestamp))


class ChildFailedError(Exception):
    """torch's ChildFailedError: workers failed and the budget of restarts is spent. `failures`: by global rank."""

    def __init__(self, name, failures):
        self.name = name
        self.failures = failures
        super().__init__(self.format_msg())

    def get_first_failure(self):
        rank = min(self.failures, key=lambda rank: self.failures[rank].timestamp)
        return rank, self.failures[rank]

    def format_msg(self):
        first, _ = self.get_first_failure()
        lines = [f"{self.name} FAILED"]
        for rank in sorted(self.failures, key=lambda rank: rank != first):
            failure = self.failures[rank]
            message = failure.message
            if isinstance(message, dict):
                message = message.get("extraInfo", {}).get("py_callstack", message.get("message", "<N/A>"))
            lines.append(
                f"  rank {rank} (local_rank {failure.local_rank}), pid {failure.pid}, exit code {failure.exitcode}, "
                f"{failure.timestamp_isoformat()}: {message}"
            )
        return "\n".join(lines)


class SignalException(Exception):
    """torch's SignalException: the job was stopped by the signal `sigval`."""

    def __init__(self, msg, sigval):
        super().__init__(msg)
        self.sigval = sigval


def classes():
    """(ChildFailedError, ProcessFailure, SignalException) to raise here."""
    try:
        from torch.distributed.elastic.multiprocessing.api import SignalException as TorchSignal
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError as TorchFailed
        from torch.distributed.elastic.multiprocessing.errors import ProcessFailure as TorchFailure
    except (ImportError, OSError):  # no torch, one without distributed, or one whose libraries are missing
        return ChildFailedError, ProcessFailure, SignalException
    return TorchFailed, TorchFailure, TorchSignal


def signal_exception(number):
    _, _, kind = classes()
    number = signal.Signals(number)
    return kind(f"Process {os.getpid()} got signal: {number.value}", sigval=number)


def child_failed_error(name, told):
    """`told`: the failures of a job report, the first cause first."""
    failed, failure_kind, _ = classes()
    failures = {}
    for entry in told:
        failures.setdefault(entry.rank, _process_failure(entry, failure_kind))
    first = failures[told[0].rank]
    # The one with the smallest time is shown as the cause, and workers write whole seconds, each by its own clock.
    first.timestamp = min(failure.timestamp for failure in failures.values())
    return failed(name, failures)


def _process_failure(entry, kind):
    # torch's constructor reads the file, and fails where it holds something else than torch's @record writes.
    usable = entry.recorded is not None
    failure = kind(entry.local_rank, entry.pid, entry.exit_code, entry.error_file if usable else "")
    if usable:
        failure.error_file_data = entry.recorded
        failure.message = entry.recorded["message"]
        failure.timestamp = entry.recorded_at
    else:
        failure.timestamp = entry.unix_ms // 1000
        if entry.killed_by:
            failure.message += f": killed by {entry.killed_by}"
        if entry.blamed_on:
            failure.message += f": blamed on {entry.blamed_on}"
    return failure
