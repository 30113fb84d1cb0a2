"""kill -9 of one random thing each few seconds, for minutes: the job steps on, and its ledger explains what it lost.

Three nodes, one of them a spare, whose agents are started again when they were killed, as a cluster does it; a master
that stands alone and is started again with --resume; training that goes on from its last checkpoint.
--seed, PHALANX_CHAOS_S (60) and PHALANX_CHAOS_EVERY_S (5) choose another run; the seed is printed. With
PHALANX_CHAOS_TORCH=1 it is a training with torch and gloo.
"""

import json
import math
import os
import signal
import time

import pytest
from harness import command_path, descends_from, is_running, read_proc, stat_fields, wait_ends

LASTS_S = float(os.environ.get("PHALANX_CHAOS_S", "60"))
EVERY_S = float(os.environ.get("PHALANX_CHAOS_EVERY_S", "5"))
SCRIPT = "resuming.py" if os.environ.get("PHALANX_CHAOS_TORCH") else "light_resuming.py"
NODES, SAVE_EVERY = 3, 20


def children(pid):
    """Of an agent; its guard hides its environment, so Job.processes does not find that."""
    return [int(p) for p in os.listdir("/proc") if p.isdigit() and (stat_fields(p) or ["", ""])[1] == str(pid)]


def started(pid):
    """When, in the kernel's ticks; 0 where it is gone."""
    fields = stat_fields(pid)
    return int(fields[19]) if fields else 0


class Chaos:
    """The job, who of it is alive, and who was killed."""

    def __init__(self, job, choose):
        self.job, self.choose = job, choose
        self.kills = []
        self.master = self.start_master()
        self.nodes = [self.start_node(index) for index in range(NODES)]

    def start_master(self, *flags):
        place = [f"--port={self.job.port}", f"--job-id={self.job.id}", f"--state-dir={self.job.folder / 'master'}"]
        size = ["--nnodes=1:2", "--max-restarts=100000"]
        return self.job.run(*place, *size, *flags, command=[command_path("phalanx-master")], name="master")

    def start_node(self, index):
        flags = ["--rdzv-conf=is_host=0", "--redirects=3"]
        script = [SCRIPT, f"--save-every={SAVE_EVERY}", "--step-ms=50"]
        return self.job.node(index, *script, nnodes="1:2", flags=flags)

    def newest_life(self):
        """{rank: pid} of the ranks that stepped last."""
        last = self.job.events[-1]["life"]
        return {e["rank"]: e["pid"] for e in self.mains if e["life"] == last}

    @property
    def mains(self):
        return [event for event in list(self.job.events) if event["ev"] == "main"]

    def node_of(self, pid):
        return next((node for node in self.nodes if descends_from(pid, node.pid)), None)

    def victims(self):
        """By name: pids to kill at once, and whether that must end the round."""
        ranks = {rank: pid for rank, pid in self.newest_life().items() if is_running(pid)}
        found = {"master": ([self.master.pid], False)}
        for rank, pid in ranks.items():
            found[f"rank {rank}"] = ([pid], True)
        for node in self.nodes:
            member = any(descends_from(pid, node.pid) for pid in ranks.values())
            found[f"agent of {node.name}"] = ([node.pid], member)
            found.update(self.helpers(node, set(ranks.values())))
        host = self.node_of(ranks[0]) if 0 in ranks else None
        if host:
            others = [pid for pid in self.job.processes() if pid != host.pid and descends_from(pid, host.pid)]
            # The agent first: it must not find its ranks dead and tell of them.
            found[f"store host {host.name}"] = ([host.pid, *sorted(others)], True)
        return found

    def helpers(self, node, ranks):
        found = {}
        pythons = []
        for pid in children(node.pid):
            if read_proc(pid, "comm").startswith(b"phalanx"):
                found[f"guard of {node.name}"] = ([pid], False)
            elif b"zygote.py" in read_proc(pid, "cmdline") and pid not in ranks:
                pythons.append(pid)
        pythons.sort(key=started)
        for what, pid in zip(("zygote", "spare"), pythons):
            found[f"{what} of {node.name}"] = ([pid], False)
        return found

    def kill_one(self):
        victims = self.victims()
        kinds = sorted({name.partition(" ")[0] for name in victims})
        kind = self.choose.choice(kinds)
        name = self.choose.choice(sorted(name for name in victims if name.startswith(kind)))
        pids, costs = victims[name]
        at_ms = time.time() * 1000
        print(f"{len(self.kills):3} {time.monotonic():.3f} kill {name}: {pids}", flush=True)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                costs = False if len(pids) == 1 else costs
        self.kills.append({"name": name, "unix_ms": at_ms, "until": math.inf, "t": time.monotonic(), "costs": costs})
        assert wait_ends(pids, 30) == [], name
        self.start_again()

    def start_again(self):
        """As a supervisor does; what was not killed must not have ended."""
        last = self.kills[-1]["name"]
        if last == "master":
            assert self.master.wait() == -signal.SIGKILL
            self.master = self.start_master("--resume")
        for index, node in enumerate(self.nodes):
            if last.split()[-1] == node.name and last.split()[0] in ("agent", "store"):
                assert node.wait() == -signal.SIGKILL, self.job.story()
                self.nodes[index] = self.start_node(index)
            else:
                assert node.process.poll() is None, f"{node.name} has ended\n{self.job.story()}"

    def train(self, seconds):
        """Waits until it has made steps, and has done so for so long, since the last kill."""
        since = self.kills[-1]["t"] if self.kills else self.job.events[-1]["t"]
        self.job.wait(lambda events: events[-1]["ev"] == "step" and events[-1]["t"] > since + seconds, "steps")
        if self.kills:
            self.kills[-1]["until"] = time.time() * 1000


