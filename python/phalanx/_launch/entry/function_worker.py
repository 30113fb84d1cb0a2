"""<python> function_worker.py FOLDER: calls the function that lies in FOLDER, and leaves there what it returns
(functions.py)."""

import faulthandler
import importlib.util
import json
import os
import pickle
import string
import sys
import time
import traceback


def _find_phalanx():
    """The one that this file is of, also for an interpreter that has it not. In a worker of Phalanx it is there."""
    here = os.path.dirname(os.path.abspath(__file__))
    if sys.path and os.path.realpath(sys.path[0]) == os.path.realpath(here):
        del sys.path[0]  # the caller has no such entry
    if "phalanx" in sys.modules:
        return
    folder = os.path.dirname(os.path.dirname(here))
    init = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location("phalanx", init, submodule_search_locations=[folder])
    sys.modules["phalanx"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["phalanx"])


_find_phalanx()

from phalanx._launch import functions, report  # noqa: E402


def main(folder):
    functions.check_folder(folder)
    data = report.read_private(os.path.join(folder, functions.CALL))
    if data is None:
        raise SystemExit(f"phalanx: no call of this user lies in {folder}")
    call = pickle.loads(data)
    _take_on(call["preparation"])
    function, arguments = pickle.loads(call["payload"])
    value = _record(function, [_substituted(argument) for argument in arguments])
    rank, restart_count = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    path = os.path.join(folder, functions.result_name(restart_count, rank))
    functions.write_private(path, _result(value, rank))


def _take_on(preparation):
    """Modules and __main__ are found as in the caller, which must not be launched once more meanwhile."""
    from multiprocessing import process, spawn

    this = process.current_process()
    this._inheriting = True
    try:
        spawn.prepare(preparation)
    finally:
        del this._inheriting


def _substituted(argument):
    """As torchrun does with arguments that are text."""
    if not isinstance(argument, str):
        return argument
    return string.Template(argument).safe_substitute(local_rank=os.environ["LOCAL_RANK"])


def _record(function, arguments):
    """As torch's @record, which is around every function that torch launches; torch itself need not be there."""
    if sys.stderr is not None:
        faulthandler.enable(all_threads=True)
    try:
        return function(*arguments)
    except SystemExit as error:
        if error.code == 0:
            return None
        raise
    except Exception as error:
        _write_error(os.environ.get("TORCHELASTIC_ERROR_FILE"), error)
        raise


def _write_error(path, error):
    if not path or os.path.exists(path):  # the function's own @record was first
        return
    trace = error.__traceback__.tb_next  # begins in the function
    stack = "".join(traceback.format_exception(type(error), error, trace))
    extra = {"py_callstack": stack, "timestamp": str(int(time.time()))}
    text = json.dumps({"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}})
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError as why:
        sys.stderr.write(f"phalanx: the error could not be recorded in {path}: {why.strerror}\n")


def _result(value, rank):
    """A value that cannot travel is said to the caller, not to the job: doing the work again would not help."""
    try:
        return pickle.dumps({"value": _dumps(value)}, protocol=4)
    except functions.UNPICKLABLE as error:
        why = f"rank {rank}: what the function returned cannot be pickled: {type(error).__name__}: {error}"
        return pickle.dumps({"refused": why}, protocol=4)


def _dumps(value):
    try:
        return pickle.dumps(value, protocol=4)
    except functions.UNPICKLABLE:
        if "cloudpickle" not in sys.modules:
            raise
        return sys.modules["cloudpickle"].dumps(value, protocol=4)


if __name__ == "__main__":
    main(sys.argv[1])
