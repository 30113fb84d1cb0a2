"""The few rows of bench/README.md: one question each, our median beside those of the peers, from bench/results/."""

import dataclasses
import json
import math
from pathlib import Path

from support.results import enough

RESULTS = Path(__file__).resolve().parent / "results"


@dataclasses.dataclass(frozen=True)
class Headline:
    """`result`: the file below results/; `what`: the row in it; `ours`: who in it is Phalanx; `peers`: who else."""

    question: str
    result: str
    what: str
    ours: str = "phalanx-run"
    peers: tuple = ()


STATE = "1 rank, 1024 MiB, 800 tensors"
HEADLINES = (
    Headline(
        "a rank killed, until all of 2 ranks step again",
        "recovery",
        "kill to first step, 2 ranks on 1 node",
        peers=("torchrun", "dlrover-run"),
    ),
    Headline(
        "the same, 4 ranks on 2 cores",
        "recovery",
        "kill to first step, 4 ranks on 1 node",
        peers=("torchrun", "dlrover-run"),
    ),
    Headline(
        "all processes of a node killed, until the other node steps",
        "node_loss",
        "all of a node killed (group rank 1) to the survivor's first step",
        peers=("torchrun, rank 0's store",),
    ),
    Headline(
        "the same of the node that hosts the master, until the other two step (torchrun's end)",
        "node_loss",
        "the master's node of 3 killed to the first step of the others",
    ),
    Headline(
        "a node that says nothing more (cable, power), until the other node steps",
        "node_loss",
        "network cut (lease 3 s) to the survivor's first step",
    ),
    Headline(
        "from the command to the first step, 2 ranks",
        "cold_start",
        "first launch to first step, 2 ranks",
        peers=("torchrun", "dlrover-run"),
    ),
    Headline(
        "a save of 1 GiB: the training waits",
        "checkpoint_save",
        f"{STATE}: held by a later save",
        ours="phalanx",
        peers=("dlrover 0.6.1", "torch.save", "DCP async_save"),
    ),
    Headline(
        "a save of 1 GiB: what it costs in all, longer steps included",
        "checkpoint_save",
        f"{STATE}: what a save costs: held + longer steps",
        ours="phalanx",
        peers=("dlrover 0.6.1", "torch.save", "DCP async_save"),
    ),
    Headline(
        "1 GiB on disk, synced",
        "checkpoint_disk",
        "1 GiB to disk, a new file",
        ours="phalanx",
        peers=("raw O_DIRECT, 8 under way", "torch.save + fsync"),
    ),
    Headline(
        "of ten minutes with a SIGKILL each 15 s, spent on training (state of 1 MiB)",
        "checkpoint_goodput",
        "goodput",
        ours="phalanx",
    ),
    Headline(
        "documents to training data, whole command",
        "data_prep",
        "whole command, from start to end",
        ours="phalanx, threads",
        peers=("a pool of 2 as gpt-neox's (tokenizers)", "a pool of 2 as Megatron-LM's (transformers)"),
    ),
)


def rows_of(headline, results):
    """{who: row}, with the unit and the limit of its part of the file."""
    content = json.loads((results / f"{headline.result}.json").read_text())
    found = {}
    for part in content["parts"]:
        for row in part["rows"]:
            if row["what"] == headline.what:
                found[row["who"]] = {**row, "unit": part["unit"], "limit": part["limit"]}
    missing = [who for who in (headline.ours, *headline.peers) if who not in found]
    if missing:
        raise SystemExit(f"headlines: {headline.result}.json has no '{headline.what}' of {', '.join(missing)}")
    return found


def figure(row):
    """The median with its unit; said where it is that of one or two samples, or was cut at the limit."""
    count = len(row["samples"])
    few = "" if enough(row) else f" ({count} run{'s' if count > 1 else ''})"
    if row["median"] is None:
        return f"> {row['limit']:g} {row['unit']}{few}" if row["limit"] else f"never{few}"
    value, unit = row["median"], row["unit"]
    if unit == "s" and value < 1:
        value, unit = value * 1000, "ms"
    digits = max(0, 1 - math.floor(math.log10(abs(value)))) if value and abs(value) < 100 else 0
    return f"{value:.{digits}f} {unit}{few}"


def ratio(peer, own):
    """How many times ours, or ours how many times theirs where more is better; None where there are too few samples."""
    if not enough(peer, own) or None in (peer["median"], own["median"]):
        return None
    more_is_better = own["unit"].endswith("/s") or own["unit"] == "%"
    return own["median"] / peer["median"] if more_is_better else peer["median"] / own["median"]


def table(results=RESULTS):
    lines = ["| | Phalanx | others | times ours | all of it |", "|---|---|---|---|---|"]
    for headline in HEADLINES:
        rows = rows_of(headline, results)
        own = rows[headline.ours]
        others = "; ".join(f"{who} {figure(rows[who])}" for who in headline.peers) or "-"
        ratios = [ratio(rows[who], own) for who in headline.peers]
        times = ", ".join("-" if one is None else f"{one:.0f}" if one >= 10 else f"{one:.1f}" for one in ratios) or "-"
        link = f"[{headline.result}](results/{headline.result}.md)"
        lines.append(f"| {headline.question} | {figure(own)} | {others} | {times} | {link} |")
    return "\n".join(lines) + "\n"
