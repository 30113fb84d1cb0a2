"""What the ranks of a job agree upon when they share a state out among them: over a process group of gloo's, so that no
device is waited for. All ranks make the same calls in the same order."""

import pickle

import torch
import torch.distributed as dist

from phalanx.checkpoint.ranks import place

SAME, CHANGED, FAILED = 0, 1, 2


class NotTogether(Exception):
    """The ranks do not save the same; the text says why."""


class Peers:
    """All ranks of the job. The group is made at the first use: init_process_group() comes before that."""

    def __init__(self, here):
        self._here = here
        self._own_group = None

    def group(self):
        """None where this rank is the only one."""
        if self._own_group is None and self._here.world_size > 1:
            if not place.is_together():
                raise RuntimeError(
                    "phalanx.checkpoint: the ranks plan together: call torch.distributed.init_process_group() first"
                )
            self._own_group = dist.new_group(backend="gloo")
        return self._own_group

    def vote(self, verdict, step):
        """The worst verdict of all ranks. NotTogether where one has FAILED, or saves another step."""
        if self.group() is None:
            return verdict
        votes = torch.tensor([verdict, step, -step], dtype=torch.int64)
        dist.all_reduce(votes, dist.ReduceOp.MAX, group=self.group())
        worst, highest, lowest = votes[0].item(), votes[1].item(), -votes[2].item()
        if worst == FAILED and verdict != FAILED:
            raise NotTogether("another rank cannot save its state")
        if highest != lowest:
            raise NotTogether(f"the ranks save different steps, from {lowest} to {highest}")
        return worst

    def all_take(self, step, is_whole, sequence=0):
        """Whether all ranks have found their part of that step whole. NotTogether where they look at others, or at one
        that was stored as another (`sequence`)."""
        votes = torch.tensor([step, -step, sequence, -sequence, int(not is_whole)], dtype=torch.int64)
        dist.all_reduce(votes, dist.ReduceOp.MAX, group=self.group())
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
        if self.group() is None:
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
        group, is_first = self.group(), self._here.rank == 0
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
