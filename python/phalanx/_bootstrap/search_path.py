"""sys.path as it stands, without a search: where it and its folders are as before, so is what it finds."""

import os
import stat
import sys
from importlib.machinery import FileFinder


def look():
    """What to compare. None where something else than folders may provide modules, such as an archive: only a search
    tells then."""
    finders = [sys.path_importer_cache.get(entry) for entry in sys.path]
    if any(type(finder) not in (FileFinder, type(None)) for finder in finders):
        return None
    found = [tuple(sys.path_hooks)]
    for entry in sys.path:
        try:
            info = os.stat(entry or os.curdir)
        except (OSError, TypeError, ValueError):
            found.append((entry, None))
            continue
        if not stat.S_ISDIR(info.st_mode):
            return None
        found.append((entry, info.st_dev, info.st_ino, info.st_mtime_ns))
    return found
