"""Rows of measured samples: medians and spread, a table for people, a file for bench/report.py."""

import datetime
import json
import os
import platform
import statistics
import sys
from importlib import metadata
from pathlib import Path

# So many samples a ratio needs on both sides.
ENOUGH = 3


def enough(*rows):
    return all(len(row["samples"]) >= ENOUGH for row in rows)


class Results:
    """Samples by (what, who). A sample of None is one that was cut at the limit, or, without one, never came."""

    def __init__(self, unit, limit=None):
        self.unit, self.limit = unit, limit
        self.rows = {}

    @classmethod
    def of_part(cls, part):
        """As `finish` has written them."""
        results = cls(part["unit"], part["limit"])
        for row in part["rows"]:
            results.rows[row["what"], row["who"]] = {key: row[key] for key in ("what", "who", "samples", "remarks")}
        return results

    def add(self, what, who, value, remark=None):
        row = self.rows.setdefault((what, who), {"what": what, "who": who, "samples": [], "remarks": []})
        row["samples"].append(value)
        if remark and remark not in row["remarks"]:
            row["remarks"].append(remark)
        print(f"   {what}: {who}: {self.show(value)}{f' ({remark})' if remark else ''}", file=sys.stderr, flush=True)

    def lacks(self, what, who, remark):
        """This one has no such thing."""
        self.rows.setdefault((what, who), {"what": what, "who": who, "samples": [], "remarks": [remark]})

    def cut(self):
        return f"> {self.limit:g} {self.unit}" if self.limit else "never"

    def show(self, value):
        if value is None:
            return self.cut()
        return (f"{value:,.0f} {self.unit}" if abs(value) >= 1000 else f"{value:.3g} {self.unit}").strip()

    def median(self, row):
        """The median, with cut samples as the longest; None where it is one of those, or there are none."""
        if not row["samples"]:
            return None
        ordered = sorted(row["samples"], key=lambda value: float("inf") if value is None else value)
        middle = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]
        return None if None in middle else statistics.mean(middle)

    def finished_rows(self):
        """The rows with median, low, high, and the ratio to phalanx-run's median of the same thing. A ratio of fewer
        samples than ENOUGH would say more than was measured: there is none."""
        ours = {}
        for row in self.rows.values():
            if row["who"].startswith("phalanx"):
                ours.setdefault(row["what"], row)
        for row in self.rows.values():
            known = [value for value in row["samples"] if value is not None]
            median = self.median(row)
            own = ours.get(row["what"], {"samples": []})
            own_median = self.median(own) if enough(own, row) else None
            yield {
                **row,
                "median": median,
                "low": min(known, default=None),
                "high": None if None in row["samples"] else max(known, default=None),
                "ratio": median / own_median if median is not None and own_median else None,
            }

    def table(self):
        lines = ["| what | who | median | spread | samples | times phalanx-run | |", "|---|---|---|---|---|---|---|"]
        order = list(dict.fromkeys(what for what, _ in self.rows))
        for row in sorted(self.finished_rows(), key=lambda row: order.index(row["what"])):
            median, low, high = (self.show(row[key]) if row["samples"] else "-" for key in ("median", "low", "high"))
            spread = f"{low} .. {high}" if len(row["samples"]) > 1 else ""
            ratio = f"{row['ratio']:.3g}" if row["ratio"] and not row["who"].startswith("phalanx") else ""
            remarks = "; ".join(row["remarks"])
            cells = [row["what"], row["who"], median, spread, str(len(row["samples"])), ratio, remarks]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)


def load_note(before):
    """What else has worked on this machine. `before`: os.getloadavg() when the benchmark began."""
    figures = [f"{load:.1f}" for load in (before[0], os.getloadavg()[2])]
    return f"Load of the machine: {figures[0]} when it began, {figures[1]} in the quarter of an hour to its end."


def finish(json_path, benchmark, *results, notes=()):
    """Prints the tables of a benchmark and, where a path is given, writes all of it to that file."""
    tables = "\n\n".join(result.table() for result in results)
    print("\n".join([tables, *notes]))
    if not json_path:
        return
    content = {
        "benchmark": benchmark,
        "command": f"bench/{benchmark}.py {' '.join(without_json(sys.argv[1:]))}".strip(),
        "day": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": machine(),
        "table": tables,
        "notes": list(notes),
        "parts": [{"unit": r.unit, "limit": r.limit, "rows": list(r.finished_rows())} for r in results],
    }
    Path(json_path).parent.mkdir(parents=True, exist_ok=True)
    Path(json_path).write_text(json.dumps(content, indent=1) + "\n")


def without_json(arguments):
    """The command line without where the results went."""
    kept, skip = [], False
    for argument in arguments:
        if skip or argument.startswith("--json="):
            skip = False
        elif argument == "--json":
            skip = True
        else:
            kept.append(argument)
    return kept


def machine():
    return {
        "cpus": os.cpu_count(),
        "model": next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if "model name" in line), ""),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
    }
