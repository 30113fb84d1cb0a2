#!/usr/bin/env python3
"""Draws docs/recovery.svg, the picture of README's first screen, from bench/results/recovery.json.

python bench/picture.py
"""

import json
import statistics
from pathlib import Path

HERE = Path(__file__).resolve().parent
WHAT = "kill to first step, 2 ranks on 1 node"
WIDTH, LEFT, RIGHT, BAR, GAP, TOP = 860, 170, 120, 26, 18, 64
COLORS = {"phalanx-run": "#1a7f37"}
GREY = "#8c959f"


def medians(rows):
    """Seconds by launcher, slowest first; a launcher that was cut at the limit counts with the limit."""
    found = {}
    for row in rows:
        if row["what"] == WHAT:
            known = [sample for sample in row["samples"] if sample is not None]
            found[row["who"]] = (statistics.median(known) if known else None, len(known) < len(row["samples"]))
    return sorted(found.items(), key=lambda item: -(item[1][0] or 0))


def bar(index, who, seconds, longest, cut):
    y = TOP + index * (BAR + GAP)
    width = max(2.0, (WIDTH - LEFT - RIGHT) * seconds / longest)
    color = COLORS.get(who, GREY)
    text = f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
    more = ", some never" if cut else ""
    return (
        f'<text x="{LEFT - 12}" y="{y + 18}" text-anchor="end" font-weight="600" fill="currentColor">{who}</text>'
        f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" rx="3" fill="{color}"/>'
        f'<text x="{LEFT + width + 10:.1f}" y="{y + 18}" fill="currentColor">{text}{more}</text>'
    )


def main():
    stored = json.loads((HERE / "results" / "recovery.json").read_text())
    measured = [row for part in stored["parts"] for row in part["rows"]]
    rows = [(who, seconds, cut) for who, (seconds, cut) in medians(measured) if seconds is not None]
    longest = max(seconds for _, seconds, _ in rows)
    height = TOP + len(rows) * (BAR + GAP) + 8
    bars = "\n".join(bar(index, who, seconds, longest, cut) for index, (who, seconds, cut) in enumerate(rows))
    (HERE.parent / "docs" / "recovery.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="15" color="#57606a">\n'
        f'<text x="{LEFT}" y="24" font-size="17" font-weight="600" fill="currentColor">'
        f"kill -9 of a rank: how long until all ranks step again</text>\n"
        f'<text x="{LEFT}" y="44" font-size="13" fill="currentColor">'
        f"DDP on gloo, 2 ranks, {stored['machine']['cpus']} CPU cores, median; the launcher's share, no GPU</text>\n"
        f"{bars}\n</svg>\n"
    )


if __name__ == "__main__":
    main()
