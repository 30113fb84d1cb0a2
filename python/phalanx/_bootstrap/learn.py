"""What a life has imported until its first step is what the next life should find imported."""

import os
import sys

from phalanx._bootstrap import places

MODULES_MAX = 4000
_TEXT_BYTES_MAX = 120 << 10  # a message that fits an empty socket buffer: nobody may have to wait for its reader

_before_change = None  # names of modules that were there when the script first changed os.environ
_undo = None


def watch_environment():
    """Notices the first change of os.environ by the user's own code: what is imported later may depend on it."""
    global _undo
    kind = type(os.environ)
    original_set, original_delete = kind.__setitem__, kind.__delitem__

    def set_item(environment, name, value):
        original_set(environment, name, value)
        _changed()

    def delete_item(environment, name):
        original_delete(environment, name)
        _changed()

    def undo():
        if kind.__setitem__ is set_item:
            kind.__setitem__ = original_set
        if kind.__delitem__ is delete_item:
            kind.__delitem__ = original_delete

    kind.__setitem__, kind.__delitem__ = set_item, delete_item
    _undo = undo


def modules():
    """Sorted names for the next life's preloading. Ends the watching."""
    _stop_watching()
    names = []
    text_bytes = 0
    for name, module in sorted(sys.modules.copy().items()):
        if _before_change is not None and name not in _before_change:
            continue
        if name == "__main__" or name.partition(".")[0] == "phalanx" or not places.is_library_module(module):
            continue
        text_bytes += len(name) + 3
        if text_bytes > _TEXT_BYTES_MAX or len(names) == MODULES_MAX:
            break
        names.append(name)
    return names


def _stop_watching():
    global _undo
    if _undo is not None:
        _undo()
        _undo = None


def _changed():
    global _before_change
    frame = sys._getframe(2)
    while frame is not None and _is_plumbing(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None or places.is_library_file(frame.f_code.co_filename):
        return  # a library, of its own accord: it does so in every life
    if _before_change is None:
        _before_change = frozenset(sys.modules)
    _stop_watching()


def _is_plumbing(filename):
    return filename in ("<frozen os>", "<frozen _collections_abc>") or filename in (os.__file__, _MAPPING_FILE)


_MAPPING_FILE = getattr(sys.modules.get("_collections_abc"), "__file__", None) or ""
