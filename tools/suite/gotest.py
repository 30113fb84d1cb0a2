"""Runs `go test` and reports in JUnit's format: gotest.py --junit FILE ARGUMENTS OF go test..., or that it was not run:
gotest.py --junit FILE --skipped WHAT WHY.

Prints one line for each package, what failing tests say, and figures. A package that fails without a failing test (it
does not compile, or has crashed) is a failure of its own.
"""

import argparse
import json
import subprocess
import sys
import xml.etree.ElementTree as xml

MODULE = "phalanx/"
ENDS = {"pass": "passed", "fail": "failed", "skip": "skipped"}
WHOLE = "the package"  # stands for a test where none is to blame


class Cases:
    """What the events of `go test -json` come to."""

    def __init__(self):
        self.outcomes, self.times_s, self.words = {}, {}, {}

    def hear(self, event):
        """Takes one event in; the lines that a person wants to see at once."""
        case = (event.get("Package") or event.get("ImportPath", ""), event.get("Test", WHOLE))
        action = event["Action"]
        if action in ("output", "build-output"):
            self.words.setdefault(case, []).append(event["Output"])
            return [event["Output"].strip()] if "figure: " in event["Output"] else []
        if action == "run":
            self.outcomes[case] = "running"
        if action == "build-fail":
            self.outcomes[case] = "failed"
        if action in ENDS:
            self.outcomes[case], self.times_s[case] = ENDS[action], event.get("Elapsed", 0.0)
        if action in ENDS and case[1] == WHOLE:
            return [f"{case[0]}: {ENDS[action]}, {event.get('Elapsed', 0.0):.1f} s"]
        return []

    def end(self):
        """Tests that were running when their process ended have failed. A package counts where no test is to blame."""
        for case, outcome in self.outcomes.items():
            if outcome == "running":
                self.outcomes[case] = "failed"
        blamed = {package for package, test in self.failed() if test != WHOLE}
        self.outcomes = {
            (package, test): outcome
            for (package, test), outcome in self.outcomes.items()
            if test != WHOLE or (outcome == "failed" and package not in blamed)
        }

    def failed(self):
        return [case for case, outcome in self.outcomes.items() if outcome == "failed"]

    def write(self, path):
        suite = xml.Element("testsuite", name="go")
        for (package, test), outcome in self.outcomes.items():
            took_s = self.times_s.get((package, test), 0.0)
            times = {"time": f"{took_s:.3f}"} if "/" not in test else {}  # a test's time has that of its parts in it
            case = xml.SubElement(suite, "testcase", classname=package.removeprefix(MODULE), name=test, **times)
            words = "".join(self.words.get((package, test), []))
            if outcome == "failed":
                xml.SubElement(case, "failure", message="failed").text = printable(words)
            if outcome == "skipped":
                xml.SubElement(case, "skipped", message=printable(words.strip()))
        xml.ElementTree(suite).write(path)


def printable(text):
    """XML has no place for other control characters."""
    return "".join(letter for letter in text if letter.isprintable() or letter in "\n\t")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--junit", required=True)
    parser.add_argument("--skipped", nargs=2, metavar=("WHAT", "WHY"))
    options, arguments = parser.parse_known_args()
    cases = Cases()
    if options.skipped:
        what, why = options.skipped
        cases.outcomes[MODULE + "operator", what], cases.words[MODULE + "operator", what] = "skipped", [why]
        cases.write(options.junit)
        return 0
    with subprocess.Popen(["go", "test", "-json", *arguments], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if not line.startswith("{"):
                print(line, end="", flush=True)
                continue
            for told in cases.hear(json.loads(line)):
                print(told, flush=True)
    cases.end()
    for case in cases.failed():
        print(f"--- {case[0]}: {case[1]}\n{''.join(cases.words.get(case, []))}", flush=True)
    cases.write(options.junit)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
