"""What suites report in JUnit's format, summed up. A suite that crashes or says nothing counts as failed."""

import dataclasses
import re
import xml.etree.ElementTree

PLACE = re.compile(r"^\S+:\d+$")


@dataclasses.dataclass
class Result:
    """What one suite came to. `failed` holds names, with the reason where there is one, `skipped` (name, reason),
    `times_s` the seconds by test file, as its tests were timed."""

    passed: int = 0
    failed: list = dataclasses.field(default_factory=list)
    skipped: list = dataclasses.field(default_factory=list)
    times_s: dict = dataclasses.field(default_factory=dict)

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        for file, time_s in other.times_s.items():
            self.times_s[file] = self.times_s.get(file, 0.0) + time_s

    def named(self, prefix):
        """The same with a word before each name: where the same tests run more than once."""
        self.failed = [f"{prefix}: {name}" for name in self.failed]
        self.skipped = [(f"{prefix}: {name}", reason) for name, reason in self.skipped]
        self.times_s = {f"{prefix}: {file}": time_s for file, time_s in self.times_s.items()}
        return self

    @property
    def count(self):
        """Of all cases."""
        return self.passed + len(self.failed) + len(self.skipped)

    @property
    def counts(self):
        return f"{self.passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"


def first_line(text):
    """Of what a test says. googletest puts a line before it that has its place alone."""
    lines = (text or "").strip().splitlines()
    words = lines[1:] if lines and PLACE.match(lines[0]) else lines
    return words[0].strip() if words else ""


def file_of(classname):
    """`tests/test_x.py` of pytest's "tests.test_x" and "tests.test_x.TestClass"; other suites' names as they are."""
    parts = (classname or "").split(".")
    return f"tests/{parts[1]}.py" if parts[0] == "tests" and len(parts) > 1 else parts[0]


def outcome_of(case):
    skipped = case.find("skipped")
    if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
        return "failed", None
    if skipped is not None or case.get("result") == "skipped" or case.get("status") in ("disabled", "notrun"):
        text = None if skipped is None else skipped.get("message") or skipped.text
        disabled = "disabled: no test, or the child of another one" if "DISABLED_" in case.get("name", "") else None
        return "skipped", first_line(text) or disabled or "no reason given"
    return "passed", None


def cases_of(path):
    """{name: (outcome, reason)} of a report. A case with an error in its clean-up appears once, as failed."""
    outcomes = {}
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        outcome, reason = outcome_of(case)
        if outcome == "failed" or outcomes.get(name, ("",))[0] != "failed":
            outcomes[name] = (outcome, reason)
    return outcomes


def read_junit(path):
    """Counts the test cases of a report."""
    outcomes, result = cases_of(path), Result()
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        file = file_of(case.get("classname"))
        result.times_s[file] = result.times_s.get(file, 0.0) + float(case.get("time") or 0)
    result.passed = sum(outcome == "passed" for outcome, _ in outcomes.values())
    result.failed = [name for name, (outcome, _) in outcomes.items() if outcome == "failed"]
    result.skipped = [(name, reason) for name, (outcome, reason) in outcomes.items() if outcome == "skipped"]
    return result


def read_report(suite, path, status):
    """The suite's report; one failure more where the report is missing or hides what the exit status says."""
    try:
        result = read_junit(path)
    except (OSError, xml.etree.ElementTree.ParseError):
        return Result(failed=[f"{suite}: ended with status {status} and left no readable report"])
    if status != 0 and not result.failed:
        result.failed.append(f"{suite}: ended with status {status}")
    return result


def read_journal(suite, path, status):
    """What tests had come to before their process crashed, or was interrupted (`status` None) and so left no report:
    lines "OUTCOME NAME", of which "began" stands before the others."""
    outcomes, result = {}, Result()
    for line in path.read_text().splitlines() if path.exists() else ():
        outcome, _, name = line.partition(" ")
        if outcomes.get(name) != "failed":  # in its clean-up, too
            outcomes[name] = outcome
    result.passed = sum(outcome == "passed" for outcome in outcomes.values())
    result.failed = [name for name, outcome in outcomes.items() if outcome == "failed"]
    if status is not None:
        running = [name for name, outcome in outcomes.items() if outcome == "began"]
        what = f"in {' and '.join(running)}" if running else "between tests"
        result.failed.append(f"{suite}: ended with status {status} {what}")
    return result


def read_programs(suite, path, status, reports):
    """ctest runs one program per module, and `path` is its report. Each writes its own into the folder `reports`, of
    single tests, which counts in its place.

    A program that failed without a failure in its report (it crashed, or hung) counts as one. So does one that passed
    and reports no test: it ended early, or ran none.
    """
    overview = read_report(suite, path, status)
    result = Result(skipped=overview.skipped, times_s=overview.times_s)
    singles = read_singles(reports)
    for single in singles.values():
        result.add(dataclasses.replace(single, times_s={}))
    explained = {f"{program}.{program}" for program, single in singles.items() if single.failed}
    result.failed += [f"{name}: see its output above" for name in overview.failed if name not in explained]
    result.failed += [f"{name}: ended with 0 and reports no test" for name in silent(path, singles)]
    return result


def read_singles(reports):
    """{program: Result} of the reports that programs of unit tests have left in a folder."""
    return {path.stem: read_report(path.stem, path, 0) for path in sorted(reports.glob("*.xml"))}


def silent(path, singles):
    """The programs that passed in ctest's report at `path` and have no test in `singles`."""
    try:
        outcomes = cases_of(path)
    except (OSError, xml.etree.ElementTree.ParseError):
        return []  # read_report has told of it
    told = {f"{program}.{program}" for program, single in singles.items() if single.count}
    return [name for name, (outcome, _) in outcomes.items() if outcome == "passed" and name not in told]
