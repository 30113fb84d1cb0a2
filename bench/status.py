#!/usr/bin/env python3
"""What `phalanx status` costs the master of a large job: the time of its one sequence that an answer takes.

    python bench/status.py [--rounds 9] [--nodes 10000] [--ranks 8] [--json F]

"made": the reply is made of what the job's state says of each node, and turned into bytes; so the first question is
answered, and one in each half second with 10,000 nodes. "given again": all others. The first round finds nothing in
caches.
"""

import argparse
import subprocess
from pathlib import Path

from support.arguments import count
from support.results import Results, finish

PROGRAM = Path(__file__).resolve().parent.parent / "build" / "release" / "bin" / "phalanx-status-bench"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=count, default=9)
    parser.add_argument("--nodes", type=count, default=10_000)
    parser.add_argument("--ranks", type=count, default=8)
    parser.add_argument("--json")
    options = parser.parse_args()
    results = Results("ms")
    command = [PROGRAM, str(options.nodes), str(options.ranks), str(options.rounds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    job = f"{options.nodes} nodes of {options.ranks} ranks"
    for line in done.stdout.splitlines():
        reply, in_bytes, made, again = (float(word) / 1000 for word in line.split()[:4])
        results.add(f"{job}: the reply of the job's state", "phalanx-master", reply)
        results.add(f"{job}: its bytes", "phalanx-master", in_bytes)
        results.add(f"{job}: an answer that is made", "phalanx-master", made)
        results.add(f"{job}: one that is given again", "phalanx-master", again)
    finish(options.json, "status", results)


if __name__ == "__main__":
    main()
