"""Input that only Spark can reach: hdfs://, s3a:// and whatever else Hadoop has a file system for."""

import re

from phalanx.preprocess import java
from phalanx.preprocess.inputs import Input, is_document, kind_of
from phalanx.preprocess.refusal import Refused

# What Spark reads as it is: .zst by a zstd of its own (4.3 has one), else only where Hadoop has its native library.
KINDS = ("jsonl", "jsonl.gz", "jsonl.zst", "parquet")
# Spark takes files of such names for its own and passes over them, even where they are asked for by name.
HIDDEN = ("_", ".")
GLOB_CHARACTERS = re.compile(r"([\\{}\[\]*?])")


def scheme_of(url):
    return url.partition("://")[0]


def inputs(spark, word):
    """(files, left out) of a URL: the file itself, or the files of a folder or a pattern, by name."""
    with java.refused(f"--input {word}", spark, scheme_of(word)):
        system, path = file_system(spark, word)
        statuses, left_out = find(system, path)
        found = [look(status) for status in statuses]
    if not found:
        raise Refused(f"--input {word}: there is no such file, and no file of documents in a folder of that name")
    return found, left_out


def file_system(spark, url):
    context = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(url)
    return path.getFileSystem(context._jsc.hadoopConfiguration()), path


def find(system, path):
    """A name that is there is no pattern, whatever characters it has."""
    found = [system.getFileStatus(path)] if system.exists(path) else system.globStatus(path) or ()
    statuses, left_out = [], []
    for status in sorted(found, key=lambda one: one.getPath().toString()):
        if status.isFile():
            statuses.append(status)
            continue
        inside = [one for one in system.listStatus(status.getPath()) if one.isFile()]
        for one in sorted(inside, key=lambda one: one.getPath().getName()):
            if is_document(one.getPath().getName()):
                statuses.append(one)
            else:
                left_out.append(one.getPath().toString())
    return statuses, left_out


def look(status):
    url, name = status.getPath().toString(), status.getPath().getName()
    kind = kind_of(url, b"")
    if kind not in KINDS:
        raise Refused(f"{url}: Spark reads {', '.join(KINDS)}; {kind} is read from file systems that are mounted here")
    if name.startswith(HIDDEN):
        raise Refused(f"{url}: Spark passes over files whose names begin with {name[0]!r}; give it another name")
    if kind == "parquet" and status.getLen() == 0:
        raise Refused(f"{url}: is empty, and so no parquet file")
    return Input(url, f"remote.{kind}", status.getLen(), mtime_ns(status))


def mtime_ns(status):
    return status.getModificationTime() * 1_000_000


def size_and_mtime(spark, one):
    """What they are now."""
    with java.refused(one.path, spark, scheme_of(one.path)):
        system, path = file_system(spark, one.path)
        status = system.getFileStatus(path)
        return status.getLen(), mtime_ns(status)


def partitions(spark, job):
    """All inputs that Spark reads as one RDD, whose partitions are just the splits of plan.py, in their order.

    Each file is read on its own: Spark would sort the pieces of several by their size.
    """
    return spark.sparkContext.union([read(spark, job, one) for one in job.inputs if one.is_handed])


def read(spark, job, one):
    """The RDD of one file. Its pieces are of one size but for the last, so that they stay in their order.

    A line comes as bytes: Spark would mend broken UTF-8 without a word.
    """
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(job.split_bytes))
    spark.conf.set("spark.sql.files.minPartitionNum", "1")
    path = GLOB_CHARACTERS.sub(r"\\\1", one.path)
    with java.refused(one.path, spark, scheme_of(one.path)):
        if one.kind != "remote.parquet":
            return spark.read.option("lineSep", "\n").text(path).selectExpr("CAST(value AS BINARY) AS line").rdd
        frame = spark.read.parquet(path)
    for key in job.keys:
        if key not in frame.columns:
            raise Refused(f"{one.path}: has no column {key!r}; it has {', '.join(frame.columns)} (--jsonl-keys)")
    return frame.select(*(f"`{key}`" for key in job.keys)).rdd


def lines_before(spark, job, split):
    """How many lines (or rows) of its file are in the splits before one: they are read again, to be counted."""
    earlier = [other for other in job.splits if other.input == split.input and other.number < split.number]
    one = job.inputs[split.input]
    with java.refused(one.path, spark, scheme_of(one.path)):
        lines = read(spark, job, one)
        # A lambda travels as it is: executors may have our modules no more.
        return sum(spark.sparkContext.runJob(lines, lambda rows: [sum(1 for _ in rows)], range(len(earlier))))


def record_of(row):
    """What documents.texts takes."""
    return bytes(row[0]) if row.__fields__ == ["line"] and isinstance(row[0], (bytes, bytearray)) else row.asDict()
