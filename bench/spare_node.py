#!/usr/bin/env python3
"""A node is lost and a spare node steps in -> the first step of all ranks: phalanx-run.

    python bench/spare_node.py [--rounds 5] [--json F]

Jobs of --nnodes=2, one rank a node, and a third node that waits as a spare with its workers warm; a master that stands
alone. SIGKILL goes to everything of one node at once: of group rank 1, and of group rank 0, which holds the store.
"""

import argparse

from support.arguments import amount, count
from support.job import Job
from support.peers import phalanx_with_master
from support.results import Results, finish


def lose(results, group_rank, options):
    what = f"all of a node killed (group rank {group_rank}) to the first step with the spare"
    job = Job(phalanx_with_master(), 2, 1, flags=["--max-restarts=100"], spares=1)
    try:
        life, _ = job.wait_whole_life()
        job.settle(life, options.settle)
        began = job.kill_node(job.node_of(job.pid(group_rank, life)))
        results.add(what, "phalanx-run", job.wait_first_steps(began, 2) - began)
    finally:
        job.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--settle", type=amount, default=3.0, help="seconds of training before each loss")
    parser.add_argument("--json")
    options = parser.parse_args()
    results = Results("s")
    for _ in range(options.rounds):
        for group_rank in (1, 0):
            lose(results, group_rank, options)
    finish(options.json, "spare_node", results)


if __name__ == "__main__":
    main()
