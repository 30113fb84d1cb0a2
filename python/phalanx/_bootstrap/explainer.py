"""The agent's part where `phalanx warm` asks: starts zygotes until one is ready, as src/agent/workers/spares.cc
decides, and writes nothing down of what they teach."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time

from phalanx._bootstrap import answer, wire

# As in src/agent/workers/spares.h and src/agent/workers/zygote.cc.
ZYGOTES_MAX = 50
DENY_MAX = 200
USELESS_MAX = 2
READY_WITHIN_S = 120
_WORDS_MAX = 2000


class Outcome:
    """`scanned`, `explained`: the last zygote's messages of these names; `cold`: why there is no warm start; `tainted`:
    [(module, why)]; `ready_ms`: how long the last one's imports took; `learnt_ends_it`: what earlier launches have
    learnt ended a zygote."""

    def __init__(self):
        self.scanned = None
        self.explained = None
        self.cold = None
        self.tainted = []
        self.zygotes = 0
        self.ready_ms = None
        self.learnt_ends_it = False


def main():
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback for who waits no longer
    request = wire.message_of(sys.stdin.buffer.read())
    request["preload"] = json.loads(request["preload_text"])
    outcome = explain(request)
    if outcome.scanned is not None and outcome.scanned["unread"] is not None:
        sys.stderr.write(f"phalanx: the script cannot be read: {answer.printable(outcome.scanned['unread'])}\n")
        return 1
    told = answer.tell(request, outcome)
    text = json.dumps(told, indent=2) + "\n" if request.get("json") else answer.text(told)
    sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
    sys.stdout.buffer.flush()
    return 0


def explain(request):
    """Zygotes one after the other, until one is ready or there is nothing to be had from the next."""
    outcome = Outcome()
    preload = {**request["preload"], "explain": True}
    useless = 0
    while True:
        outcome.zygotes += 1
        end = _one_zygote(request, preload, outcome)
        if end["type"] == "ready":
            outcome.ready_ms = end["ms"]
        elif end["type"] == "failed":
            outcome.cold = end["reason"]
        elif end["type"] == "tainted":
            outcome.tainted.append((end["module"], end["why"]))
            if _deny(preload, end["module"], outcome.zygotes):
                continue
            outcome.cold = f"importing {end['module']} ahead of time {end['why']}"
        elif preload["learnt"] and not end["served"]:  # what was learnt may be what ends it: the text has to do
            preload["learnt"], outcome.learnt_ends_it = [], True
            continue
        else:
            useless += 1
            if useless < USELESS_MAX and outcome.zygotes < ZYGOTES_MAX:
                continue
            outcome.cold = f"the process that spares come from does not live: {end['reason']}"
        return outcome


def _deny(preload, module, zygotes):
    """Whether the next zygote does without that module."""
    if module in preload["deny"] or len(preload["deny"]) >= DENY_MAX or zygotes >= ZYGOTES_MAX:
        return False
    preload["deny"] = [*preload["deny"], module]
    return True


def _one_zygote(request, preload, outcome):
    """How it ends: its own message, or one of type "died" with a reason, and whether it had been ready."""
    with open(os.memfd_create("phalanx-words"), "r+b") as said:
        process, channel = _start(request, said)
        outcome.explained = None
        try:
            end = _listen(channel, preload, outcome)
        except (wire.Closed, OSError):
            end = None
        channel.close()
        served = end is not None and end["type"] == "ready"
        if not served:
            process.kill()  # one that has begun to end keeps its own exit status
        status = process.wait()  # one that is ready ends by itself, and well, since nobody is there to ask it
        if end is not None and not (served and status != 0):
            return end
        said.seek(0)
        return {"type": "died", "reason": _how_it_ended(status, said.read()), "served": served}


def _start(request, said):
    """A zygote, and our end of its socket."""
    ours, theirs = socket.socketpair()
    *command, padding = request["command"]
    command[-1:] = [str(theirs.fileno()), padding]
    with theirs:
        process = subprocess.Popen(
            command,
            env=request["env"],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    return process, wire.Channel(ours.detach())


def _listen(channel, preload, outcome):
    """The message that says how its imports went. Raises wire.Closed or OSError where there is none."""
    channel.ask(preload)
    deadline = time.monotonic() + READY_WITHIN_S
    while True:
        left_s = max(0.0, deadline - time.monotonic())
        if not select.select([channel.fileno()], [], [], left_s)[0]:
            return {"type": "died", "reason": f"its imports took more than {READY_WITHIN_S} s", "served": False}
        message, _ = channel.receive()
        if message["type"] in ("ready", "tainted", "failed"):
            return message
        setattr(outcome, message["type"], message)  # "scanned" or "explained"
        if outcome.scanned["unread"] is not None:
            return {"type": "failed", "reason": "the script cannot be read"}


def _how_it_ended(status, said):
    how = f"killed by signal {-status}" if status < 0 else f"ended with exit code {status}"
    words = said[-_WORDS_MAX:].decode("utf-8", "replace").strip()
    return f"{how}; its last words: {answer.printable(words)}" if words else how
