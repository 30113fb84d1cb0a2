"""What `phalanx warm` says: of the zygotes' messages one object for programs, of that a text for people."""

import os
import sys

from phalanx._bootstrap import preload

_OWN = "is the user's own: it is read, never imported ahead"
_DENIED = "an earlier launch found that it must not be imported ahead; --anew says why"
_LATE_DENIED = "a life of this script began anew, since what it imported was not what had been imported ahead"
_PARTS_DENIED = "; what it imports late is not: a life of this script has changed a variable that it had read"
_TEACHES = (
    "; a first step teaches it, unless the script has set a variable by then that C++ may read (PYTORCH_*, TORCH_*, "
    "MKL_*, LD_* and the like) to what does not stand in its text"
)
_COMES_WITH = "comes with these"
_GROUP_MIN = 4  # variables with one beginning that are told as one
_SHOWN_MAX = 15
_TEXT_WIDTH = 110


def tell(request, outcome):
    """All that there is to tell, as JSON has it."""
    asked = request["preload"]
    place = _Places(asked["cwd"], outcome.scanned)
    told = {
        "script": asked["script"],
        "warm": outcome.cold is None,
        "why": outcome.cold,
        "interpreter": request["interpreter"],
        "python": ".".join(map(str, sys.version_info[:3])),
        "bootstrap": request["bootstrap"],
        "zygotes": outcome.zygotes,
        "zygote_ms": outcome.ready_ms,
        "learnt": len(asked["learnt"]),
        "learnt_ends_it": outcome.learnt_ends_it,
        "prefix_end": place.end("end"),
        "usual_end": place.end("usual_end"),
    }
    done = outcome.explained
    if outcome.cold is None:
        told.update(
            imported=_imported(outcome.scanned, done, place),
            stopped=_stopped(outcome, place),
            hidden=_hidden(done, asked, place),
            hidden_why_not=_why_none_hidden(outcome.scanned, done, asked, place),
            leads_to_torch=_leads_to_torch(outcome.scanned, done),
            modules=done["modules"],
            hidden_modules=done["hidden"],
            afresh={
                "variables": done["variables"],
                "all_variables": done["all_names"],
                "arguments": done["arguments"],
            },
        )
    told["not_imported"] = _not_imported(outcome, asked, place)
    return told


class _Places:
    """Where the script's text names a module: files below the working directory as people name them."""

    def __init__(self, cwd, scanned):
        self._cwd = os.path.join(cwd, "")
        self._scanned = scanned or {"where": {}, "end": None, "usual_end": None}

    def of(self, name):
        """ "train.py:12", or None."""
        found = self._scanned["where"].get(name)
        return None if found is None else self._shown(*found)

    def end(self, which):
        end = self._scanned[which]
        return end and {"where": self._shown(end["path"], end["line"]), "text": end["text"], "why": end["why"]}

    def _shown(self, path, line):
        path = path[len(self._cwd) :] if path.startswith(self._cwd) else path
        return f"{path}:{line}"


def _row(place, step, why):
    return {"module": step.replace(":", "."), "where": place.of(step), "why": why}


def _stopped(outcome, place):
    """The module of the prefix that cannot be taken, with what it did where it was tried, or None."""
    if outcome.explained["stopped"] is None:
        return None
    step, why = outcome.explained["stopped"]
    tainted = dict(outcome.tainted)
    return _row(place, step, tainted.get(step) or tainted.get(step.partition(":")[0], why))


def _imported(scanned, done, place):
    """The steps that were taken, in their order; of names that are values of their package none."""
    rows = [{"module": name, "where": "--preload"} for name in done["asked"] if name not in done["missed"]]
    for step in scanned["prefix"]:
        if done["stopped"] is not None and step == done["stopped"][0]:
            break
        if step not in done["values"]:
            rows.append({"module": step.replace(":", "."), "where": place.of(step)})
    return rows


def _hidden(done, asked, place):
    """Of each library that lies hidden how many modules there are, and what they are there for."""
    counts = {}
    for name in done["hidden"]:
        top = preload.top_of(name)
        counts[top] = counts.get(top, 0) + 1
    order = sorted(counts, key=lambda top: (top != "torch", top != "numpy"))
    return [{"library": top, "modules": counts[top], "why": _why_hidden(top, done, asked, place)} for top in order]


