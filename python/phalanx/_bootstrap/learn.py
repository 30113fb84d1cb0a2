"""What a life has imported of torch and its like until its first step is what the next life should find imported."""

import os
import sys

from phalanx._bootstrap import hidden, places
from phalanx._bootstrap.watching import watch

MODULES_MAX = 4000
_TEXT_BYTES_MAX = 120 << 10  # a message that fits an empty socket buffer: nobody may have to wait for its reader

_before_change = None  # names of modules that were there when the script first changed what they may read unseen
_undo = None


def watch_environment():
    """Notices when the user's own code first changes a variable of which nobody sees who reads it: what is imported
    behind that may depend on it. Those that are seen are compared when the next life imports it (hidden.py)."""
    global _undo
    kind = type(os.environ)
    original_set, original_delete = kind.__setitem__, kind.__delitem__

    def set_item(environment, name, value):
        original_set(environment, name, value)
        _changed(name)

    def delete_item(environment, name):
        original_delete(environment, name)
        _changed(name)

    def undo():
        if kind.__setitem__ is set_item:
            kind.__setitem__ = original_set
        if kind.__delitem__ is delete_item:
            kind.__delitem__ = original_delete

    kind.__setitem__, kind.__delitem__ = set_item, delete_item
    _undo = undo


def modules():
    """Names for the next life's preloading, in the order of their imports; none where all was preloaded already.
    Ends the watching.

    Looking at every module costs a forked process a copy of every page they lie on, 40 ms in the first step.
    """
    _stop_watching()
    if places.last_preloaded is not None and not _anything_new():
        return []
    names = []
    text_bytes = 0
    for name, module in sys.modules.copy().items():
        if not _worth_learning(name, module):
            continue
        text_bytes += len(name) + 3
        if text_bytes > _TEXT_BYTES_MAX or len(names) == MODULES_MAX:
            break
        names.append(name)
    return names


def _anything_new():
    """Whether a library's module has been imported since the fork: those come last in sys.modules."""
    for name in reversed(sys.modules):
        if name == places.last_preloaded:
            return False
        if not hidden.was_given_out(name) and _worth_learning(name, sys.modules[name]):
            return True
    return False


def _worth_learning(name, module):
    if _before_change is not None and name not in _before_change:
        return False
    return watch.is_indifferent(name) and places.is_library_module(module)


def _stop_watching():
    global _undo
    if _undo is not None:
        _undo()
        _undo = None


def _changed(name):
    global _before_change
    hidden.variable_changes(name)
    if _before_change is not None or not hidden.may_be_read_unseen(str(name)) or hidden.is_imported_with(name):
        return
    frame = sys._getframe(2)
    while frame is not None and _is_plumbing(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None or places.is_library_file(frame.f_code.co_filename):
        return  # a library, of its own accord: it does so in every life
    _before_change = frozenset(sys.modules)


def _is_plumbing(filename):
    return filename in ("<frozen os>", "<frozen _collections_abc>") or filename in (os.__file__, _MAPPING_FILE)


_MAPPING_FILE = getattr(sys.modules.get("_collections_abc"), "__file__", None) or ""
