"""For stock torch.distributed.checkpoint.save() and async_save(): their planner says what is saved, and a Checkpointer
of phalanx.checkpoint.dcp takes it into memory and to disk.

    dcp.save(state_dict, storage_writer=ckpt.get_storage_writer(step))
"""

import functools
import time

import torch.distributed.checkpoint as stock
from torch.distributed.checkpoint.planner import SavePlanner
from torch.futures import Future

from phalanx.checkpoint.formats import sharded
from phalanx.checkpoint.handle import SaveHandle, Storage
from phalanx.checkpoint.link import alone
from phalanx.checkpoint.ranks import peers
from phalanx.checkpoint.state import refuse


class StorageWriter(stock.StorageWriter):
    """Of one save, which all ranks of the job make together. Belongs to the thread that saves; `handle` is the
    SaveHandle of this rank's part."""

    def __init__(self, checkpointer, here, ranks, handle, waits=True):
        """`ranks`: peers.Peers that no other thread uses while this saves. `waits`: finish() returns when all is where
        it was to go; else when all is copied."""
        self.handle = handle
        self._checkpointer, self._here, self._ranks = checkpointer, here, ranks
        self._waits = waits
        self.planned = None  # (sharded.Resolved, sharded.Assignment), when all have planned
        self._is_coordinator = self._is_used = False
        self._local_plan = self._metadata = None

    def __reduce__(self):
        raise TypeError(
            "phalanx.checkpoint.dcp: a StorageWriter stays in its rank; expected async_checkpointer_type THREAD"
        )

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        """torch is not to choose this class for a path: where it saves to is the Checkpointer's matter."""
        return False

    def reset(self, checkpoint_id=None):
        """torch calls it where dcp.save() is given a `checkpoint_id`."""
        if checkpoint_id is not None:
            raise ValueError(
                f"phalanx.checkpoint.dcp: checkpoint_id is {checkpoint_id!r}; expected none: step {self.handle.step} "
                f"goes to {self._checkpointer.directory}, the Checkpointer's directory"
            )

    def set_up_storage_writer(self, is_coordinator, *unused, **kwargs):
        """torch says more where the last argument has just this name."""
        if kwargs.get("use_collectives") is False:
            raise ValueError("phalanx.checkpoint.dcp: use_collectives is False; expected True: all ranks save together")
        if self._is_used:
            raise RuntimeError(
                f"phalanx.checkpoint.dcp: this writer was for step {self.handle.step}: each save takes one of its own "
                "from get_storage_writer()"
            )
        self._is_coordinator, self._is_used = is_coordinator, True

    def prepare_local_plan(self, plan):
        self._local_plan = plan
        return plan

    def prepare_global_plan(self, plans):
        if len(plans) != self._here.world_size:
            raise ValueError(
                f"phalanx.checkpoint.dcp: {len(plans)} of {self._here.world_size} ranks make this save; expected all: "
                "a process_group that has all ranks of the job, and no_dist where there is only one"
            )
        return plans

    def write_data(self, plan, planner):
        """Returns when this rank's part is copied. What one rank finds to be in the way before that all hear at once,
        and nothing is saved; what comes later costs the save, and finish() says so."""
        began_ns = time.monotonic_ns()
        made = []

        def choice():
            made.append(sharded.Resolved(plan, self._local(planner), planner, self._checkpointer.forms))
            if self._is_coordinator:
                self._metadata = _metadata_of(planner)
            return sharded.Choice(self.handle.step, self._here.first_rank, made[0], self._metadata)

        try:
            assignment = self._ranks.arrange(choice, sharded.arranged_as_planned)
        except peers.NotTogether as error:
            raise RuntimeError(self._not_saved(error)) from None
        self.planned = made[0], assignment
        self._take(functools.partial(made[0].laid_out, assignment), assignment.metadata, began_ns)
        written = Future()
        written.set_result(sharded.results(self._here.rank, assignment))
        return written

    def _take(self, lay_out, described, began_ns):
        """As of dcp.Checkpointer.save_planned()."""
        self._checkpointer.save_planned(self.handle, lay_out, described, began_ns)
        if not self.handle.wait_staged():
            self._raise_unless_passed_over()

    def _local(self, planner):
        """What the planner has made of this rank's state. One that remembers plans says only that it is as before."""
        if getattr(self._local_plan, "usable", True):
            return self._local_plan
        return SavePlanner._cached_save_plan[planner._cached_plans_key]

    def _not_saved(self, why):
        return f"phalanx.checkpoint.dcp: step {self.handle.step} is not saved: {why}"

    def _raise_unless_passed_over(self):
        """Saves to memory without an agent are passed over, as save() does."""
        if self.handle.why != alone.NOT_TO_MEMORY:
            raise RuntimeError(self._not_saved(self.handle.why))

    def finish(self, metadata, results):
        """On the coordinator, for which the other ranks wait: returns when all ranks have their part where it was to
        go."""
        if metadata is not self._metadata:
            raise RuntimeError(
                self._not_saved("the planner's `metadata` is not what its create_global_plan() has returned")
            )
        metadata.storage_data = {}
        for written in (each for of_rank in results for each in of_rank):
            metadata.storage_data.setdefault(written.index, written.storage_data)
        if not self._waits:
            return
        is_to_disk = self.handle.storage is Storage.DISK
        if not (self.handle.wait_stored() if is_to_disk else self.handle.wait_committed()):
            self._raise_unless_passed_over()


class Preparer(StorageWriter):
    """For a stock dcp.save() that saves nothing: what it would save has its memory made ready."""

    def __init__(self, checkpointer, here, ranks, prepare):
        """`prepare(lay_out, described)`: the arguments as of dcp.Checkpointer.save_planned()."""
        super().__init__(checkpointer, here, ranks, SaveHandle(checkpointer, 0, Storage.MEMORY), waits=False)
        self._prepare = prepare

    def _take(self, lay_out, described, began_ns):
        self._prepare(lay_out, described)


def _metadata_of(planner):
    metadata = getattr(planner, "metadata", None)
    if metadata is None:
        raise refuse.CannotSave(
            f"{type(planner).__name__} sets no self.metadata in create_global_plan(), as "
            "torch.distributed.checkpoint.DefaultSavePlanner does"
        )
    return metadata
