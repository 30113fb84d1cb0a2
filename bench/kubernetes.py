#!/usr/bin/env python3
"""The Kubernetes operator against an API server and an etcd of this machine: how fast pods come, and come again.

    python bench/kubernetes.py [--json F]

Needs Go 1.26, root, phalanx-master (`./run build`) and the control plane: `./run operator --control-plane` builds it.
API server, etcd, operator and the test share the processors. Pods are objects that a kubelet of the test says to run,
and nothing starts, but for one job: its master is real, and its workers sleep. A round is a sample; of 200 deletions
that the master hears of, median, 99th percentile and worst are one each.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

from support.results import Results, finish

OPERATOR = Path(__file__).resolve().parent.parent / "operator"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures"
        test = ["go", "test", "-tags", "apiserver", "-count=1", "-timeout=30m", "-run=^TestFigures$"]
        subprocess.run([*test, "./test/apiserver", f"-figures={figures}"], cwd=OPERATOR, check=True)
        lines = [json.loads(line) for line in figures.read_text().splitlines()]
    by_unit = {}
    for line in lines:
        results = by_unit.setdefault(line["unit"], Results(line["unit"]))
        results.add(line["what"], "phalanx-operator", line["value"])
    finish(options.json, "kubernetes", *by_unit.values())


if __name__ == "__main__":
    main()
