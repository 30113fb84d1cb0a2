#!/usr/bin/env python3
"""How long the tests take, run after run: a row of bench/results/suite.json and suite.md for each run that is recorded.

python bench/suite.py [--run quick|default|long] [--note TEXT]

Without --run the run of ./run test that was the last in this clone is recorded; its times lie in build/reports/.
"""

import argparse
import datetime
import json
import subprocess
import sys
from pathlib import Path

import report
from support.results import machine

ROOT = Path(__file__).resolve().parent.parent
TIMES = ROOT / "build" / "reports" / "times.json"
HISTORY = ROOT / "bench" / "results" / "suite.json"
COLUMNS = "day,commit,run,note,minutes,lint,unit tests,end to end,alone,tests,slowest file".split(",")


def row_of(times, day, commit, note):
    """A row of the table, from what the runner has left."""
    suites = times["suites_s"]
    slowest = max(times["files_s"], key=times["files_s"].get, default="")
    end_to_end = suites.get("end to end", suites.get("slice of end to end", 0))
    return {
        "day": day,
        "commit": commit,
        "run": times["mode"],
        "note": note,
        "minutes": round(times["total_s"] / 60, 1),
        "lint": f"{suites.get('lint', 0):.0f} s",
        "unit tests": f"{suites.get('unit tests', 0):.0f} s",
        "end to end": f"{end_to_end:.0f} s",
        "alone": f"{suites.get('end to end, alone', 0):.0f} s",
        "tests": f"{times['passed']} passed, {times['failed']} failed, {times['skipped']} skipped",
        "slowest file": f"{slowest} {times['files_s'].get(slowest, 0):.0f} s",
    }


def table(rows):
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    return "\n".join(lines + ["| " + " | ".join(str(row[name]) for name in COLUMNS) + " |" for row in rows])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", choices=["quick", "default", "long"], help="run it first")
    parser.add_argument("--note", default="", help="what was particular: an empty cache, a loaded machine")
    parser.add_argument("--json", type=Path, default=HISTORY, help="the history that gets a row (default: %(default)s)")
    options = parser.parse_args()
    if options.run:
        TIMES.unlink(missing_ok=True)  # a run that does not come so far must not record the one before
        done = subprocess.run([ROOT / "run", "test", *([] if options.run == "default" else [f"--{options.run}"])])
        if done.returncode != 0:
            print(f"suite: ./run test ended with status {done.returncode}", file=sys.stderr)
    if not TIMES.is_file():
        sys.exit("suite: no run to record: ./run test leaves its times in build/reports/times.json")
    times = json.loads(TIMES.read_text())
    if times["mode"] == "some" or options.run not in (None, times["mode"]):
        sys.exit(f"suite: the last run was {times['mode']!r}; record one of all tests, or give --run")
    history = json.loads(options.json.read_text())["rows"] if options.json.is_file() else []
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    history.append(row_of(times, day, commit.strip(), options.note))
    content = {"benchmark": "suite", "command": "bench/suite.py", "day": day, "machine": machine()}
    content.update(table=table(history), notes=[], rows=history)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(content, indent=1) + "\n")
    if options.json == HISTORY:
        report.render()
    print(content["table"])
    return 1 if times["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
