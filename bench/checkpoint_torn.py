#!/usr/bin/env python3
"""Whether a restore ever gives a state of two moments: a training whose parameters something else than its optimizer
writes while they are saved, at the defaults, and which is killed (SIGKILL) again and again somewhere behind a save.

    python bench/checkpoint_torn.py [--kills 1000] [--who AverageSwap,ScheduleFree,Sharpness,Normalisation,Thread]
                                    [--mib 32] [--seed 1] [--json F]

AverageSwap swaps an average of the weights in and out by .data, ScheduleFree moves them between two points, Sharpness
climbs and goes back as SAM, Normalisation divides them in the forward pass, Thread writes one from another thread. Each
element of a parameter has the step's number, so one look at what a life restores says whether it is of one moment.
Each writer has a job of its own under phalanx-run; each kill is one life of it, at a moment drawn by --seed, by a timer
of the kernel's. "restored" are lives that went on from a save, "dropped" saves that were given up because their state
was written meanwhile. No life may go on from less than what was committed before it: one that does counts as "lost".
"""

import argparse
import dataclasses
import sys
import tempfile
from pathlib import Path

from support.arguments import count, count_or_zero, names
from support.job import Job, to_its_end
from support.peers import phalanx
from support.results import Results, finish

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from written import WRITERS, lost, torn

WORKLOAD = Path(__file__).resolve().parent.parent / "tests" / "workloads" / "writing.py"
START_S, LIFE_S, END_S = 120, 20, 660  # what a job, each life of it, and its end may take: its last step goes to disk
COLUMNS = ("kills", "restored", "torn", "lost", "committed", "dropped")


def tally(writer, events):
    """{column: number}, and the sentences of what is torn or lost."""
    restored = [event for event in events if event["ev"] == "restored" and event["values"] is not None]
    wrong = [why for why in (torn(writer, event) for event in restored) if why is not None]
    less = [f"step {found} restored where {promised} was committed" for found, promised in lost(events)]

    def number(name):
        return sum(event["ev"] == name for event in events)

    figures = (number("dying"), len(restored), len(wrong), len(less), number("committed"), number("uncommitted"))
    return dict(zip(COLUMNS, figures)), wrong + less


def run(writer, options):
    """The events of one job, to its end."""
    launcher = dataclasses.replace(phalanx(), environment=(("PHALANX_TEST_SOCKET", "{name}"),))
    with tempfile.TemporaryDirectory(prefix="checkpoint-torn-") as folder:
        floats = options.mib * (1 << 20) // 4
        job = Job(
            launcher,
            1,
            1,
            flags=["--max-restarts=1000000"],
            workload=WORKLOAD,
            arguments=[folder, writer, f"--seed={options.seed}", f"--deaths={options.kills}", f"--floats={floats}"],
        )
        with to_its_end(job):
            limit_s = START_S + LIFE_S * options.kills
            job.wait(lambda: job.events and job.events[-1]["ev"] == "done", f"the end of {writer}", limit_s)
            code = job.nodes[0].wait(END_S)
            if code != 0:
                raise SystemExit(f"the job of {writer} ended with {code}:\n{job.logs()[-3000:]}")
            return list(job.events)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=count, default=1000, help="of each writer")
    parser.add_argument("--who", type=names(WRITERS), default=WRITERS, help=f"of {', '.join(WRITERS)}")
    parser.add_argument("--mib", type=count, default=32, help="of each of two parameters")
    parser.add_argument("--seed", type=count_or_zero, default=1)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    return parser.parse_args()


def table(tallies):
    """A row for each writer."""
    rows = [("writer", *COLUMNS), ("---",) * (1 + len(COLUMNS))]
    rows += [(writer, *map(str, figures.values())) for writer, figures in tallies.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main():
    options = parse()
    tallies, said = {}, []
    for writer in options.who:
        tallies[writer], wrong = tally(writer, run(writer, options))
        print(f"== {writer}: {tallies[writer]}", file=sys.stderr, flush=True)
        said += [f"{writer}: {why}" for why in wrong]
    results = Results("")
    for column in COLUMNS:
        results.add(f"all writers: {column}", "phalanx", sum(figures[column] for figures in tallies.values()))
    finish(options.json, "checkpoint_torn", results, notes=[table(tallies), *said])
    if said:
        raise SystemExit("a restore has given what no moment of the training had")


if __name__ == "__main__":
    main()
