"""Input that only Spark can reach: hdfs://, s3a:// and whatever else Hadoop has a file system for."""

from phalanx.preprocess.inputs import Input, is_document, kind_by_name
from phalanx.preprocess.refusal import Refused

# What Spark reads as it is. Its zstd needs Hadoop's native library, which pip's Spark has not.
KINDS = ("jsonl", "jsonl.gz", "parquet")


def inputs(spark, word):
    """The files that a URL stands for: itself, or those of a folder or a pattern, by name."""
    from py4j.protocol import Py4JJavaError

    context = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(word)
    try:
        system = path.getFileSystem(context._jsc.hadoopConfiguration())
        found = system.globStatus(path)
        statuses = [inside for status in found or () for inside in files(system, status)]
    except Py4JJavaError as error:
        raise Refused(f"--input {word}: {error.java_exception.toString()}") from None
    if not statuses:
        raise Refused(f"--input {word}: there is no such file, and no file of documents in a folder of that name")
    return [look(status) for status in statuses]


def files(system, status):
    if not status.isDirectory():
        return [status]
    inside = [
        one for one in system.listStatus(status.getPath()) if one.isFile() and is_document(one.getPath().getName())
    ]
    return sorted(inside, key=lambda one: one.getPath().getName())


def look(status):
    url = status.getPath().toString()
    kind = kind_by_name(url) or "jsonl"
    if kind not in KINDS:
        raise Refused(f"{url}: Spark reads {', '.join(KINDS)}; {kind} is read from file systems that are mounted here")
    return Input(url, f"remote.{kind}", status.getLen(), status.getModificationTime() * 1_000_000)


def partitions(spark, job):
    """All remote inputs as one RDD, whose partitions are just the splits of plan.py, in their order.

    Each file is read on its own: Spark would sort the pieces of several by their size. Within a file pieces are of one
    size but for the last, so that they stay as they are.
    """
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(job.split_bytes))
    spark.conf.set("spark.sql.files.minPartitionNum", "1")
    readings = [read(spark, one, job.keys).rdd for one in job.inputs if one.is_remote]
    return spark.sparkContext.union(readings)


def read(spark, one, keys):
    """A line as bytes: Spark would mend broken UTF-8 without a word."""
    if one.kind == "remote.parquet":
        frame = spark.read.parquet(one.path)
        for key in keys:
            if key not in frame.columns:
                raise Refused(f"{one.path}: has no column {key!r}; it has {', '.join(frame.columns)} (--jsonl-keys)")
        return frame.select(*(f"`{key}`" for key in keys))
    return spark.read.option("lineSep", "\n").text(one.path).selectExpr("CAST(value AS BINARY) AS line")


def record_of(row):
    """What documents.texts takes."""
    return bytes(row[0]) if row.__fields__ == ["line"] and isinstance(row[0], (bytes, bytearray)) else row.asDict()
