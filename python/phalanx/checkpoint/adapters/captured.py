"""What a framework's own function saves into a folder, without its weights being written: the names and tensors of each
safetensors file, and the bytes of all others."""

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
import threading
import zlib

import safetensors.torch
import torch

from phalanx.checkpoint.adapters.published import name_of
from phalanx.checkpoint.files import Safetensors

# Modules that bind safetensors.torch.save_file, by the name that it has there.
_BOUND = {
    "safetensors.torch": "save_file",
    "transformers.modeling_utils": "safe_save_file",
    "peft.peft_model": "safe_save_file",
    "accelerate.utils.other": "safe_save_file",
}
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".ckpt")
_NO_WEIGHTS = ("training_args.bin",)
_SHARED_MEMORY = "/dev/shm"
_AS_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_held = {}  # {folder of scratch(): its lock}, of this process


class NotCaptured(Exception):
    """The text says what was written that this cannot follow."""


def capture(write, folder, states=()):
    """({name: Safetensors or state}, {name: bytes}) of what `write(folder)` leaves in that folder, which is empty and
    is emptied again. Names are name_of(path) of published.py. Tensors are those that were given, not copies. `states`:
    what the paths begin with whose states torch.save is to write later. NotCaptured."""
    found = {}
    with _caught(found, folder), _states_caught(found, folder, states):
        write(folder)
    others = {}
    for path in _paths_of_files(folder):
        name, own = name_of(path), os.path.basename(path)
        if name in found:
            continue
        if not states and own.endswith(_WEIGHTS) and own not in _NO_WEIGHTS:
            raise NotCaptured(f"{path} holds weights in another format than safetensors")
        with open(os.path.join(folder, path), "rb") as file:
            others[name] = file.read()
    empty(folder)
    return found, {name: data for name, data in others.items() if data}


def _paths_of_files(folder):
    """Below that folder, and without it."""
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = os.path.join(parent, name)
            is_link_to_folder = os.path.isdir(path) and os.path.islink(path)
            if is_link_to_folder or not (os.path.isdir(path) or os.path.isfile(path)):
                raise NotCaptured(f"{os.path.relpath(path, folder)} is no file, and a checkpoint holds files only")
        yield from (os.path.relpath(os.path.join(parent, name), folder) for name in names)


@contextlib.contextmanager
def _caught(found, folder):
    """Who calls save_file() in this thread for a file in there, by one of the names above, fills `found` and writes an
    empty file."""
    thread, original = threading.get_ident(), safetensors.torch.save_file

    def save_file(tensors, filename, metadata=None):
        path = _path_below(folder, filename)
        if threading.get_ident() != thread or path is None:
            return original(tensors, filename, metadata)
        found[name_of(path)] = Safetensors(dict(tensors), metadata)
        with open(filename, "wb"):  # some look for it
            return None

    bound = [
        (sys.modules[name], attribute)
        for name, attribute in _BOUND.items()
        if getattr(sys.modules.get(name), attribute, None) is original
    ]
    for module, attribute in bound:
        setattr(module, attribute, save_file)
    try:
        yield
    finally:
        for module, attribute in bound:
            setattr(module, attribute, original)


@contextlib.contextmanager
def _states_caught(found, folder, states):
    """The same of torch.save(), for files whose paths begin so."""
    if not states:
        yield
        return
    thread, original = threading.get_ident(), torch.save

    def save(obj, f, *more, **named):
        path = _path_below(folder, f)
        if threading.get_ident() != thread or path is None or not path.startswith(states):
            return original(obj, f, *more, **named)
        found[name_of(path)] = obj
        with open(f, "wb"):
            return None

    torch.save = save
    try:
        yield
    finally:
        torch.save = original


@contextlib.contextmanager
def saves_below(folder):
    """{path below it: object} of all that this thread gives to torch.save() for files in there; none is written."""
    found, thread, original = {}, threading.get_ident(), torch.save

    def save(obj, f, *more, **named):
        path = _path_below(folder, f)
        if threading.get_ident() != thread or path is None:
            return original(obj, f, *more, **named)
        found[path] = obj
        return None

    torch.save = save
    try:
        yield found
    finally:
        torch.save = original


@contextlib.contextmanager
def loads_below(folder, load):
    """What this thread asks torch.load() for, of files in there, is what load(path below it) gives."""
    thread, original = threading.get_ident(), torch.load

    def load_or_ask(f, *more, **named):
        path = _path_below(folder, f)
        if threading.get_ident() != thread or path is None:
            return original(f, *more, **named)
        return load(path)

    torch.load = load_or_ask
    try:
        yield
    finally:
        torch.load = original


def _path_below(folder, file):
    """None: it is not in there, or no path."""
    if not isinstance(file, (str, os.PathLike)):
        return None
    path = os.path.relpath(os.fspath(file), folder)
    return None if path.startswith("..") else path


def scratch(purpose, directory, rank):
    """An empty folder of this user's in memory, which is of nobody else while this process lives, or until release().
    Those that dead processes have left go."""
    empty_locked_by_nobody(purpose, directory)
    _forget_removed()
    prefix = f"{_beginning(purpose, directory)}{rank}-"
    while True:
        folder = tempfile.mkdtemp(prefix=os.path.basename(prefix), dir=os.path.dirname(prefix))
        lock = _lock(folder)
        if lock is not None:
            _held[folder] = lock
            return folder


def release(folder):
    """One of scratch() goes, with what is in it."""
    shutil.rmtree(folder, ignore_errors=True)
    _forget_removed()


def _lock(folder):
    """A descriptor: while it is open the folder is somebody's. It goes with the process. None: the folder is gone, by
    who took it for one of a dead process."""
    try:
        fd = os.open(folder, _AS_FOLDER)
    except FileNotFoundError:
        return None
    fcntl.flock(fd, fcntl.LOCK_EX)
    if os.path.lexists(folder):
        return fd
    os.close(fd)
    return None


def _forget_removed():
    """Whoever has a folder may remove it, too. A garbage collection may come in between, and do the same."""
    for folder in list(_held):
        fd = None if os.path.lexists(folder) else _held.pop(folder, None)
        if fd is not None:
            os.close(fd)


def _beginning(purpose, directory):
    """Of the paths of all ranks' folders."""
    parent = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else tempfile.gettempdir()
    job = zlib.crc32(os.fsencode(os.path.realpath(directory)))
    return os.path.join(parent, f"phx-{purpose}-{os.getuid()}-{job:08x}-")


def empty_locked_by_nobody(purpose, directory):
    """Folders of scratch(), of any rank, that a dead process has left: they go."""
    beginning = _beginning(purpose, directory)
    for entry in os.scandir(os.path.dirname(beginning)):
        if not entry.path.startswith(beginning) or not entry.is_dir(follow_symlinks=False):
            continue
        with contextlib.suppress(FileNotFoundError, PermissionError, BlockingIOError):
            fd = os.open(entry.path, _AS_FOLDER)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.path)
            finally:
                os.close(fd)


def empty(folder):
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
