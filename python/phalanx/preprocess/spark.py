"""`--engine spark`: a task for each split; its part goes from the executor straight to the disk that all share. The
driver sees counts alone."""

import functools
import os
import sys
import tempfile
import zipfile

from phalanx.preprocess import inputs, java, plan, readers, remote, worker
from phalanx.preprocess.pool import Stopped
from phalanx.preprocess.refusal import Refused, need

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
JOB_GROUP = "phalanx-preprocess"


def session(name):
    """Spark as spark-submit says; without it local[*], on this machine's own address.

    Python's executable goes along where the executors are on this machine: Spark would take the first one on PATH.
    """
    need("pyspark", "pyspark", "--engine spark (or use --engine threads)")
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException, PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        SparkContext._ensure_initialized()
        conf = SparkConf()
        builder = SparkSession.builder.appName(name)
        if conf.get("spark.master", "local[*]").startswith("local"):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            for key in ("spark.driver.host", "spark.driver.bindAddress"):
                builder = builder.config(key, conf.get(key, "127.0.0.1"))
            builder = builder.config("spark.ui.enabled", conf.get("spark.ui.enabled", "false"))
        spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    except (PySparkRuntimeError, PySparkException) as error:
        raise Refused(f"Spark does not start: {error}; it needs Java 17 (Debian: openjdk-17-jre-headless)") from None
    if not conf.contains("spark.log.level"):
        spark.sparkContext.setLogLevel("WARN")  # a line for each step of each task would hide ours
    return spark


def pack_package(folder):
    """What executors import, in a zip that Spark brings to them: Phalanx itself need not be installed there."""
    path = os.path.join(folder, "phalanx_preprocess.zip")
    with zipfile.ZipFile(path, "w") as archive:
        for directory in (PACKAGE, os.path.join(PACKAGE, "preprocess")):
            for name in sorted(os.listdir(directory)):
                if name.endswith(".py"):
                    inside = os.path.relpath(os.path.join(directory, name), os.path.dirname(PACKAGE))
                    archive.write(os.path.join(directory, name), inside)
    return path


class Heard:
    """Of an accumulator: on the driver, what each task has added is told to `hear` when the task ends."""

    def __init__(self, hear):
        self.hear = hear

    def __getstate__(self):
        return {"hear": None}  # on an executor the value is only kept to be sent

    def zero(self, _value):
        return None

    def addInPlace(self, _held, added):  # the name is Spark's
        if self.hear and added is not None:
            self.hear(added)
        return added


class Engine:
    """Starts Spark when it is first needed."""

    def __init__(self, name):
        self.name, self.spark = name, None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.spark:
            self.spark.stop()

    def start(self):
        self.spark = self.spark or session(self.name)
        return self.spark

    def inputs(self, word):
        return remote.inputs(self.start(), word)

    def size_and_mtime(self, one):
        return remote.size_and_mtime(self.start(), one) if one.is_remote else inputs.size_and_mtime(one)

    def lines_before(self, job, split):
        one = job.inputs[split.input]
        if one.is_remote:
            return remote.lines_before(self.start(), job, split)
        return readers.lines_before(one.path, split.start)

    def run(self, job, splits, meter):
        """{number: notes} of all splits. Raises Stopped and Refused."""
        spark = self.start()
        with tempfile.TemporaryDirectory(prefix="phalanx-preprocess-") as folder:
            spark.sparkContext.addPyFile(pack_package(folder))
            meter.ready()
            meter.workers = f"Spark {spark.version}, {spark.sparkContext.master}"
            tasks = Tasks(spark.sparkContext, job, meter)
            here = [split for split in splits if not job.inputs[split.input].is_handed]
            notes = tasks.run_here(here) if here else {}
            if len(here) < len(splits):
                notes.update(tasks.run_remote(remote.partitions(spark, job), splits))
            return notes


class Tasks:
    """What runs on executors, and what is heard of it."""

    def __init__(self, context, job, meter):
        self.context, self.meter, self.failures = context, meter, []
        self.told = context.accumulator(None, Heard(self.hear))
        self.job = context.broadcast(job)

    def hear(self, added):
        kind, content = added
        if kind == "handed":
            kind, content = worker.attempt(self.job.value, functools.partial(confirm, *content))
        if kind == "done":
            self.meter.add(content)
        else:
            self.failures.append((kind, content))
            self.context.cancelJobGroup(JOB_GROUP)  # the other tasks would end for nothing

    def run_here(self, splits):
        """Files that executors read themselves."""
        work = functools.partial(work_split, self.job, self.told)
        return self.collect(self.context.parallelize(splits, len(splits)).flatMap(work))

    def run_remote(self, partitions, splits):
        """Files that Spark reads: `partitions` are its own, in the order of their splits."""
        job = self.job.value
        numbers = {split.number for split in splits}
        handed = [split for split in job.splits if job.inputs[split.input].is_handed]
        if partitions.getNumPartitions() != len(handed):
            raise Refused(
                f"Spark cuts the remote input into {partitions.getNumPartitions()} pieces, not into "
                f"{len(handed)} as expected: did a file change?"
            )
        work = functools.partial(work_partition, self.job, self.told, handed, numbers)
        return self.collect(partitions.mapPartitionsWithIndex(work))

    def collect(self, results):
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        self.context.setJobGroup(JOB_GROUP, "tokenize", interruptOnCancel=True)
        try:
            done = results.collect()
        except (Py4JJavaError, PySparkException) as error:
            if not self.failures:
                raise Refused(java.of_a_file(error) or f"Spark gives up: {java.reason(error)}") from None
        if self.failures:
            kind, content = self.failures[0]
            raise Stopped(worker.BadLine(*content)) if kind == "bad" else Refused(content)
        return dict(done)


def work_split(job, told, split):
    """A task with a file that it reads itself."""

    def work():
        notes = worker.process(job.value, split, quiet)
        return notes, ("done", progress(job.value, split, notes))

    return tell(job.value, told, split, work)


def work_partition(job, told, splits, numbers, index, records):
    """A task with records from Spark. Where reading fails, or the task is cancelled, they just end, as if that were
    all: only on the driver, where nothing is heard of tasks that failed, can the parts be trusted and published."""
    split = splits[index]
    if split.number not in numbers:
        return []  # finished in an earlier run

    def work():
        reader = readers.Handed(map(remote.record_of, records), split.start == 0)
        notes, temporaries = worker.Worker(job.value, split, quiet, reader).run()
        return notes, ("handed", (temporaries, split, progress(job.value, split, notes)))

    return tell(job.value, told, split, work)


def confirm(temporaries, split, progress):
    worker.publish(temporaries, split)
    return progress


def tell(job, told, split, work):
    """A task's word goes to the driver at its end, its notes as its result. What is wrong with the input is told, and
    is no failure of the task, which Spark would only try again."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # Spark keeps the other CPUs busy
    kind, content = worker.attempt(job, work)
    if kind != "done":
        told.add((kind, content))
        return []
    notes, word = content
    told.add(word)
    return [(split.number, notes)]


def progress(job, split, notes):
    counts = [notes[field] for field in ("documents", "text_bytes", "tokens")]
    return worker.Progress(*counts, plan.weight(job.inputs, split))


def quiet(_progress):
    """Spark tells what a task has done when it ends."""
