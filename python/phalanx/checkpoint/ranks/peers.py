"""What the ranks of a job agree upon when they share a state out among them: over a process group of gloo's, so that no
device is waited for. All ranks make the same calls in the same order."""

import collections
import contextlib
import datetime
import pickle
import secrets

import torch
import torch.distributed as dist

from phalanx.checkpoint.ranks import place, together

SAME, CHANGED, FAILED = 0, 1, 2
# How long ranks wait for each other at a save: less than the ten minutes of NCCL's watchdog, which would end one that
# waits in a collective for another here.
SAVE_S = 300
LOAD_S = 1800  # at a load(), before which each may have read its part: as long as torch's own groups wait
# Gloo ends a group in which one operation takes longer. It is to be none that ranks wait for in vain, behind others.
GROUP_S = SAVE_S + 2 * LOAD_S
LOAD = -1  # stands for the step in a vote of a load()
_GO, _GIVEN_UP = b"go", b"given up "
_RULE = "makes the same calls of save(), prepare() and load()"


class NotTogether(Exception):
    """The ranks do not save the same; the text says why."""


class _Vote:
    """Of this rank in one all-reduce, and then of all. `work`: None until it is cast."""

    def __init__(self, verdict, step):
        self.step = step
        self.values = torch.tensor([verdict, step, -step], dtype=torch.int64)
        self.work = None

    def fail(self):
        if self.work is None:
            self.values[0] = FAILED


