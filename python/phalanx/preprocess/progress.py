"""How far a run is: a bar on a terminal, plain lines elsewhere, a summary at the end."""

import sys
import time

BAR_CELLS = 24
BAR_EVERY_S = 0.1
LINE_EVERY_S = 1.0


def clock(seconds):
    """0:07, 12:34, 3:02:01."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def rates(text_bytes, tokens, seconds):
    seconds = max(seconds, 1e-9)
    return f"{text_bytes / seconds / 1e6:.2f} MB/s, {tokens / seconds / 1e6:.3f} Mtokens/s"


def status(documents, num_docs, done_share, text_bytes, tokens, seconds, left_s):
    of = f" of {num_docs:,}" if num_docs else ""
    left = f", {clock(left_s)} left" if left_s is not None else ""
    return f"{done_share:4.0%}  {documents:,}{of} documents, {rates(text_bytes, tokens, seconds)}{left}"


def bar(done_share):
    filled = round(min(done_share, 1) * BAR_CELLS)
    return f"[{'#' * filled}{'.' * (BAR_CELLS - filled)}]"


class Meter:
    """Counts, and says so at every `log_interval` documents, but not more often than people can read.

    Rates are of this run alone; what a resumed run has found finished counts in the share that is done.
    """

    def __init__(self, num_docs, log_interval, out=sys.stderr):
        self.num_docs, self.log_interval, self.out = num_docs, log_interval, out
        self.total_bytes = 0
        self.terminal = out.isatty()
        self.began = time.monotonic()
        self.began_work = None
        self.documents = self.text_bytes = self.tokens = self.input_bytes = 0
        self.found_documents = self.found_bytes = 0
        self.said_documents, self.said_s = 0, 0.0
        self.workers = ""

    def found(self, documents, input_bytes):
        """Finished before this run."""
        self.found_documents += documents
        self.found_bytes += input_bytes

    def ready(self):
        """The engine takes work: what was before is start-up."""
        self.began_work = self.began_work or time.monotonic()

    @property
    def start_up_s(self):
        return (self.began_work or time.monotonic()) - self.began

    @property
    def work_s(self):
        return time.monotonic() - (self.began_work or time.monotonic())

    def add(self, progress):
        self.documents += progress.documents
        self.text_bytes += progress.text_bytes
        self.tokens += progress.tokens
        self.input_bytes += progress.input_bytes
        now = time.monotonic()
        pause = BAR_EVERY_S if self.terminal else LINE_EVERY_S
        if self.documents - self.said_documents >= self.log_interval and now - self.said_s >= pause:
            self.said_documents, self.said_s = self.documents, now
            self.say()

    def share(self):
        if self.num_docs:
            return (self.found_documents + self.documents) / self.num_docs
        return (self.found_bytes + self.input_bytes) / self.total_bytes if self.total_bytes else 1.0

    def left_s(self):
        """By the speed of this run; None before it has one."""
        if self.num_docs:
            done, left = self.documents, self.num_docs - self.found_documents - self.documents
        else:
            done, left = self.input_bytes, self.total_bytes - self.found_bytes - self.input_bytes
        return max(left, 0) * self.work_s / done if done else None

    def say(self):
        text = status(
            self.found_documents + self.documents,
            self.num_docs,
            self.share(),
            self.text_bytes,
            self.tokens,
            self.work_s,
            self.left_s(),
        )
        if self.terminal:
            print(f"\r\x1b[K{bar(self.share())} {text}", end="", file=self.out, flush=True)
        else:
            print(text, file=self.out, flush=True)

    def close(self):
        """Leaves the terminal's line to whoever speaks next."""
        if self.terminal and self.said_documents:
            print("\r\x1b[K", end="", file=self.out, flush=True)
