"""What Java, Hadoop and Spark say of an error, without the classes and calls that led there."""

import contextlib
import re

from phalanx.preprocess.refusal import Refused

# Spark's words around an error of a file, whose cause says what it is.
OF_A_FILE = re.compile(r"\[FAILED_READ_FILE\S*\].*? reading file (.+?)\.\s+[A-Z]")
HADOOP_AWS = "org.apache.hadoop:hadoop-aws"


def causes(thrown):
    """A Java exception and what caused it, the cause last."""
    found = []
    while thrown is not None and len(found) < 20:
        found.append(thrown)
        thrown = thrown.getCause()
    return found


def first_line(thrown):
    """`UnknownHostException: nowhere`: for many the class is what tells."""
    lines = (thrown.getMessage() or "").strip().splitlines()
    return f"{thrown.getClass().getSimpleName()}{': ' if lines else ''}{lines[0] if lines else ''}"


def thrown_by(error):
    """The Java exception behind an error of py4j or PySpark; None where there is none."""
    return getattr(error, "java_exception", None) or getattr(error, "_origin", None)


def reason(error):
    """What happened, and last what caused it."""
    java = thrown_by(error)
    if java is None:
        lines = [line for line in str(error).splitlines() if line.strip()] or [repr(error)]
        last = next((line for line in reversed(lines) if not line.startswith((" ", "\t"))), lines[0])
        return lines[0] if last == lines[0] else f"{lines[0]} .. {last}"
    found = causes(java)
    first, last = first_line(found[0]), first_line(found[-1])
    return first if (found[-1].getMessage() or "").partition("\n")[0] in first else f"{first} .. {last}"


def of_a_file(error):
    """The sentence for a file that cannot be read to its end; None where the error is something else."""
    thrown = thrown_by(error)
    found = [(OF_A_FILE.search(cause.getMessage() or ""), cause) for cause in causes(thrown)]
    path = next((match[1] for match, _ in found if match), None)
    return path and f"{path}: is damaged, not complete, or has changed: {first_line(found[-1][1])}"


@contextlib.contextmanager
def refused(what, spark, scheme):
    """Makes Hadoop's and Spark's errors a Refused that begins with `what`. `scheme`: that of the URL in question."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        raise Refused(of_a_file(error) or f"{what}: {missing(error, spark, scheme) or reason(error)}") from None


def missing(error, spark, scheme):
    """The sentence that helps where Hadoop lacks the classes for a scheme; None where it is something else."""
    texts = [cause.toString() for cause in causes(thrown_by(error))]
    no_system = any("No FileSystem for scheme" in text for text in texts)
    text = next((text for text in texts if "ClassNotFound" in text or "NoClassDefFound" in text), None)
    if text is None and not no_system:
        return None
    hadoop = spark.sparkContext._jvm.org.apache.hadoop.util.VersionInfo.getVersion()
    if no_system:
        known = "; write s3a:// for S3" if scheme in ("s3", "s3n") else ""
        return (
            f"Hadoop {hadoop} has no file system for {scheme}://{known}; --packages of spark-submit brings further ones"
        )
    needed = f"--packages {HADOOP_AWS}:{hadoop} brings" if scheme == "s3a" else "--packages or --jars brings"
    lacking = text.rpartition(": ")[2].replace("/", ".")
    spark_submit = f"spark-submit {needed} those for Hadoop {hadoop}"
    return f"Spark lacks the jars for {scheme}:// ({lacking}); {spark_submit}: docs/data.md"
