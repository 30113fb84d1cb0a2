"""`--engine threads`: as many processes of this machine as there is work and CPUs for. No document passes between
processes: a worker gets a split, reads it itself and writes its part itself."""

import contextlib
import functools
import multiprocessing
import os
import signal
from multiprocessing import connection

from phalanx.preprocess import inputs, readers, tokenization, worker
from phalanx.preprocess.refusal import Refused


class Stopped(Refused):
    """A line that is no document ended the run. `failure`: worker.BadLine."""

    def __init__(self, failure):
        super().__init__(str(failure))
        self.failure = failure


def cpus():
    return len(os.sched_getaffinity(0))


def serve(pipe, job):
    """A worker's life: splits come in, words of progress and notes go out, until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal tells all of its processes; the first one decides
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the other CPUs have workers of their own
    tokenization.build(job.recipe)

    def report(progress):
        pipe.send(("progress", progress))

    try:
        pipe.send(("ready", None))
        while True:
            split = pipe.recv()
            pipe.send(worker.attempt(job, functools.partial(worker.process, job, split, report)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # nobody is interested any more


class Pool:
    """The processes, while a run lasts. Used as a context: they have ended behind it."""

    def __init__(self, job, count):
        self.job, self.count, self.processes = job, count, {}

    def __enter__(self):
        context = multiprocessing.get_context("spawn")
        for _ in range(self.count):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, self.job), daemon=True)
            process.start()
            theirs.close()
            self.processes[ours] = process
        return self

    def __exit__(self, *error):
        for pipe, process in self.processes.items():
            pipe.close()
            if any(error):
                process.terminate()
        for process in self.processes.values():
            process.join()

    def run(self, splits, meter):
        """{number: notes} of all splits. Raises Stopped and Refused."""
        waiting, at_work, notes = list(reversed(splits)), {}, {}
        pipes = set(self.processes)
        while pipes:
            for pipe in connection.wait(pipes):
                kind, content = self.receive(pipe, at_work.get(pipe))
                if kind == "progress":
                    meter.add(content)
                    continue
                if kind == "done":
                    split = at_work.pop(pipe)
                    notes[split.number] = content
                if kind == "ready":
                    meter.ready()
                if waiting:
                    at_work[pipe] = waiting.pop()
                    with contextlib.suppress(BrokenPipeError):  # it died in idleness, which receive will see next
                        pipe.send(at_work[pipe])
                else:
                    pipes.discard(pipe)
        return notes

    def receive(self, pipe, split):
        try:
            kind, content = pipe.recv()
        except (EOFError, ConnectionResetError):
            process = self.processes[pipe]
            process.join()
            raise Refused(death(process.exitcode, self.job, split)) from None
        if kind == "bad":
            raise Stopped(worker.BadLine(*content))
        if kind == "refused":
            raise Refused(content)
        return kind, content


def death(code, job, split):
    where = f" at work on {job.inputs[split.input].path}" if split else ""
    if code == -signal.SIGKILL:
        return f"a worker{where} was killed, as the kernel does when memory is short: fewer --workers need less"
    return f"a worker{where} ended with {code}; what it said stands above"


class Engine:
    def __init__(self, workers):
        self.workers = workers

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def inputs(self, word):
        raise Refused(f"--input {word}: {word.partition('://')[0]}:// is read through Spark: --engine spark")

    def size_and_mtime(self, one):
        return inputs.size_and_mtime(one)

    def lines_before(self, job, split):
        return readers.lines_before(job.inputs[split.input].path, split.start)

    def run(self, job, splits, meter):
        """{number: notes}. At most as many processes as CPUs: tokenizing does nothing but compute."""
        count = max(1, min(self.workers, cpus(), len(splits)))
        of = f" of {self.workers}" if count < self.workers else ""
        meter.workers = f"{count}{of} worker{'s' * (self.workers > 1)}"
        with Pool(job, count) as pool:
            return pool.run(splits, meter)
