"""What imports ahead of their turn leave in modules of the standard library: filters of warnings, loggers, how objects
are pickled, names of sys. It is taken away when they are hidden, and put back when they are given out, as if they had
left it then."""

import copyreg
import itertools
import sys
import warnings

from phalanx._bootstrap import filters, places
from phalanx._bootstrap.watching.modules import kept_names

# How objects are pickled, and what libraries note for themselves where each module finds it.
_MARKED = (copyreg.dispatch_table, vars(sys))


class Before:
    """What is there before those imports. Loggers of the libraries `there`, which the script has already, stay when
    they come: it may set their levels at any time."""

    def __init__(self, there=()):
        self._there = frozenset(there)
        self._filters = list(warnings.filters)
        self._version = _version_of_filters()
        self._loggers = dict(_loggers())
        self._entries = [(names, frozenset(names)) for names in _MARKED]

    def take_away(self):
        """Leaves all as it was; returns Marks of what has come."""
        entries = [
            (names, {name: names.pop(name) for name in [*names] if name not in before})
            for names, before in self._entries
        ]
        manager = _manager()
        loggers, tree = self._take_loggers_away(manager.loggerDict) if manager is not None else ({}, None)
        new = [entry for entry in warnings.filters if entry not in self._filters]
        in_front = list(itertools.takewhile(lambda entry: entry not in self._filters, warnings.filters))
        if new:
            warnings.filters[:] = self._filters
            _filters_have_changed()
        _keep_what_was_said(self._version)
        return Marks(loggers, tree, in_front, [entry for entry in new if entry not in in_front], entries)

    def _stays(self, name):
        return name.partition(".")[0] in self._there or places.is_standard_name(name)

    def _take_loggers_away(self, present):
        """{name: logger} in the order of their making, without those of the standard library, whose modules stay; and
        their _Tree."""
        with_them = dict(present)
        late = {
            name: logger
            for name, logger in present.items()
            if self._loggers.get(name) is not logger and not self._stays(name)
        }
        for name in late:
            if name in self._loggers:
                present[name] = self._loggers[name]
            else:
                del present[name]
        loggers = {name: logger for name, logger in late.items() if not _is_placeholder(logger)}
        ours = set(map(id, loggers.values()))
        children, parents = [], []
        for kept in present.values():
            if _is_placeholder(kept):
                children += [(kept, child) for child in kept.loggerMap if id(child) in ours]
                continue
            parent = kept.parent
            while id(kept.parent) in ours:
                kept.parent = kept.parent.parent
            if kept.parent is not parent:
                parents.append((kept, parent, kept.parent))
        for placeholder, child in children:
            del placeholder.loggerMap[child]
        for logger in loggers.values():
            logger._cache.clear()  # their parents may have another level in a rank
        return loggers, _Tree(with_them, dict(present), children, parents)


class _Tree:
    """How the loggers stood, `before` and `after` some were taken away: {name: logger}; `children` of placeholders and
    `parents` (logger, before, after) that have changed by that."""

    def __init__(self, before, after, children, parents):
        self._before, self._after = before, after
        self._children, self._parents = children, parents

    def put_back(self, present):
        """All at once, where nobody has made another since: each by itself takes a recovery's millisecond."""
        if present != self._after or any(kept.parent is not after for kept, _, after in self._parents):
            return False
        present.update(self._before)
        for placeholder, child in self._children:
            placeholder.loggerMap[child] = None
        for kept, before, _ in self._parents:
            kept.parent = before
        return True


class Marks:
    """`loggers` {name: logger}, which were taken from `tree`; `in_front`, `behind`: entries of warnings.filters;
    `entries`: [(dict, what was in it), ...]."""

    def __init__(self, loggers, tree, in_front, behind, entries=()):
        self._entries = entries
        self._loggers, self._tree = loggers, tree
        self._in_front, self._behind = in_front, behind
        self._classes = _classes_of_loggers()

    def make_own(self):
        """See hidden.make_own."""
        list(self._loggers.items())

    def why_not(self, tops):
        """Why what libraries have left cannot be put back, or None. `tops`: their names, None for all of them."""
        if not self._loggers:
            return None
        if _classes_of_loggers() != self._classes:
            return "the script has set another class of loggers"
        present = _loggers()
        for name in [name for top in tops for name in self._loggers_of(top)]:
            if name in present and not _is_placeholder(present[name]):
                return f"the script has asked for its logger {name}"
        return None

    def put_back(self, top):
        """Returns the filters that have been put back: those of all with the first that is given out."""
        self._put_loggers_back(top)
        self._put_entries_back(top)
        in_front, behind = self._in_front, self._behind
        self._in_front, self._behind = [], []
        if in_front or behind:
            between = [entry for entry in warnings.filters if entry not in in_front]
            warnings.filters[:] = [*in_front, *between, *(entry for entry in behind if entry not in between)]
            _filters_have_changed()
        return [*in_front, *behind]

    def _put_loggers_back(self, top):
        tree, self._tree = self._tree, None
        if top is None and tree is not None and tree.put_back(_loggers()):
            self._loggers.clear()
        for name in self._loggers_of(top):
            _put_logger_back(_manager(), name, self._loggers.pop(name))

    def _put_entries_back(self, top):
        """What the script has put there since stays."""
        for names, taken in self._entries:
            for name in [name for name in taken if _is_there(name, taken[name], top)]:
                names.setdefault(name, taken.pop(name))

    def _loggers_of(self, top):
        return [name for name in self._loggers if top is None or name.partition(".")[0] == top]


def _put_logger_back(manager, name, logger):
    """As Manager.getLogger does with one that it has made."""
    placeholder = manager.loggerDict.get(name)
    if placeholder is not None and not _is_placeholder(placeholder):
        return  # the script's own, which it may have set
    manager.loggerDict[name] = logger
    if placeholder is not None:
        manager._fixupChildren(placeholder, logger)
    manager._fixupParents(logger)


def _is_there(name, value, top):
    """Whether the module that has made it is; a plain value, which says nothing of one, comes with torch (None), or
    the library in its name."""
    module = getattr(value, "__module__", None)
    return module in sys.modules if module is not None else top is None or top in str(name)


def _manager():
    logging = sys.modules.get("logging")
    return logging.Logger.manager if logging is not None else None


def _loggers():
    manager = _manager()
    return manager.loggerDict if manager is not None else {}


def _classes_of_loggers():
    manager = _manager()
    return (manager.loggerClass, sys.modules["logging"]._loggerClass) if manager is not None else None


def _is_placeholder(logger):
    return isinstance(logger, sys.modules["logging"].PlaceHolder)


def _version_of_filters():
    """Python counts their changes: what a module has said by an older version it says once more."""
    registry = {}
    with filters.none():
        warnings.warn_explicit("", UserWarning, "", 0, registry=registry)
    return registry["version"]


def _keep_what_was_said(version):
    """By filters of that version, which are there again."""
    now = _version_of_filters()
    for module in list(sys.modules.values()) if now != version else ():
        said = kept_names(module).get("__warningregistry__")
        if type(said) is dict and said.get("version") == version:
            said["version"] = now


def _filters_have_changed():
    """Has Python forget what it has decided by the filters that were: each Python does so here."""
    with warnings.catch_warnings():
        pass