def _why_hidden(top, done, asked, place):
    leader = done["leader"]
    if top == "torch" and leader is not None:
        parts = _PARTS_DENIED if preload.LATE_PARTS in asked["deny"] else ""
        parts += _with_variables(done["imported_with"])
        name = leader.replace(":", ".")
        if place.of(leader) is not None:
            leads = "" if preload.top_of(leader) == "torch" else ", which leads to it"
            early = "; these are what it imports late" if "torch" in done["modules"] else ""
            return f"{place.of(leader)} imports {name}{leads}{early}{parts}"
        how = "was imported until the first step" if leader in asked["learnt"] else "leads to it"
        return f"{name} {how}{parts}"
    if top in done["modules"]:
        return _COMES_WITH
    if place.of(top) is not None:
        return f"{place.of(top)} imports it"
    return "was imported until the first step" if top in map(preload.top_of, asked["learnt"]) else _COMES_WITH


def _with_variables(values):
    """Of those that the script's text sets before it."""
    shown = [f"{name}={value}" if value is not None else f"{name} unset" for name, value in values.items()]
    return f"; it is imported with {', '.join(shown)}, as the script sets it" if shown else ""


def _why_none_hidden(scanned, done, asked, place):
    """None where something is hidden; else why not."""
    if done["hidden"]:
        return None
    if preload.LATE in asked["deny"]:
        return _LATE_DENIED
    if preload.LATE_PARTS in asked["deny"] and "torch" in done["modules"]:
        return f"torch is there{_PARTS_DENIED}"
    if "torch" in asked["deny"]:
        return "torch must not be imported ahead: an earlier launch found that"
    if "torch" in done["missed"]:
        return f"torch: {done['missed']['torch']}"
    behind = preload.leader_to_torch(scanned["later"])
    if behind is not None:
        return f"{place.of(behind)} imports {behind} behind {place.end('usual_end')['where']}{_TEACHES}"
    return "the script leads to no library that is: torch, NumPy and what these load"


def _leads_to_torch(scanned, done):
    """Whether the text imports it, or what does, and nobody has imported it ahead."""
    if "torch" in done["modules"] or "torch" in done["hidden"]:
        return False
    return preload.leader_to_torch([*scanned["prefix"], *scanned["usual"], *scanned["later"]]) is not None


def _not_imported(outcome, asked, place):
    """Each module once, with the reason that comes first."""
    scanned, done = outcome.scanned, outcome.explained
    why = dict(outcome.tainted)
    for name in asked["deny"]:
        if name not in (preload.LATE, preload.LATE_PARTS):
            why.setdefault(name, _DENIED)
    if scanned is not None and outcome.cold is None:
        for name in done["asked"]:
            if name in done["missed"]:
                why.setdefault(name, done["missed"][name])
        _add_of_prefix(why, scanned, done)
        there = {*done["modules"], *done["hidden"]}
        for name in [*scanned["usual"], *scanned["later"]]:
            if name not in there:
                which = "end" if name in scanned["usual"] else "usual_end"
                why.setdefault(name, f"is imported behind {place.end(which)['where']}, {place.end(which)['text']}")
    for name in scanned["own"] if scanned is not None else ():
        why.setdefault(name, _OWN)
    order = {name: at for at, name in enumerate(scanned["where"] if scanned is not None else ())}
    return [_row(place, name, why[name]) for name in sorted(why, key=lambda name: order.get(name, -1))]


def _add_of_prefix(why, scanned, done):
    """What stands behind a module of the prefix that cannot be taken."""
    if done["stopped"] is None:
        return
    stopped, reason = done["stopped"]
    name = stopped if stopped in why else stopped.partition(":")[0]
    why.setdefault(name, reason)
    there = {*done["modules"], *done["hidden"]}
    steps = scanned["prefix"]
    for step in steps[steps.index(stopped) + 1 :]:
        if ":" not in step and step not in there and step not in done["values"]:
            why.setdefault(step, f"stands behind {name.replace(':', '.')}, which is not imported ahead")


# --- for people -------------------------------------------------------------------------------------------------------


def text(told):
    """As a terminal shows it."""
    lines = [_first_line(told), "", *_table(_head(told))]
    if told["warm"]:
        lines += _section("imported ahead, in this order", _by_place(told["imported"]))
        lines += _section("the prefix ends", _end_of_prefix(told))
        lines += _section("imported behind it, hidden until the script imports it", _by_library(told))
        missed = [(row["where"] or "", row["module"], row["why"]) for row in told["not_imported"]]
        lines += _section("not imported ahead", missed)
        lines += _section("a spare starts afresh where one of these differs", _afresh(told["afresh"]))
    return "\n".join(printable(line.rstrip()) for line in lines) + "\n"


