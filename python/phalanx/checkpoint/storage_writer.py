"""For stock torch.distributed.checkpoint.save() and async_save(): their planner says what is saved, and a Checkpointer
of phalanx.checkpoint.dcp takes it into memory and to disk.

    dcp.save(state_dict, storage_writer=ckpt.get_storage_writer(step))
"""

import time

import torch.distributed.checkpoint as stock
from torch.futures import Future

from phalanx.checkpoint import alone, peers, refuse, sharded
from phalanx.checkpoint.handle import Storage


class StorageWriter(stock.StorageWriter):
    """Of one save, which all ranks of the job make together. Belongs to the thread that saves."""

    def __init__(self, checkpointer, here, ranks, step, storage):
        """`ranks`: peers.Peers that no other thread uses while this saves."""
        self.handle = None  # the SaveHandle of this rank's part, once that is on its way
        self._checkpointer, self._here, self._ranks = checkpointer, here, ranks
        self._step, self._storage = step, storage
        self._is_coordinator = self._is_used = False
        self._local_plan = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        """torch is not to choose this class for a path: where it saves to is the Checkpointer's matter."""
        return False

    def reset(self, checkpoint_id=None):
        """torch calls it where dcp.save() is given a `checkpoint_id`."""
        if checkpoint_id is not None:
            raise ValueError(
                f"phalanx.checkpoint.dcp: checkpoint_id is {checkpoint_id!r}; expected none: step {self._step} goes to "
                f"{self._checkpointer.directory}, the Checkpointer's directory"
            )

    def set_up_storage_writer(self, is_coordinator, *unused, **options):
        if options.get("use_collectives") is False:
            raise ValueError("phalanx.checkpoint.dcp: use_collectives is False; expected True: all ranks save together")
        if self._is_used:
            raise RuntimeError(
                f"phalanx.checkpoint.dcp: this writer was for step {self._step}: each save takes one of its own from "
                "get_storage_writer()"
            )
        self._is_coordinator, self._is_used = is_coordinator, True

    def prepare_local_plan(self, plan):
        """Where the planner remembers plans, it says only that this one is as the last."""
        is_whole = getattr(plan, "usable", True)
        self._local_plan = plan if is_whole else self._checkpointer.last_plan
        if self._local_plan is None:
            raise ValueError(
                "phalanx.checkpoint.dcp: the planner remembers a plan that went to another StorageWriter; expected a "
                "planner without enable_plan_caching, or a cached_plans_key of its own"
            )
        return plan

    def prepare_global_plan(self, plans):
        if len(plans) != self._here.world_size:
            raise ValueError(
                f"phalanx.checkpoint.dcp: {len(plans)} of {self._here.world_size} ranks make this save; expected all: "
                "a process_group that has all ranks of the job, and no_dist where there is only one"
            )
        return plans

    def write_data(self, plan, planner):
        """Returns when this rank's part is on its way, the same on all ranks: none waits for one that has failed."""
        began_ns = time.monotonic_ns()
        made = []

        def choice():
            made.append(sharded.Resolved(plan, self._local_plan, planner, self._checkpointer.forms))
            return sharded.Choice(self._step, self._here.first_rank, made[0], self._metadata(planner))

        try:
            assignment = self._ranks.arrange(choice, sharded.arranged_as_planned)
        except peers.NotTogether as error:
            raise RuntimeError(f"phalanx.checkpoint.dcp: step {self._step} is not saved: {error}") from None
        (resolved,) = made
        image, state = resolved.laid_out(assignment)
        self.handle = self._checkpointer.save_planned(
            self._step, self._storage, image, state, assignment.metadata, began_ns
        )
        self._checkpointer.last_plan = self._local_plan
        written = Future()
        written.set_result(sharded.results(self._here.rank, assignment))
        return written

    def _metadata(self, planner):
        if not self._is_coordinator:
            return None
        metadata = getattr(planner, "metadata", None)
        if metadata is None:
            raise refuse.CannotSave(
                f"{type(planner).__name__} has no `metadata` behind create_global_plan(): derive it from "
                "torch.distributed.checkpoint.DefaultSavePlanner"
            )
        return metadata

    def finish(self, metadata, results):
        """On the coordinator, for which the other ranks wait: returns when all ranks have their part where it was to
        go. Saves to memory without an agent are passed over, as save() does."""
        metadata.storage_data = {}
        for written in (each for of_rank in results for each in of_rank):
            metadata.storage_data.setdefault(written.index, written.storage_data)
        handle = self.handle
        is_there = handle.wait_stored() if self._storage is Storage.DISK else handle.wait_committed()
        if not is_there and handle.why != alone.NOT_TO_MEMORY:
            raise RuntimeError(f"phalanx.checkpoint.dcp: step {self._step} is not saved: {handle.why}")