def check_steps(events):
    """Each life begins behind a checkpoint, and not before the last one that was saved when it loaded it."""
    saved, reached = 0, 0
    for event in sorted(events, key=lambda event: event["t"]):
        if event["ev"] == "saved":
            saved = max(saved, event["n"])
        elif event["ev"] == "loaded":
            assert event["n"] % SAVE_EVERY == 0, event
            assert saved <= event["n"] <= reached, (event, saved, reached)
        elif event["ev"] == "step":
            reached = max(reached, event["n"])
    return reached


def check_each_life(events):
    """Within one life the steps of a rank follow each other without a hole."""
    last = {}
    for event in events:
        if event["ev"] == "loaded":
            last[event["pid"]] = event["n"]
        elif event["ev"] == "step":
            assert event["n"] == last[event["pid"]] + 1, event
            last[event["pid"]] = event["n"]


def check_ledger(job, kills):
    found = json.loads(job.phalanx("ledger", f"--state-dir={job.folder / 'master'}", "--json").stdout)
    assert sum(found["causes"].values()) == found["wall_ms"] == found["end_unix_ms"] - found["begin_unix_ms"]
    assert all(ms >= 0 for ms in found["causes"].values()), found
    assert (found["phase"], found["exit_code"]) == ("finished", 0)
    losses = [incident for incident in found["incidents"] if incident["first_cause"]]
    for loss in losses:
        loss["kills"] = [k for k in kills if k["unix_ms"] - 50 <= loss["unix_ms"] <= k["until"] and k["costs"]]
        # A busy machine may let a node be silent for longer than its lease.
        assert loss["kills"] or "silent for" in loss["what"], f"nobody was killed for {loss}\n{kills}"
    for kill in kills:
        incidents = [loss for loss in losses if kill in loss["kills"]]
        if kill["costs"]:
            assert incidents, f"{kill} stands in no incident of {found['incidents']}"
    for cause in ("recovering_ms", "redoing_ms"):
        assert sum(incident[cause] for incident in found["incidents"]) == found["causes"][cause]
    return found


@pytest.mark.slow
@pytest.mark.timeout(LASTS_S + 300)
def test_chaos(job, choose):
    chaos = Chaos(job, choose)
    job.wait(lambda events: any(e["ev"] == "step" and e["world"] == 2 for e in events[-2:]), "a world of 2")
    until = time.monotonic() + LASTS_S
    chaos.train(2)
    while time.monotonic() < until:
        chaos.kill_one()
        chaos.train(EVERY_S)
    job.stop()
    ends = [node.wait() for node in [*chaos.nodes, chaos.master]]
    assert ends == [0] * (NODES + 1), job.story()
    reached = check_steps(job.events)
    check_each_life(job.events)
    ledger = check_ledger(job, chaos.kills)
    lives = len({event["life"] for event in chaos.mains})
    print(f"{len(chaos.kills)} kills, {lives} lives, {reached} steps; {ledger['causes']}")
