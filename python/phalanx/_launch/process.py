"""One phalanx-run as a child of this process: started, given our signals, waited for, never left behind."""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading

from phalanx._launch import errors, report, surroundings
from phalanx.shim import notice

# Passed on to phalanx-run, which ends the job; a program that ignores one of them goes on ignoring it.
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
# Passed on to the workers, where this program has no handler of its own for them.
USERS = (signal.SIGUSR1, signal.SIGUSR2)

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What stands in the report's place before phalanx-run empties it, as it begins a job.
_NOT_BEGUN = b"no job has begun\n"


class Outcome:
    """What a phalanx-run came to. `report`: None where it was killed, never began, or could not write it; `began`:
    whether there was a job, and not only a text to print (--help) or wrong usage."""

    def __init__(self, arguments, code, began, report, passed):
        self.arguments = arguments
        self.code = code
        self.began = began
        self.report = report
        self.passed = passed  # numbers of the signals that were passed on to it


def find_command(name="phalanx-run"):
    """The command beside this interpreter, else where this Python installs scripts, else beside the Python that this
    package is installed for, else on PATH; None if nowhere."""
    environment = os.path.normpath(os.path.join(_PACKAGE, *[os.pardir] * 4))  # lib/pythonX.Y/site-packages/phalanx
    folders = [os.path.dirname(sys.executable or ""), sysconfig.get_path("scripts"), os.path.join(environment, "bin")]
    for folder in folders:
        candidate = os.path.join(folder, name) if folder else ""
        if candidate and os.access(candidate, os.X_OK) and os.path.isfile(candidate):
            return candidate
    return shutil.which(name)


def missing_command():
    """The sentence for those whom find_command has told None."""
    return (
        f"there is no phalanx-run beside {sys.executable}, in {sysconfig.get_path('scripts')}, beside the Python that "
        f"{_PACKAGE} is installed for, or on PATH; is the wheel installed for this Python?"
    )


def environment_for(command, base):
    """`base`, free of the shim, with this interpreter named where phalanx-run would not take it by itself; and with our
    files, without which a Python that phalanx-run does not know starts cold."""
    environment = surroundings.without_shim(base)
    own = os.path.dirname(sys.executable or "")
    if own and os.path.realpath(own) != os.path.dirname(os.path.realpath(command)):
        environment.setdefault("PYTHON_EXEC", sys.executable)
        if environment["PYTHON_EXEC"] == sys.executable:
            environment.setdefault("PHALANX_BOOTSTRAP_DIR", os.path.join(_PACKAGE, "_bootstrap"))
    return environment


def run_node(arguments, environment=None, signals=()):
    """Runs phalanx-run with these arguments to its end. `environment` stands for os.environ, `signals` are passed on
    beside the usual ones. phalanx-run takes the calling thread for its parent, which it does not outlive."""
    command = find_command()
    if command is None:
        raise errors.LaunchError(missing_command())
    base = os.environ if environment is None else environment
    notice.launched(base)
    environment = environment_for(command, base)
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryDirectory(prefix="phalanx-") as folder:
        path = os.path.join(folder, "report.json")
        _write_not_begun(path)
        line = [command, f"--parent-pid={os.getpid()}", f"--report-file={path}", *arguments]
        with _SignalPasser({*STOPPING, *signals}) as passer:
            code = _run_to_end(line, environment, passer)
        began = report.read_private(path, len(_NOT_BEGUN)) != _NOT_BEGUN
        return Outcome(arguments, code, began, report.read_report(path), passer.passed)


def raise_unless_succeeded(outcome, name=None):
    """Returns where all workers ended with 0; raises what torch's launcher would raise otherwise."""
    code, told = outcome.code, outcome.report
    if code == 0 and outcome.began:
        return
    if code == 0:
        raise SystemExit(0)  # --help
    if code == 2 and not outcome.began:
        raise errors.UsageError(outcome.arguments)
    if code > 128:
        raise errors.signal_exception(code - 128)
    if -code in outcome.passed:
        raise errors.signal_exception(-code)  # it came before phalanx-run had begun
    if code < 0:
        raise errors.LaunchError(f"phalanx-run was killed by {signal.Signals(-code).name}, and the job with it")
    if told is not None and told.failures:
        raise errors.child_failed_error(name or told.script, told.failures)
    reason = told.reason if told is not None else ""
    raise errors.LaunchError(f"phalanx-run ended with {code}: {reason or 'it has said why on standard error'}")


def told_of_success(outcome):
    """The report of a job that has ended well, for those who cannot do without."""
    if outcome.report is None:
        raise errors.LaunchError(
            "the job has ended well, but which ranks ran here is not known: phalanx-run could not write its report "
            f"below {tempfile.gettempdir()}, and has said why on standard error"
        )
    return outcome.report


def _write_not_begun(path):
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(_NOT_BEGUN)
    except OSError as error:
        raise errors.LaunchError(f"{path}, where phalanx-run leaves its report: {error.strerror}") from error


def _run_to_end(line, environment, passer):
    # A session of its own: what a terminal sends to everybody in the foreground would reach it twice, and the second
    # signal means "at once".
    try:
        process = subprocess.Popen(line, env=environment, start_new_session=True)
    except OSError as error:
        raise errors.LaunchError(f"cannot start {line[0]}: {error.strerror}") from error
    try:
        passer.now_to(process)
        return process.wait()
    except BaseException:
        _end(process)
        raise


def _end(process):
    try:
        process.terminate()
        process.wait()
    finally:
        process.kill()  # nothing where it has ended
        process.wait()


class _SignalPasser:
    """While entered, signals to this process go to phalanx-run. Only a main thread can ask for that."""

    def __init__(self, numbers):
        self.passed = set()
        self._numbers = numbers
        self._process = None
        self._early = []
        self._handlers = {}

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            for number in sorted({*self._numbers, *USERS}):
                before = signal.getsignal(number)
                theirs = number in USERS and number not in self._numbers and before is not signal.SIG_DFL
                if before is None or before is signal.SIG_IGN or theirs:
                    continue  # not Python's to put back; not wanted; the program's own business
                self._handlers[number] = before
                signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *unused):
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def now_to(self, process):
        self._process = process
        for number in self._early:
            process.send_signal(number)

    def _on_signal(self, number, frame):
        self.passed.add(number)
        if self._process is None:
            self._early.append(number)
        else:
            try:
                self._process.send_signal(number)
            except ProcessLookupError:
                pass  # it has just ended
