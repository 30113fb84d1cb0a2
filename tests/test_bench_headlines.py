"""The few rows of bench/README.md come from bench/results/, and promise no ratio of a single run."""

import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parent.parent / "bench"
sys.path.insert(0, str(BENCH))

import headlines  # noqa: E402
import report  # noqa: E402


def row(*samples, median="middle", unit="s", limit=None):
    return {
        "samples": list(samples),
        "median": sorted(samples)[len(samples) // 2] if median == "middle" else median,
        "unit": unit,
        "limit": limit,
    }


def test_the_pages_are_those_of_the_results():
    """Nobody has changed a figure by hand, and none was forgotten."""
    text = report.README.read_text()
    assert headlines.table() in text
    for file in sorted(report.RESULTS.glob("*.json")):
        assert file.with_suffix(".md").read_text() == report.page(file.stem), file.name


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (row(0.06553, 0.06553, 0.06553), "66 ms"),
        (row(2.7, 2.7, 2.7), "2.7 s"),
        (row(46.2), "46 s (1 run)"),
        (row(None, None, median=None, limit=30), "> 30 s (2 runs)"),
        (row(None, None, None, median=None), "never"),
        (row(16.6, 16.6, 16.6, unit="MB/s"), "17 MB/s"),
        (row(148.2, 148.2, 148.2, unit="us"), "148 us"),
    ],
)
def test_a_figure(given, wanted):
    assert headlines.figure(given) == wanted


def test_a_ratio_needs_three_samples_on_both_sides():
    own = row(1.0, 1.0, 1.0)
    assert headlines.ratio(row(40.0, 40.0, 40.0), own) == 40
    assert headlines.ratio(row(40.0, 40.0), own) is None
    assert headlines.ratio(row(40.0, 40.0, 40.0), row(1.0, 1.0)) is None
    assert headlines.ratio(row(None, None, None, median=None, limit=30), own) is None


def test_where_more_is_better_the_ratio_says_so():
    assert headlines.ratio(row(2.0, 2.0, 2.0, unit="MB/s"), row(6.0, 6.0, 6.0, unit="MB/s")) == 3


def test_a_row_that_the_results_do_not_have_is_named(tmp_path):
    (tmp_path / "recovery.json").write_text(json.dumps({"parts": []}))
    with pytest.raises(
        SystemExit, match=r"recovery\.json has no 'kill to first step, 2 ranks on 1 node' of phalanx-run"
    ):
        headlines.table(tmp_path)
