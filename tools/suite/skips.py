"""Which tests may be skipped, and why. A skip that is not on the list is a failure: nobody would see it otherwise."""

import fnmatch
import json
from pathlib import Path

LIST = Path(__file__).with_name("allowed_skips.json")


def read(path=LIST):
    """[{"test": pattern of the test's name, "reason": pattern of its words, "why": a sentence}]"""
    entries = json.loads(path.read_text())
    for entry in entries:
        if set(entry) != {"test", "reason", "why"} or not all(entry.values()):
            raise ValueError(f"{path.name}: an entry has test, reason and why, each with words: {entry}")
    return entries


def allows(entries, name, reason):
    return any(fnmatch.fnmatch(name, e["test"]) and fnmatch.fnmatch(reason, e["reason"]) for e in entries)


def check(result, entries):
    """Makes each skip that nothing allows a failure."""
    stray = [(name, reason) for name, reason in result.skipped if not allows(entries, name, reason)]
    result.failed += [f"{name}: skipped ({reason}), which {LIST.name} does not allow" for name, reason in stray]
    result.skipped = [skip for skip in result.skipped if skip not in stray]
    return result