def printable(words):
    """Nothing that a terminal would act upon."""
    return "".join(letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in words)


def _first_line(told):
    if not told["warm"]:
        return f"{told['script']} starts cold: {told['why']}"
    ahead = f"{_count(len(told['modules']), 'module')} are there at its first line"
    without = ", but without torch" if told["hidden_why_not"] is not None and told["leads_to_torch"] else ""
    return f"{told['script']} starts warm{without}: {ahead}, {len(told['hidden_modules'])} more lie hidden"


def _head(told):
    zygotes = str(told["zygotes"])
    if told["zygote_ms"] is not None:
        zygotes += f", the last one ready after {told['zygote_ms']} ms"
    rows = [
        ("interpreter", f"{told['interpreter']} (Python {told['python']})"),
        ("bootstrap", told["bootstrap"]),
        ("zygotes", zygotes),
    ]
    if told["learnt"]:
        learnt = f"{_count(told['learnt'], 'module')}, by earlier launches"
        rows.append(("learnt", learnt + (": they end the zygote" if told["learnt_ends_it"] else "")))
    return rows


def _end_of_prefix(told):
    """Where, and why: of a module that cannot be taken, or of what the script does."""
    stopped, end = told["stopped"], told["prefix_end"]
    if stopped is not None:
        return [(stopped["where"] or "", stopped["module"]), ("", stopped["why"])]
    return [] if end is None else [(end["where"], end["text"]), ("", end["why"])]


def _by_library(told):
    """Those that only come with others, in one line."""
    rows = [(row["library"], row["modules"], row["why"]) for row in told["hidden"] if row["why"] != _COMES_WITH]
    rest = [row for row in told["hidden"] if row["why"] == _COMES_WITH]
    if rest:
        rows.append(("others", sum(row["modules"] for row in rest), ", ".join(sorted(row["library"] for row in rest))))
    shown = [(library, _count(modules, "module"), why) for library, modules, why in rows]
    return shown or [("nothing", told["hidden_why_not"])]


def _by_place(rows):
    """Modules of one line of text in one line."""
    lines = []
    for row in rows:
        if lines and lines[-1][0] == (row["where"] or ""):
            lines[-1][1].append(row["module"])
        else:
            lines.append((row["where"] or "", [row["module"]]))
    return [(where, ", ".join(names)) for where, names in lines]


def _afresh(afresh):
    rows = []
    if afresh["variables"]:
        shown = _grouped(afresh["variables"])
        if len(shown) > _SHOWN_MAX:
            shown[_SHOWN_MAX:] = [f"and {len(shown) - _SHOWN_MAX} more, which --json names"]
        rows.append(("variables that were read", ", ".join(shown)))
    if afresh["all_variables"]:
        rows.append(("the whole environment", "a module looked through it: a variable that is new counts, too"))
    if afresh["arguments"]:
        rows.append(("sys.argv", "a module has read it"))
    return rows


def _grouped(variables):
    """Many of one beginning as one, "TORCHINDUCTOR_* (190)", before the others."""
    groups = {}
    for name in variables:
        groups.setdefault(name.partition("_")[0], []).append(name)
    alone = [name for names in groups.values() if len(names) < _GROUP_MIN for name in names]
    many = [f"{top}_* ({len(names)})" for top, names in groups.items() if len(names) >= _GROUP_MIN]
    return [*many, *alone]


def _count(count, what):
    return f"{count} {what}" + ("" if count == 1 else "s")


def _section(title, rows):
    return ["", title, *_table(rows)] if rows else []


def _table(rows):
    """Columns as wide as their widest cell; the last one is broken between words."""
    columns = max((len(row) for row in rows), default=0)
    widths = [max(len(row[at]) for row in rows if len(row) > at + 1 or at < columns - 1) for at in range(columns - 1)]
    lines = []
    for row in rows:
        start = "  " + "".join(cell.ljust(width) + "  " for cell, width in zip(row[:-1], widths))
        for count, part in enumerate(_broken(row[-1], max(40, _TEXT_WIDTH - len(start)))):
            lines.append((start if count == 0 else " " * len(start)) + part)
    return lines


def _broken(words, width):
    lines, line = [], ""
    for word in words.split(" "):
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line]
