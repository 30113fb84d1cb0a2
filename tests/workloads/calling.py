"""A program that runs jobs in-process and tells what comes of it: <way> ARGUMENTS...

`main`: phalanx.run.main(ARGUMENTS); `main-thread`: the same from a second thread; `main-without-torch`: the same where
torch cannot be imported.
"""

import signal
import sys
import threading

import phalanx
import phalanx.run
from report import report

HANDLERS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1]


def shown(failure):
    names = ("local_rank", "pid", "exitcode", "error_file", "message", "timestamp", "error_file_data")
    return {name: getattr(failure, name) for name in names}


def call(arguments):
    torch_before = "torch" in sys.modules
    before = [signal.getsignal(number) for number in HANDLERS]
    try:
        value = phalanx.run.main(arguments)
        told = {"returned": value}
    except (phalanx.ChildFailedError, phalanx.SignalException, phalanx.LaunchError, SystemExit) as error:
        told = {"raised": f"{type(error).__module__}.{type(error).__qualname__}", "text": str(error)}
        if hasattr(error, "failures"):
            told["name"] = error.name
            told["failures"] = {rank: shown(failure) for rank, failure in error.failures.items()}
            told["first"] = error.get_first_failure()[0]
        if hasattr(error, "sigval"):
            told["sigval"] = error.sigval
        if isinstance(error, SystemExit):
            told["code"] = error.code
    same = before == [signal.getsignal(number) for number in HANDLERS]
    report("called", torch=not torch_before and "torch" in sys.modules, handlers_are_back=same, **told)


def main(way, arguments):
    if way == "main-without-torch":
        sys.modules["torch"] = None  # what Python itself keeps for a module that must not be imported
    if way == "main-thread":
        thread = threading.Thread(target=call, args=(arguments,))
        thread.start()
        thread.join()
    else:
        call(arguments)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
