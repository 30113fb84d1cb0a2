"""Keeps what `dataclasses` compiles while libraries are imported, for the next start: docs/formats/generated-code.md.

torch has some hundred dataclasses; compiling the texts of their methods is a tenth of its import.
"""

import contextlib
import importlib.util
import marshal
import os
import stat
import sys

# Not by hashlib, which has OpenSSL set itself up: that reads OPENSSL_CONF, and the script may set it first.
try:
    from _sha2 import sha256  # since Python 3.12
except ImportError:
    try:
        from _sha256 import sha256
    except ImportError:  # an interpreter that was built without
        from hashlib import sha256

_MAGIC = b"PHXG" + importlib.util.MAGIC_NUMBER
_DIGEST_BYTES = 32
TEXTS_MAX = 20_000
FILE_BYTES_MAX = 32 << 20
DRAFT_AGE_MAX_NS = 3600 * 10**9


class GeneratedCode:
    """While entered, `dataclasses`, if imported, takes from a file in `folder` what it would compile. None: no file."""

    def __init__(self, folder):
        self._path = os.path.join(folder, f"generated-{sys.implementation.cache_tag}.bin") if folder else None
        self._dataclasses = None
        self._codes = {}
        self._learnt = False

    def __enter__(self):
        # Not imported here: a script's folder may have a module of that name, or of one that it imports.
        self._dataclasses = sys.modules.get("dataclasses") if self._path is not None else None
        if self._dataclasses is not None:
            self._codes = _read(self._path)
            self._dataclasses.exec = self._execute

    def __exit__(self, *unused):
        if self._dataclasses is None:
            return
        del self._dataclasses.exec
        if self._learnt:
            _write(self._path, self._codes)

    def _execute(self, text, *scopes):
        """As the exec of that name. Each time another code object: compilers keep what they know of one on it."""
        code = self._codes.get(text)
        if code is None:
            self._learnt = True
            code = self._codes[text] = marshal.dumps(compile(text, "<string>", "exec", dont_inherit=True))
        exec(marshal.loads(code), *scopes)


def _read(path):
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return {}
    with open(fd, "rb") as file:
        info = os.fstat(fd)
        ours = info.st_uid == os.geteuid() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not ours or not stat.S_ISREG(info.st_mode) or info.st_size > FILE_BYTES_MAX:
            return {}
        data = file.read(FILE_BYTES_MAX + 1)
    head = len(_MAGIC)
    body = memoryview(data)[head + _DIGEST_BYTES :]
    if data[:head] != _MAGIC or sha256(body).digest() != data[head : head + _DIGEST_BYTES]:
        return {}
    try:
        codes = marshal.loads(body)
    except (EOFError, ValueError, TypeError):
        return {}
    return codes if isinstance(codes, dict) and len(codes) <= TEXTS_MAX else {}


def _write(path, codes):
    """A disk that is full, or a folder that is not there, costs the next start its haste and nothing else."""
    body = marshal.dumps(codes)
    # Not by the process id: in containers many have the same.
    draft = f"{path}.{os.urandom(8).hex()}"
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    try:
        with open(fd, "wb") as file:
            file.write(_MAGIC + sha256(body).digest() + body)
            now_ns = os.fstat(fd).st_mtime_ns  # by the clock of who keeps the folder
        os.rename(draft, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        return
    _remove_drafts(path, now_ns)


def _remove_drafts(path, now_ns):
    """Those of processes that were killed while they wrote, which takes some milliseconds."""
    folder, name = os.path.split(path)
    with contextlib.suppress(OSError):
        for other in os.listdir(folder):
            draft = os.path.join(folder, other)
            if other.startswith(name + ".") and now_ns - os.lstat(draft).st_mtime_ns > DRAFT_AGE_MAX_NS:
                os.unlink(draft)
