"""From parts to the dataset: joined in the order of the input, with a sidecar, and what was left out listed."""

import contextlib
import json
import os

from phalanx.data import native
from phalanx.preprocess import part


def source_lines(job, notes):
    """The line that each split begins with, counted from 1, when all of them are known."""
    firsts, line, current = {}, 0, None
    for split in job.splits:
        if split.input != current:
            current, line = split.input, 0
        firsts[split.number] = 1 + (line if split.first_line is None else split.first_line)
        line += notes[split.number]["lines"]
    return firsts


def place_of(job, split, line, lines_before):
    """Where a line of a split is, for people. `lines_before(job, split)`: what no worker may have read."""
    first = lines_before(job, split) if split.first_line is None else split.first_line
    return f"{job.inputs[split.input].path}, line {first + line + 1}"


def write_errors(path, job, notes):
    """Lists the lines that were left out; returns how many. No file where there are none."""
    firsts = source_lines(job, notes)
    count = sum(len(note["errors"]) + note["unlisted_errors"] for note in notes.values())
    temporary = f"{path}.writing"
    if not count:
        for left in (path, temporary):  # by an earlier run
            with contextlib.suppress(FileNotFoundError):
                os.unlink(left)
        return 0
    with open(temporary, "w", encoding="utf-8") as file:
        for split in job.splits:
            for line, why in notes[split.number]["errors"]:
                where = {"file": job.inputs[split.input].path, "line": firsts[split.number] + line, "error": why}
                file.write(json.dumps(where, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
    return count


def publish(job, versions, written_unix_ms, errors):
    """Joins the parts of every key, then brings all datasets to their place; returns the counts of each key.

    A run that is killed in between has left the parts: --resume joins them again.
    """
    with contextlib.ExitStack() as stack:
        joins = {key: stack.enter_context(join(job, key)) for key in job.keys}
        for key, joined in joins.items():
            sidecar = describe(job, key, joined.counts, versions, written_unix_ms, errors)
            joined.publish(json.dumps(sidecar, ensure_ascii=False, indent=1).encode() + b"\n")
        return {key: joined.counts for key, joined in joins.items()}


def join(job, key):
    prefix = job.prefix(key)
    parts = [os.path.join(part.folder_of(prefix), part.name_of(number)) for number in range(job.parts)]
    return native.Join(prefix, parts, job.dataset_impl, replace=True)


def describe(job, key, counts, versions, written_unix_ms, errors):
    """The sidecar: docs/formats/data-sidecar.md."""
    return {
        "format": "phalanx-dataset",
        "version": 1,
        "dataset_impl": "mmap" if job.dataset_impl == "mmap" else "lazy",
        "dtype": job.dtype,
        "documents": counts.documents,
        "sequences": counts.sequences,
        "tokens": counts.tokens,
        "bin": {"bytes": counts.bin_bytes, "crc32": counts.bin_crc32},
        "idx": {"bytes": counts.idx_bytes, "crc32": counts.idx_crc32},
        "tokenizer": {
            "type": job.recipe.kind,
            "fingerprint": job.recipe.fingerprint,
            "vocab_size": job.vocab_size,
            "eod": job.eod,
        },
        "options": {
            "append_eod": job.append_eod,
            "ftfy": job.ftfy,
            "json_key": key,
            "split_sentences": False,
            "run": job.results[key].hex(),
        },
        "inputs": [{"path": one.path} for one in job.inputs],
        "errors": errors,
        "versions": versions,
        "written_unix_ms": written_unix_ms,
    }


def is_complete(job):
    """Whether every dataset of just this job is there: a run that was killed at its very end."""
    return all(is_of(f"{job.prefix(key)}.json", job.results[key].hex(), f"{job.prefix(key)}.idx") for key in job.keys)


def is_of(sidecar, run, index):
    try:
        with open(sidecar, encoding="utf-8") as file:
            told = json.load(file)
    except (OSError, ValueError):
        return False
    return os.path.exists(index) and isinstance(told, dict) and told.get("options", {}).get("run") == run
