"""Check programs of other people: docs/formats/node-check.md has their contract."""

import json
import os
import select
import subprocess

from phalanx._bootstrap import linux
from phalanx.node_check import pipes, processes
from phalanx.node_check.results import BETTER, MOST_VALUES, NAME, UNIT, Failed, is_integer
from phalanx.node_check.texts import clean, of_errno

MOST_OUTPUT_BYTES = 64 << 10
_RIGHT = 'one JSON object such as {"passed":true,"sentence":"..","values":[]} on the last line'


class Output:
    """What has come of a program."""

    def __init__(self):
        self.text, self.words = b"", pipes.LastWords()
        self.is_too_much = False


def run(order, path):
    """(sentence, values) of a program that has passed."""
    wakeups, statuses = processes.Wakeups(), {}
    try:
        try:
            process = _start(order, path)
        except OSError as error:
            raise Failed(f"cannot be executed: {of_errno(error)} ({path})") from None
        try:
            output, status = _follow(process, wakeups)
        finally:
            # What it has started does not outlive it. Its own end is known by now, or was not waited for.
            left = processes.end_all(wakeups, statuses)
            process.stdout.close()
            process.stderr.close()
            process.poll()
    finally:
        wakeups.close()
    if left:
        raise Failed(f"it left processes that could not be ended: {', '.join(left)}")
    return _judge(output, status)


def _start(order, path):
    environment = {
        **os.environ,
        "PHALANX_CHECK_KIND": order.kind,
        "PHALANX_CHECK_GROUP_RANK": str(order.group_rank),
        "PHALANX_CHECK_GROUP_SIZE": str(order.group_size),
    }
    own_pid = os.getpid()

    def die_with_us():
        if not linux.die_with_parent(own_pid):
            os._exit(1)

    # A file, not a pipe: a program that does not read it holds up nobody.
    with os.fdopen(os.memfd_create("order"), "w+b") as text:
        text.write(order.text.encode("ascii") + b"\n")
        text.seek(0)
        return subprocess.Popen(
            [path],
            stdin=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=environment,
            start_new_session=True,
            preexec_fn=die_with_us,
        )


def _follow(process, wakeups):
    """(Output, status as subprocess gives it; None where it wrote too much and was not waited for). Ends with the
    program: what it has started may hold its streams for ever."""
    output, streams = Output(), [process.stdout, process.stderr]
    for stream in streams:
        os.set_blocking(stream.fileno(), False)
    while True:
        select.select([*streams, wakeups.fd], [], [])
        wakeups.take()
        has_ended = process.poll() is not None  # before its streams, which have all of it then
        for stream in list(streams):
            if not _take(stream, process.stdout, output):
                streams.remove(stream)
        if output.is_too_much or has_ended:
            return output, process.returncode


def _take(stream, stdout, output):
    """Reads what is there. False at the stream's end."""
    for _ in range(64):  # of one that floods; it comes here again
        data = pipes.read_ready(stream.fileno())
        if data is None:
            return True
        if data == b"":
            return False
        if stream is not stdout:
            output.words.feed(data)
            os.write(2, data)  # whoever ends this process at its limit quotes it
        elif len(output.text) + len(data) > MOST_OUTPUT_BYTES:
            output.is_too_much = True
            return True
        else:
            output.text += data
    return True


def _judge(output, status):
    if output.is_too_much:
        raise Failed(f"wrote more than {MOST_OUTPUT_BYTES >> 10} KiB; right is {_RIGHT}")
    words = output.words.said()
    if status < 0:
        raise Failed(f"died by {processes.signal_name(-status)}{words}")
    if status > 0:
        raise Failed(f"exited with status {status}, where 0 is right, also of a check that has failed{words}")
    lines = output.text.decode("utf-8", "backslashreplace").rstrip().splitlines()
    if not lines:
        raise Failed(f"wrote nothing; right is {_RIGHT}{words}")
    answer = _object(lines[-1], words)
    sentence, values = clean(answer["sentence"]), _values(answer.get("values", []))
    if not answer["passed"]:
        raise Failed(sentence or "did not pass, and does not say why", values)
    return sentence, values


def _object(line, words):
    came = clean(line, 100)
    try:
        answer = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise Failed(f"its last line is no JSON: {came}; right is {_RIGHT}{words}") from None
    if not isinstance(answer, dict):
        raise Failed(f"its last line is no JSON object: {came}; right is {_RIGHT}")
    if not isinstance(answer.get("passed"), bool):
        raise Failed(f"passed is neither true nor false: {came}")
    if not isinstance(answer.get("sentence"), str):
        raise Failed(f"sentence is no string: {came}")
    return answer


def _refuse(name):
    raise ValueError(f"{name} is no JSON")


def _values(values):
    if not isinstance(values, list) or len(values) > MOST_VALUES:
        raise Failed(f"values is no array of at most {MOST_VALUES} objects")
    return [_value(each) for each in values]


def _value(each):
    came = clean(json.dumps(each), 100)
    if not isinstance(each, dict) or not isinstance(each.get("name"), str) or not NAME.match(each["name"]):
        raise Failed(f"a value has no name of 1 to 64 letters, digits and _.:- : {came}")
    if not is_integer(each.get("value")):
        raise Failed(f"a value's value is no integer of 64 bits: {came}")
    if not isinstance(each.get("unit"), str) or not UNIT.match(each["unit"]):
        raise Failed(f"a value has no unit of at most 16 letters, digits and /%_.- : {came}")
    better = each.get("better", "")
    if better not in BETTER:
        raise Failed(f"a value's better is none of less, more and nothing: {came}")
    return {"name": each["name"], "unit": each["unit"], "value": each["value"], "better": better}
