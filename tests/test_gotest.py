"""What `go test -json` says, as the report of a suite (tools/suite/gotest.py)."""

import subprocess
import sys

from tools.suite.gotest import Cases
from tools.suite.report import read_report


def result_of(tmp_path, events, status=0):
    cases = Cases()
    for event in events:
        cases.hear(event)
    cases.end()
    cases.write(tmp_path / "report.xml")
    return read_report("go", tmp_path / "report.xml", status)


def event(action, test=None, package="phalanx/operator/internal/engine", **more):
    return {"Action": action, "Package": package, **({"Test": test} if test else {}), **more}


def test_outcomes_are_counted_by_test_and_part(tmp_path):
    events = [event("run", "TestA"), event("run", "TestA/one"), event("fail", "TestA/one"), event("fail", "TestA")]
    events += [event("run", "TestB"), event("pass", "TestB", Elapsed=2.5), event("fail")]
    result = result_of(tmp_path, events, status=1)
    assert result.passed == 1
    assert sorted(result.failed) == ["operator/internal/engine.TestA", "operator/internal/engine.TestA/one"]
    assert result.times_s == {"operator/internal/engine": 2.5}


def test_a_skip_keeps_its_reason(tmp_path):
    events = [event("run", "TestA"), event("output", "TestA", Output="    a_test.go:1: no such thing\n")]
    result = result_of(tmp_path, [*events, event("skip", "TestA"), event("pass")])
    assert result.skipped == [("operator/internal/engine.TestA", "a_test.go:1: no such thing")]


def test_who_ran_when_the_process_ended_has_failed(tmp_path):
    result = result_of(tmp_path, [event("run", "TestA"), event("output", Output="panic: x\n"), event("fail")], status=1)
    assert result.failed == ["operator/internal/engine.TestA"]


def test_a_package_that_does_not_compile_has_failed(tmp_path):
    events = [
        {"Action": "build-output", "ImportPath": "phalanx/operator/x", "Output": "undefined: y\n"},
        {"Action": "build-fail", "ImportPath": "phalanx/operator/x"},
        event("pass", package="phalanx/operator/z"),
    ]
    assert result_of(tmp_path, events, status=1).failed == ["operator/x.the package"]


def test_figures_and_packages_are_told_at_once():
    cases = Cases()
    assert cases.hear(event("output", "TestA", Output="   a_test.go:1: figure: 3 s\n")) == ["a_test.go:1: figure: 3 s"]
    assert cases.hear(event("output", "TestA", Output="anything else\n")) == []
    assert cases.hear(event("pass", Elapsed=1)) == ["phalanx/operator/internal/engine: passed, 1.0 s"]


def test_what_is_not_run_is_a_skip_with_its_reason(tmp_path):
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "tools.suite.gotest", f"--junit={report}"]
    subprocess.run([*command, "--skipped", "API server tests", "no server"], check=True)
    result = read_report("go", report, 0)
    assert (result.passed, result.failed) == (0, [])
    assert result.skipped == [("operator.API server tests", "no server")]
