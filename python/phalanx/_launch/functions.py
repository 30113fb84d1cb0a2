"""Functions as entry points: how a call gets to the workers of this node, and what they return gets back.

Both ways lead through a folder that this process makes for the call, 0700, with files 0600. Nothing of it comes from
another machine or goes there: its own caller makes its own. The workers' side is entry/function_worker.py.
"""

import io
import os
import pickle
import stat
import sys
import types

from phalanx._launch import report

CALL = "call.pickle"
# By its path, as the interpreter that runs it may have no phalanx; in a folder where nothing else is to import.
WORKER_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "entry", "function_worker.py")
# What pickle, and the ways to pickle that classes have of their own, raise where something cannot be.
UNPICKLABLE = (
    *(pickle.PicklingError, TypeError, ValueError, AttributeError),
    *(NotImplementedError, RuntimeError, RecursionError),
)


def result_name(restart_count, rank):
    return f"result-{restart_count}-{rank}.pickle"


def write_private(path, data):
    """All of it or nothing: the file appears by its name when it is whole."""
    draft = path + ".part"
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
    os.rename(draft, path)


def check_folder(path):
    """OSError where the folder is not this user's alone."""
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(f"{path}: expected a folder of this user with mode 0700")


def pickle_call(function, arguments):
    """The text of CALL. PicklingError says in a sentence what cannot travel."""
    main = _main_module_preparation()
    try:
        if getattr(function, "__module__", None) == "__main__" and "main" not in main:
            raise pickle.PicklingError("__main__ is no file that a worker could import")
        payload = _dumps((function, arguments))
    except UNPICKLABLE as error:
        payload = _by_cloudpickle(function, arguments, error)
    return pickle.dumps({"preparation": main, "payload": payload}, protocol=4)


def _dumps(value):
    buffer = io.BytesIO()
    pickle.Pickler(buffer, protocol=4).dump(value)
    return buffer.getvalue()


def _by_cloudpickle(function, arguments, why):
    name = getattr(function, "__qualname__", repr(function))
    try:
        import cloudpickle
    except ImportError:
        raise pickle.PicklingError(
            f"elastic_launch cannot send {name} to its workers: {why}. Expected a function that a module defines at "
            "its top level and arguments that can be pickled; with cloudpickle installed, others can travel as well"
        ) from why
    try:
        return cloudpickle.dumps((function, arguments), protocol=4)
    except UNPICKLABLE as error:
        raise pickle.PicklingError(
            f"elastic_launch cannot send {name} and its arguments to its workers: {error}"
        ) from error


def _main_module_preparation():
    """What multiprocessing.spawn.prepare wants, so that a worker finds modules and __main__ as this process does."""
    from multiprocessing import process

    data = {
        "sys_path": [entry or process.ORIGINAL_DIR for entry in sys.path],
        "sys_argv": list(sys.argv),
        "orig_dir": process.ORIGINAL_DIR,
        "dir": os.getcwd(),
    }
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    path = getattr(main, "__file__", None)
    if name is not None:
        return {**data, "init_main_from_name": name, "main": True}
    if path is not None and os.path.isfile(os.path.join(process.ORIGINAL_DIR, path)):
        return {**data, "init_main_from_path": os.path.normpath(os.path.join(process.ORIGINAL_DIR, path)), "main": True}
    return data


def refuse_inside_import():
    """A worker imports the caller's main module: a launch at its top level would go on for ever."""
    from multiprocessing import process

    if getattr(process.current_process(), "_inheriting", False):
        raise RuntimeError(
            "elastic_launch was called while a worker imports the main module. Expected the call below "
            'if __name__ == "__main__":, as for multiprocessing'
        )


def modules_used(function):
    """Names of libraries that the function's module and __main__ use, for the zygote to import ahead of time."""
    from phalanx._bootstrap import places

    names = set()
    for name in {"__main__", getattr(function, "__module__", None)}:
        for value in list(vars(sys.modules[name]).values()) if name in sys.modules else ():
            attribute = "__name__" if isinstance(value, types.ModuleType) else "__module__"
            owner = getattr(value, attribute, None)
            if isinstance(owner, str):
                names.add(owner.partition(".")[0])
    present = {
        name: sys.modules[name] for name in names - {"__main__", "__mp_main__", "phalanx"} if name in sys.modules
    }
    # The standard library is not worth it.
    return sorted(name for name, module in present.items() if places.is_library_module(module) and _is_package(module))


def _is_package(module):
    return any(part in (module.__spec__.origin or "") for part in ("site-packages", "dist-packages"))


def read_results(folder, told):
    """{rank: value} of this node's workers in their last life; none of a node that ended as a spare."""
    results = {}
    for local_rank in range(told.workers):
        rank = told.rank_base + local_rank
        data = report.read_private(os.path.join(folder, result_name(told.restart_count, rank)))
        if data is None:
            raise RuntimeError(f"rank {rank} ended with 0 and returned nothing: its function left by os._exit, or exec")
        told_by_worker = pickle.loads(data)
        if "refused" in told_by_worker:
            raise pickle.PicklingError(told_by_worker["refused"])
        results[rank] = pickle.loads(told_by_worker["value"])
    return results
