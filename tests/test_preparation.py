"""preparation.py: one server runs the data preparation of many tests, and each gets its own answer."""

import pytest
from preparation import SparkRuns


def test_an_answer_that_nobody_waited_for_is_not_the_next_ones(tmp_path, monkeypatch):
    """A test's time may end while it waits. (Neither of these runs needs a JVM.)"""

    def end_of_time():
        raise TimeoutError

    with SparkRuns(tmp_path) as runs:
        monkeypatch.setattr(runs.process.stdout, "readline", end_of_time)
        with pytest.raises(TimeoutError):
            runs.run("--help")
        monkeypatch.undo()
        assert runs.run("--no-such-flag").returncode == 2
        assert runs.run("--help").returncode == 0
