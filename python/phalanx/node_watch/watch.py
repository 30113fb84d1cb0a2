"""The helper's loop: what the driver tells goes out at once, counters each so often."""

import select
import time

from phalanx.node_watch.nvml import Nvml, Unwatched

# Of events that come faster one line tells how many they were.
_GATHERED_S = 0.05
# An agent that is gone closes stdin; so it is looked at that often.
_MOST_WAITED_S = 5.0
# Before XIDs are asked for anew where waiting for them fails; each where the one before has brought nothing.
_PAUSES_S = (0.0, 5.0)


class Watch:
    def __init__(self, nvml, every_s, write):
        self._nvml, self._every_s, self._write = nvml, every_s, write
        self._failures = 0  # of waiting for events, since it went well last
        self._listen_at = None  # XIDs are asked for anew then
        self._deaf = not nvml.tells_xids
        self._counts = {}  # (gpu, XID) -> times that nobody has been told of
        self._read_at = 0.0
        self._told_at = 0.0

    def run(self):
        self._write(f"gpus {len(self._nvml.devices)} {'-' if self._deaf else 'events'}\n")
        while not _is_over(0):
            now = time.monotonic()
            if self._listen_at is not None and now >= self._listen_at:
                self._listen()
            if now >= self._read_at:
                self._read_at = now + self._every_s
                self._read()
            if self._counts and now >= self._told_at + _GATHERED_S:
                self._tell(now)
            self._wait(min(self._due(), now + _MOST_WAITED_S) - now)

    def _due(self):
        told_at = self._told_at + _GATHERED_S if self._counts else self._read_at
        return min(self._read_at, told_at, self._read_at if self._listen_at is None else self._listen_at)

    def _read(self):
        lines = [f"value {gpu} {name} {value}\n" for gpu, name, value in self._nvml.values()]
        self._write("".join(lines) + "read\n")

    def _tell(self, now):
        self._told_at = now
        lines = [f"xid {gpu} {number} {times}\n" for (gpu, number), times in self._counts.items()]
        self._counts.clear()
        self._write("".join(lines))

    def _wait(self, limit_s):
        if self._deaf or self._listen_at is not None:
            _is_over(limit_s)
            return
        try:
            told = self._nvml.wait(max(0, int(limit_s * 1000)))
        except Unwatched as error:  # a GPU that is lost has it answer so at once, for ever
            return self._on_failure(error)
        self._failures = 0
        if told is not None:
            self._counts[told] = self._counts.get(told, 0) + 1

    def _on_failure(self, why):
        if self._failures == len(_PAUSES_S):
            return self._end_listening(why)
        self._listen_at = time.monotonic() + _PAUSES_S[self._failures]
        self._failures += 1

    def _listen(self):
        self._listen_at = None
        self._nvml.listen()
        if not self._nvml.tells_xids:
            self._on_failure("no GPU takes nvmlDeviceRegisterEvents")

    def _end_listening(self, why):
        self._deaf = True
        self._write(f"deaf {_printable(why)}\n")


def _is_over(limit_s):
    """The agent is gone."""
    return bool(select.select([0], [], [], max(0.0, limit_s))[0])


def main(every_s, write):
    """The status to end with."""
    try:
        nvml = Nvml()
        if not nvml.devices:
            raise Unwatched("NVML knows of no GPU")
        Watch(nvml, every_s, write).run()
    except Unwatched as error:
        write(f"unwatched {_printable(error)}\n")
    except BrokenPipeError:
        pass  # as at the end of stdin: the agent is gone
    return 0


def _printable(error):
    return "".join(c if " " <= c <= "~" else "?" for c in str(error))[:200]
