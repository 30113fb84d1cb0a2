"""Whether a universal checkpoint is whole, and of which step: by its manifest, docs/formats/universal.md."""

import json
import os
import zlib

NAME = "universal.json"
_FORMAT, _VERSION = "phalanx-universal", 1
_BYTES_MAX = 256 << 20
_LAST_LINE_BYTES = len("crc32 00000000\n")
_BLOCK_BYTES = 1 << 20


def text(stage, ranks, source, files):
    """The manifest's bytes. `source`: [(name, bytes, CRC of its end)]; `files`: [(name, bytes, CRC)]."""
    found = {
        "format": _FORMAT,
        "version": _VERSION,
        "zero_stage": stage,
        "ranks": ranks,
        "source": [{"file": name, "bytes": size, "end_crc32": crc} for name, size, crc in source],
        "files": [{"file": name, "bytes": size, "crc32": crc} for name, size, crc in files],
    }
    data = json.dumps(found, separators=(",", ":")).encode() + b"\n"
    return data + b"crc32 %08x\n" % zlib.crc32(data)


def read(folder):
    """The manifest, as a dict. ValueError says what is wrong with it; OSError."""
    path = os.path.join(folder, NAME)
    with open(path, "rb") as file:
        data = file.read(_BYTES_MAX + 1)
    if len(data) > _BYTES_MAX or data[-_LAST_LINE_BYTES:] != b"crc32 %08x\n" % zlib.crc32(data[:-_LAST_LINE_BYTES]):
        raise ValueError(f"{path} is damaged: its last line is not the CRC of what stands before")
    found = json.loads(data[:-_LAST_LINE_BYTES].decode())
    if found.get("format") != _FORMAT or found.get("version") != _VERSION:
        raise ValueError(f"{path} is of {found.get('format')} {found.get('version')}; expected {_FORMAT} {_VERSION}")
    return found


def why_not(folder, stage=None, source=None):
    """None where all files of the universal checkpoint are there, with their sizes, made for ZeRO `stage` and of
    `source` where those are given; else why they are not, in a sentence."""
    try:
        found = read(folder)
        wanted = json.loads(text(stage, 0, source or (), ()).splitlines()[0])
        if source is not None and (found["source"], found["zero_stage"]) != (wanted["source"], wanted["zero_stage"]):
            return f"{folder} is made of another step, or for another stage of ZeRO"
        for each in found["files"]:
            path = os.path.join(folder, each["file"])
            size = os.stat(path).st_size
            if size != each["bytes"]:
                return f"{path} has {size} bytes instead of {each['bytes']}"
    except (OSError, ValueError) as error:
        return str(error)
    return None


def damaged(folder):
    """As why_not(), and reads every byte."""
    why = why_not(folder)
    if why is not None:
        return why
    for each in read(folder)["files"]:
        path = os.path.join(folder, each["file"])
        if _crc_of(path) != each["crc32"]:
            return f"{path} has changed: its CRC is not the one in {NAME}"
    return None


def _crc_of(path):
    crc = 0
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(_BLOCK_BYTES), b""):
            crc = zlib.crc32(block, crc)
    return crc
