"""For DistributedDataParallel, where all ranks have the same state: local rank 0 of each node saves it (without agents
rank 0 of all), every rank what is its own, random numbers and data positions."""

from phalanx.checkpoint import checkpointer, handle
from phalanx.checkpoint.state import per_rank, position, rng, shared_values, states


class Checkpointer(checkpointer.Checkpointer):
    """As phalanx.checkpoint.Checkpointer. "rng", data positions and PerRank stand at the top level of the state."""

    kind = "ddp"
    _own = None  # who leads: beside the image that all share, that of its own

    def _make_writers(self, answer, slots, overlapping, verify):
        def own(overlaps, verifies):
            return self._writer_of("own", answer["control"], "ddp-rank", slots, overlaps, verifies)

        if not self._here.leads:
            self._writer = own(overlapping, verify)
            return
        self._own, self._own_describer = own(False, verify), self._new_describer()
        self._writer = self._writer_of("main", answer["main"], "ddp", slots, overlapping, verify)

    def _budget_of(self, page):
        return self._memory_budget if page == "main" else 0  # what is each rank's own is small

    def _is_lent(self):
        return True

    def part_of(self, state):
        return state if self._here.leads else states.own_part(state)

    def prepare(self, state, waits=True):
        why = super().prepare(state, waits)
        if self._own is None:
            return why
        return why or self._own.prepare(*self._described_own(state), waits)

    def _write(self, saving, state, began_ns):
        """The small image first: the node's save is complete with the large one."""
        saving.values = shared_values.checksums(state)
        if self._own is not None:
            own = handle.SaveHandle(self, saving.step, saving.storage, saving.branch)
            expanded, image = self._described_own(state)
            self._own.write(own, expanded, image, began_ns)
            self._own.finish(own)  # what lies on a device is copied meanwhile
            if not own.is_sealed:
                self._writer.give_up(saving, own.why or "what is this rank's own is not sealed")
                return
            state = states.with_rng_of(state, expanded.state)  # asking for it once is enough
        super()._write(saving, state, began_ns)

    def _described_own(self, state):
        expanded = states.expand(states.own_part(state), rng_into=self._rng)
        return expanded, self._own_describer.describe(expanded.state)

    def _close_writers(self):
        if self._own is not None:
            self._own.close()
        super()._close_writers()

    def read(self, found, map_location="cpu"):
        if found.main is None:
            raise RuntimeError(
                f"phalanx.checkpoint: step {found.step} in {self.directory} has no image with the whole state"
            )
        state = self.read_image(found, found.main, map_location)
        if found.own is not None:
            return _with_own(state, self.read_image(found, found.own))
        if isinstance(state, dict) and rng.is_captured(state.get("rng")):
            lost = (
                f"step {found.step} has no image of rank {self._here.rank} alone: its random numbers stay as they are"
            )
            self.why = f"{self.why}; {lost}" if self.why else lost
        return _with_own(state, {})


def _with_own(state, own):
    """The shared state with this rank's own values in the place of those of the rank that saved it. A rank that has
    none, in a larger world, keeps its own random numbers: two ranks must not draw the same."""
    if not isinstance(state, dict):
        return state
    for key, value in list(state.items()):
        if rng.is_captured(value) or position.is_saved(value) or per_rank.is_saved(value):
            if key in own:
                state[key] = own[key]
            elif rng.is_captured(value):
                state[key] = True
            elif per_rank.is_saved(value):
                state[key] = per_rank.saved(None)
    for key in own.keys() - state.keys():  # the rank that has saved the shared state had none of that name
        state[key] = own[key]
    return state
