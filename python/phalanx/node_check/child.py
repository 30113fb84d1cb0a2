"""The process of one order: runs its checks one after the other, and writes what comes of them."""

import json
import os
import time
import traceback

from phalanx._bootstrap import linux
from phalanx.node_check import checks, processes
from phalanx.node_check.results import Failed, Skipped
from phalanx.node_check.texts import clean, last_line


def carry_out(order, torch, helper_pid, reports, stderr, not_ours):
    """In a fork of the helper; does not return."""
    status = 1
    try:
        _leave_helper(helper_pid, stderr, not_ours)
        torch.begin()
        for check, run in checks.of(order, torch):
            _write(reports, {"type": "begun", "id": order.id, "check": check})
            _write(reports, _result(order, check, run))
        status = 0
    except BaseException:
        traceback.print_exc()  # into the last words that the helper keeps
        raise
    finally:
        os._exit(status)  # whatever threads libraries have left


def _leave_helper(helper_pid, stderr, not_ours):
    processes.forget_handlers()
    os.setsid()
    if not linux.die_with_parent(helper_pid):
        os._exit(1)
    linux.adopt_orphans()  # of check programs
    for fd in not_ours:
        os.close(fd)
    # What libraries print goes with what they complain of.
    os.dup2(stderr, 1)
    os.dup2(stderr, 2)
    os.close(stderr)


def _result(order, check, run):
    began_ns = time.monotonic_ns()
    values = []
    try:
        sentence, values = run()
        outcome = "passed"
    except Skipped as skipped:
        outcome, sentence = "skipped", str(skipped)
    except Failed as failed:
        outcome, sentence, values = "failed", f"{order.named(check)}: {failed}", failed.values
    except Exception as error:
        outcome, sentence = "failed", f"{order.named(check)}: {last_line(error)}"
    return {
        "type": "result",
        "id": order.id,
        "check": check,
        "outcome": outcome,
        "sentence": clean(sentence),
        "took_us": (time.monotonic_ns() - began_ns) // 1000,
        "values": values,
    }


def _write(fd, message):
    data = json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"
    while data:
        data = data[os.write(fd, data) :]
