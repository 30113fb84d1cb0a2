"""What a zygote tells of itself where `phalanx warm` asks: docs/formats/worker-socket.md. No launch imports this."""

import sys

from phalanx._bootstrap import hidden
from phalanx._bootstrap.scanning import scan


def of_scan(found):
    """What the script's text says, before anything is imported."""
    return {
        "type": "scanned",
        "unread": found.unread,
        "prefix": found.prefix,
        "usual": found.usual,
        "later": found.later,
        "own": found.own,
        "where": found.where,
        "end": _end(found.end),
        "usual_end": _end(found.usual_end),
        "files": len(found.texts),
    }


def _end(end):
    return None if end is None else dict(zip(scan.End._fields, end))


def of_imports(loader, found, asked, arguments):
    """What a fork of this process has, and what it depends on. The last thing before it is ready."""
    modules = list(sys.modules)
    return {
        "type": "explained",
        "asked": asked,
        "stopped": loader.stopped,
        "missed": loader.missed,
        "leader": loader.leader,
        "imported_with": loader.imported_with,
        "values": sorted(name for name in found.attributes if name not in sys.modules),
        "modules": [name for name in modules if not _is_ours(name)],
        "hidden": hidden.names(),
        "variables": sorted(loader.variables_read),
        "all_names": loader.all_names_read,
        "arguments": arguments.was_read,
    }


def _is_ours(name):
    return name.partition(".")[0] == "phalanx"
