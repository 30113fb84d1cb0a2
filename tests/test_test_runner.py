"""tools/test.py believes no suite that crashed, and counts each test once."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import test as runner  # noqa: E402

SUITE = '<testsuites><testsuite name="s">{}</testsuite></testsuites>'
PASSED = '<testcase classname="m" name="{}"/>'
FAILED = '<testcase classname="m" name="{}"><failure message="no">trace</failure></testcase>'
ERROR = '<testcase classname="m" name="{}"><error message="clean-up">trace</error></testcase>'
SKIPPED = '<testcase classname="m" name="{}"><skipped message="needs a GPU">x</skipped></testcase>'


def report_in(folder, *cases, name="report.xml"):
    path = folder / name
    path.write_text(SUITE.format("".join(cases)))
    return path


def test_counts(tmp_path):
    path = report_in(tmp_path, PASSED.format("a"), FAILED.format("b"), SKIPPED.format("c"), PASSED.format("d"))
    result = runner.read_report("suite", path, 1)
    assert (result.passed, result.failed, result.skipped) == (2, ["m.b"], ["m.c: needs a GPU"])


def test_a_test_that_passes_and_fails_in_its_clean_up_failed_once(tmp_path):
    result = runner.read_report("suite", report_in(tmp_path, PASSED.format("a"), ERROR.format("a")), 1)
    assert (result.passed, result.failed) == (0, ["m.a"])


@pytest.mark.parametrize("text", [None, "", "<testsuites><testsuite>"])
def test_a_suite_without_a_readable_report_failed(tmp_path, text):
    path = tmp_path / "report.xml"
    if text is not None:
        path.write_text(text)
    result = runner.read_report("suite", path, -11)
    assert result.passed == 0
    assert result.failed == ["suite: ended with status -11 and left no readable report"]


def test_a_suite_that_passed_everything_and_crashed_failed(tmp_path):
    result = runner.read_report("suite", report_in(tmp_path, PASSED.format("a")), 139)
    assert (result.passed, result.failed) == (1, ["suite: ended with status 139"])


def test_programs_count_by_their_single_tests(tmp_path):
    report_in(tmp_path, PASSED.format("a"), PASSED.format("b"), name="good_test.xml")
    report_in(tmp_path, PASSED.format("a"), FAILED.format("b"), name="bad_test.xml")
    overview = runner.Result(
        passed=2,  # good_test, and plain_test that writes no report
        failed=["bad_test.bad_test", "crashed_test.crashed_test"],
        skipped=["off_test.off_test: Disabled"],
    )
    result = runner.read_programs(overview, tmp_path)
    assert result.passed == 2 + 1 + 1
    assert result.failed == ["m.b", "crashed_test.crashed_test: see its output above"]
    assert result.skipped == overview.skipped
