"""A budget of time for each test file. Beyond it the run warns, in one line, and does not fail: machines differ."""

import json
from pathlib import Path

LIST = Path(__file__).with_name("budgets.json")


def read(path=LIST):
    """{file: seconds}, with that of all others under "default". Seconds are the sum over the file's tests."""
    budgets = json.loads(path.read_text())
    if "default" not in budgets or not all(isinstance(budget, (int, float)) for budget in budgets.values()):
        raise ValueError(f"{path.name}: seconds for each file, and a default")
    return budgets


def over(times_s, budgets):
    """[(file, seconds, budget)] of the files that took longer, the worst first."""
    found = [(file, time_s, budgets.get(file, budgets["default"])) for file, time_s in times_s.items()]
    return sorted((row for row in found if row[1] > row[2]), key=lambda row: row[2] - row[1])


def gone(budgets, exists):
    """Test files with a budget that are not there any more. Other suites have names instead."""
    return [file for file in budgets if file.startswith("tests/") and not exists(file)]