class Peers:
    """All ranks of the job. The group is made at the first use: init_process_group() comes before that."""

    def __init__(self, here, directory, use=""):
        """Of a directory, and for one use of it: the same on all ranks, which make those for one use in one order."""
        self._here, self._directory, self._name = here, directory, directory + use
        self._number = None  # among those of this name
        self._own_group = None
        self._groups = 0  # that were made: one that has ended is followed by another
        self._refused = 0  # meetings of a load() or a prepare(), which have no number of their own
        self._store = None  # of this group's ranks alone
        self._votes = collections.deque()  # this rank's, the one it waits for first; more where it has given up before
        self._decided = 0  # votes of which all ranks know the outcome

    def group_of_load(self):
        """None where this rank is the only one. NotTogether where a rank does not come to it in time."""
        for vote in self._votes:
            vote.fail()
        has_met = self._own_group is not None
        group = self._group("load()", LOAD_S)
        if has_met:  # else they have come to this load() just now
            self._come_to_load(SAME)
        return group

    def all_can_load(self, can):
        """Behind group_of_load(), of a load() that finds by itself what there is. NotTogether where another rank
        cannot: it is not to be waited for."""
        if self._own_group is not None and self._come_to_load(SAME if can else FAILED) == FAILED and can:
            raise NotTogether("another rank cannot load, and says why")

    def _come_to_load(self, verdict):
        """The worst verdict of all ranks."""
        worst, highest, lowest = self._cast(verdict, LOAD, "load()", LOAD_S)
        if highest != lowest:
            what = f"saves step {highest}" if highest > 0 else "calls prepare()"
            raise NotTogether(f"another rank {what} meanwhile: every rank {_RULE}")
        if self._settle(_GO) != _GO:
            raise NotTogether("another rank has waited in vain for this one, and given this load() up")
        return worst

    def group_of_save(self, step):
        """The same, of a save(), or of prepare(): of step 0."""
        return self._group(_save_of(step), SAVE_S, step)

    def _group(self, call, within_s, step=0):
        if self._own_group is None and self._here.world_size > 1:
            if not place.is_together():
                raise RuntimeError(
                    "phalanx.checkpoint: the ranks plan together: call torch.distributed.init_process_group() first"
                )
            self._meet(call, within_s, step)
            group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=GROUP_S))
            number = torch.tensor([secrets.randbits(62)])
            dist.broadcast(number, 0, group=group)
            job = dist.distributed_c10d._get_default_store()
            self._store = dist.PrefixStore(f"phalanx.checkpoint/votes/{number.item()}", job)
            self._own_group = group
            self._groups += 1
        return self._own_group

    def _meet(self, call, within_s, step):
        """Who comes to a call that others have given up gives it up as well: at the next one all are there again."""
        job = dist.distributed_c10d._get_default_store()
        name = f"phalanx.checkpoint/peers/{self._here.epoch}/{self._name}"
        if self._number is None:
            self._number = job.add(f"{name}/of rank {self._here.rank}", 1)
        name += f"/{self._number}/{self._groups}/{call}"
        meeting = dist.PrefixStore(name if step else f"{name}/{self._refused}", job)
        try:
            together.decide(meeting, self._here, within_s, self._directory, f"come to {call}", _RULE)
        except together.Apart as error:
            self._refused += 0 if step else 1
            raise NotTogether(str(error)) from None

    def vote(self, verdict, step):
        """The worst verdict of all ranks. NotTogether where one has FAILED, saves another step, or does not come."""
        if self.group_of_save(step) is None:
            return verdict
        worst, highest, lowest = self._cast(verdict, step, _save_of(step), SAVE_S)
        if lowest == LOAD:
            raise NotTogether(f"another rank loads meanwhile: every rank {_RULE}")
        if highest != lowest:
            raise NotTogether(f"the ranks save different steps, from {lowest} to {highest}")
        if worst == FAILED and verdict != FAILED:
            raise NotTogether("another rank cannot save its state")
        if worst == CHANGED and self._settle(_GO) != _GO:
            raise NotTogether("another rank has waited in vain for this one, and given this save up")
        return worst

    def _has_skipped(self, step):
        """Whether the vote was of a call that others have waited for in vain, and to which this rank, which has come to
        `step`, never came: its own vote is another one, behind that."""
        outcome = self._settle(b"different")
        return outcome.startswith(_GIVEN_UP) and outcome != _given_up(step)

    def _cast(self, verdict, step, call, within_s):
        """(the worst verdict, the highest step, the lowest) of all ranks, behind votes that it has skipped."""
        while True:
            vote = _Vote(verdict, step)
            self._votes.append(vote)
            with contextlib.suppress(RuntimeError):  # it is for who tells of this rank alone, and the vote does without
                self._store.set(f"at/{self._here.rank}", str(self._decided + len(self._votes)))
            self._finish_votes(call, within_s)
            worst, highest, lowest = vote.values[0].item(), vote.values[1].item(), -vote.values[2].item()
            if highest == lowest or not self._has_skipped(step):
                return worst, highest, lowest

    def _finish_votes(self, call, within_s):
        while self._votes:
            self._await(self._votes[0], call, within_s)
            self._votes.popleft()
            self._decided += 1

    def _await(self, vote, call, within_s):
        """Until all ranks have cast theirs. Who has waited in vain casts the same number of votes all the same: the
        one for which it waits is out, and later ones follow behind it, as failed."""
        try:
            if vote.work is None:
                vote.work = dist.all_reduce(vote.values, dist.ReduceOp.MAX, group=self._own_group, async_op=True)
            together.wait(
                vote.work.wait, within_s, lambda: self._absent(vote), self._directory, f"come to {call}", _RULE
            )
        except RuntimeError as error:
            if vote.work is None or vote.work.is_completed():
                self._end_group()
                raise NotTogether(f"the ranks' group has ended; the next save makes another: {error}") from None
            self._votes[-1].fail()
            number = self._decided + len(self._votes)
            told = self._told_late(vote, f"come to {call} within {within_s} s")
            if not self._settle(_given_up(self._votes[-1].step), number).startswith(_GIVEN_UP):
                return vote.work.wait()  # the last one has come at this moment
            raise NotTogether(told) from None

    def _told_late(self, vote, what):
        """Who is, where this rank is the one to look for them."""
        with contextlib.suppress(RuntimeError):
            ranks = self._absent(vote)
            if ranks:
                return together.late(ranks, what, _RULE)
        return f"not all ranks have {what}: every rank {_RULE}"

    def _absent(self, vote):
        """The ranks that are waited for; but for the first, none looks for more than that one. RuntimeError where
        others have waited in vain before."""
        if vote.work.is_completed():
            return []
        outcome = f"votes/{self._decided + 1}"
        if self._store.check([outcome]) and self._store.get(outcome).startswith(_GIVEN_UP):
            raise RuntimeError("others have given it up")
        names = {rank: f"at/{rank}" for rank in (range(self._here.world_size) if self._here.rank == 0 else [0])}
        there = [rank for rank, name in names.items() if self._store.check([name])]
        come = [rank for rank in there if int(self._store.get(names[rank])) > self._decided]
        return [rank for rank in names if rank not in come]

    def _end_group(self):
        """One in which a rank has waited for longer than gloo does, or whose ranks have gone, carries nothing more."""
        self._own_group = self._store = None
        self._votes.clear()
        self._decided = 0

    def _settle(self, outcome, number=None):
        """Of a vote behind which ranks do not only go on, each by itself: what the first says of it. Bytes."""
        return self._store.compare_set(f"votes/{number or self._decided}", "", outcome.decode())

    def all_take(self, step, is_whole, sequence=0):
        """Whether all ranks have found their part of that step whole. NotTogether where they look at others, or at one
        that was stored as another (`sequence`)."""
        votes = torch.tensor([step, -step, sequence, -sequence, int(not is_whole)], dtype=torch.int64)
        dist.all_reduce(votes, dist.ReduceOp.MAX, group=self.group_of_load())
        highest, lowest, last, first, damaged = (sign * vote for sign, vote in zip((1, -1, 1, -1, 1), votes.tolist()))
        if highest != lowest:
            raise NotTogether(f"the ranks see different steps, {lowest} and {highest}: is the directory not the same?")
        if last != first:
            raise NotTogether(f"the ranks see different folders of step {step}, stored as number {first} and {last}")
        return not damaged

    def vote_failed(self, step):
        """This rank cannot save; the others are not to wait for it."""
        try:
            self.vote(FAILED, step)
        except NotTogether:
            pass  # this rank has an error of its own

    def arrange(self, make_part, arranged):
        """Each rank gives the part that it makes; rank 0 calls `arranged(parts)`, whose list has an answer for each
        rank. The answer to this rank. NotTogether where parts do not go together, or another rank could not make its
        part."""
        if self.group_of_save(0) is None:  # it is there already, but where something is only made ready
            return arranged([make_part()])[0]
        try:
            packed = pickle.dumps(make_part())
        except BaseException as error:
            failed = _Error(f"rank {self._here.rank} cannot plan its part: {error}")
            self._exchange(pickle.dumps(failed), arranged)
            raise
        answer = self._exchange(packed, arranged)
        if isinstance(answer, _Error):
            raise NotTogether(answer.text)
        return answer

    def _exchange(self, packed, arranged):
        """`packed`: this rank's part, pickled."""
        group, is_first = self._own_group, self._here.rank == 0
        parts = [None] * self._here.world_size if is_first else None
        dist.gather_object(packed, parts, dst=0, group=group)
        mine = [None]
        try:
            answers = _answers(list(map(pickle.loads, parts)), arranged) if is_first else None
        except BaseException as error:
            dist.scatter_object_list(mine, [_Error(f"rank 0 cannot plan: {error}")] * len(parts), src=0, group=group)
            raise
        dist.scatter_object_list(mine, answers, src=0, group=group)
        return mine[0]


def _save_of(step):
    return f"save() or prepare() of step {step}"


def _given_up(step):
    return _GIVEN_UP + str(step).encode()


class _Error:
    def __init__(self, text):
        self.text = text


def _answers(parts, arranged):
    errors = [part for part in parts if isinstance(part, _Error)]
    if errors:
        return errors[:1] * len(parts)
    try:
        return arranged(parts)
    except (ValueError, AssertionError, KeyError) as error:  # torch's planner says so what does not go together
        return [_Error(f"the parts of the ranks do not go together: {error}")] * len(parts)
