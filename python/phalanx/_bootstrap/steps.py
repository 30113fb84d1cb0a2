"""What is imported behind the prefix, step by step: each is what one import has brought. A step lies aside until
another import comes to a module of it, so that it is known which steps each one needs: a script comes to some only."""

import collections
import functools
import sys

from phalanx._bootstrap import hidden
from phalanx._bootstrap.watching import replaced

Step = collections.namedtuple("Step", "modules needs variables left replaced")
Step.__doc__ = """`modules` {name: module}; `needs`: indices of all steps that are there wherever it is; `variables`
that it has read {name: what it saw, None: unset}; `left`: hidden.Left; `replaced`: [replaced.Replaced, ...]."""


class Steps:
    """From now on. To be asked by a finder for what lies aside."""

    def __init__(self):
        self.all = []
        self._seen = set(sys.modules)
        self._aside = {}  # {index: what was taken from modules that stay (hidden.detach)}
        self._step_of = {}
        self._wanted = set()  # by the import that goes on
        self._stay = set()  # indices of steps that each one behind them has
        self._picture = None

    def begin(self):
        """What is there now is no step: it is the prefix, with what that has come to."""
        self._seen.update(sys.modules)
        for index in self._wanted:
            for name in self.all[index].modules:
                del self._step_of[name]
            self.all[index] = Step({}, frozenset(), {}, hidden.Left({}, []), [])
        self._wanted = set()
        self._picture = replaced.Picture()

    def end(self, variables, left, stays=False):
        """An import is over, which has read `variables` and `left` this (hidden.Left). `stays`: what it has brought is
        not laid aside. False where it has brought nothing."""
        new = [name for name in sys.modules if name not in self._seen]
        if new:
            self._seen.update(new)
            modules = {name: sys.modules[name] for name in new if hidden.can_be_hidden(name)}
            index = len(self.all)
            self.all.append(Step(modules, self._wanted | self._stay, variables, left, self._picture.changes()))
            self._picture.add(new)
            self._step_of.update(dict.fromkeys(modules, index))
            if stays:
                self._stay.add(index)
            else:
                self._wanted.add(index)
        self._lay_aside(self._wanted)
        self._wanted = set()
        return bool(new)

    def has_brought(self, name):
        """Whether that module is there, aside or not."""
        return name in self._step_of

    def spec(self, name):
        """Of a module that lies aside; None: it does not."""
        index = self._step_of.get(name)
        if index not in self._aside:
            return None
        return hidden.spec_of(name, self.all[index].modules[name], functools.partial(self._bring_back, index))

    def bring_all_back(self):
        for index in list(self._aside):
            self._bring_back(index)
        self._wanted = set()

    def _lay_aside(self, indices):
        # Before any is gone: a package of one may have a module of another by name.
        self._aside.update({index: hidden.detach(self.all[index].modules, sys.modules) for index in indices})
        for index in sorted(indices, reverse=True):
            replaced.undo(self.all[index].replaced)
            self._picture.note(self.all[index].replaced, is_done=False)
        for name in [name for index in indices for name in self.all[index].modules]:
            sys.modules.pop(name, None)

    def _bring_back(self, index):
        for each in sorted({index} | self.all[index].needs):
            if each in self._aside:
                self._wanted.add(each)
                sys.modules.update(self.all[each].modules)
                hidden.attach(self._aside.pop(each))
                replaced.redo(self.all[each].replaced)
                self._picture.note(self.all[each].replaced, is_done=True)
