"""Runs of `phalanx-preprocess --engine spark`, one after the other in one Python and so in one JVM, which takes seconds
to start: `python tests/preprocess_server.py`, with the package's environment.

A line of stdin is a request in JSON, a line of stdout its answer: {"run": [arguments]} -> {"returncode": n};
{"inputs": [words]} -> {"said": [..]}, what is said of each as --input. All else that is said, by the JVM too, goes to
stderr. It ends with its stdin.
"""

import json
import os
import sys

from phalanx.preprocess import refusal, run, spark


def run_once(arguments):
    try:
        return {"returncode": run.main(arguments)}
    except SystemExit as end:  # of argparse
        return {"returncode": end.code}


def ask_for_inputs(words):
    said = []
    with spark.Engine("inputs") as engine:
        for word in words:
            try:
                found, _ = engine.inputs(word)
                said.append(f"taken: {[one.path for one in found]}")
            except refusal.Refused as error:
                said.append(str(error))
    return {"said": said}


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for request in map(json.loads, sys.stdin):
        answer = run_once(request["run"]) if "run" in request else ask_for_inputs(request["inputs"])
        sys.stderr.flush()
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
