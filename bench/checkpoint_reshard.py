#!/usr/bin/env python3
"""FSDP2 state in a world of another size: from the memory of those that hold it, beside stock dcp.load() from disk.

    python bench/checkpoint_reshard.py [--mib 1024] [--rounds 3] [--json F]

3 -> 4: three nodes of one rank, and a fourth joins; what its rank, and the others' in the new world, need of files that
are not on their nodes they read there. 4 -> 3: four nodes of one rank, of which one gets SIGTERM, and stays until the
others have read its rank's part; and one node of four ranks, whose phalanx-run is killed and started again with three.
Then the same state is loaded by stock dcp.load(), by the same ranks, into the same tensors, from the files on disk,
which were dropped from the page cache, and once more, from the page cache: nobody who uses torch's planner is faster
than that. Each time is from a barrier to a barrier.
"""

import argparse
import signal
import tempfile

from support.arguments import count
from support.job import WORKLOADS, Job, measured
from support.peers import phalanx
from support.results import Results, finish

SCRIPT = "reshard_steps.py"
LIMIT_S = 240


def told(job, name, ranks):
    def find():
        events = [event for event in job.events if event["ev"] == name]
        return events if len(events) >= ranks else None

    return job.wait(find, f"{name} of {ranks} ranks", LIMIT_S)


def add(results, job, what, ranks):
    loaded, stock, bound = (told(job, name, ranks) for name in ("loaded", "stock", "bound"))
    assert {event["source"] for event in loaded} == {"memory"}, loaded
    results.add(what, "phalanx.checkpoint.dcp", max(event["seconds"] for event in loaded))
    results.add(what, "dcp.load from disk", max(event["seconds"] for event in stock))
    results.add(what, "dcp.load from the page cache", max(event["seconds"] for event in bound))


def measure(results, what, options, begins, changes, ranks):
    with tempfile.TemporaryDirectory() as directory:
        environment = {"BENCH_MIB": str(options.mib), "BENCH_DIRECTORY": directory}
        nodes, nproc, nnodes = begins
        places = [(f"127.0.0.{index + 1}", []) for index in range(4)]
        job = Job(
            phalanx(),
            nodes,
            nproc,
            workload=SCRIPT,
            named=True,
            nnodes=nnodes,
            places=places,
            environment=environment,
        )
        with measured(job, results, what, who="phalanx.checkpoint.dcp"):
            told(job, "saved", nodes * nproc)
            changes(job)
            add(results, job, what, ranks)


def a_node_joins(job):
    job.nodes.append(job.add_node(3, str(WORKLOADS / SCRIPT)))


def a_node_leaves(job):
    job.nodes[3].send_signal(signal.SIGTERM)


def one_rank_less(job):
    job.kill_node(0)
    job.nodes[0] = job.add_node(0, str(WORKLOADS / SCRIPT), nproc=3)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=count, default=1024, help="of the state")
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--json")
    options = parser.parse_args()
    results = Results("s", 120.0)
    for _ in range(options.rounds):
        measure(results, "3 -> 4 ranks, a node joins", options, (3, 1, "3:4"), a_node_joins, 4)
        measure(results, "4 -> 3 ranks, a node leaves", options, (4, 1, "3:4"), a_node_leaves, 3)
        measure(results, "4 -> 3 ranks of one node", options, (1, 4, "1"), one_rank_less, 3)
    finish(options.json, "checkpoint_reshard", results)


if __name__ == "__main__":
    main()
