"""What tests/test_preprocess_remote.py needs of servers: HDFS's jars, and an environment with an S3 server.

Both are kept in the cache of ./run, keyed by what they are made of. The jars are those that pyspark's own Hadoop lacks
to be a cluster (57 MB); the Ivy that comes with pyspark fetches them,
and each must have the digest that tools/hdfs-jars.sha256 has for it.
"""

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import torches  # noqa: E402
from tools.venv import locked  # noqa: E402

# What must have been fetched. It changes with pyspark's version, which decides that of Hadoop.
DIGESTS = ROOT / "tools" / "hdfs-jars.sha256"
# hadoop-client-minicluster stands on pyspark's hadoop-client-runtime, of its version, and asks junit where to write.
HDFS = """\
<ivy-module version="2.0"><info organisation="phalanx" module="tests"/><dependencies>
<dependency org="org.apache.hadoop" name="hadoop-client-minicluster" rev="{hadoop}" transitive="false"/>
<dependency org="org.junit.jupiter" name="junit-jupiter-api" rev="5.13.4" conf="default"/>
</dependencies></ivy-module>
"""


def cache():
    return torches.default_cache().parent


def spark_jars():
    """The folder of pyspark's."""
    return next((ROOT / ".venv").glob("lib/python3*/site-packages/pyspark/jars"))


def hadoop_version():
    return next(spark_jars().glob("hadoop-client-runtime-*.jar")).stem.rpartition("-")[2]


def hdfs_classpath():
    """Of a Java that can be a namenode and a datanode. Fetched where it is not in the cache."""
    wanted = HDFS.format(hadoop=hadoop_version())
    jars = cache() / "jars" / key_of(wanted, DIGESTS.read_bytes())
    with locked(cache() / "jars" / "lock"):
        if not jars.is_dir():
            fetch(wanted, jars)
    return f"{jars}/*:{spark_jars()}/*"


def key_of(wanted, digests):
    """Jars lie in the cache as they were checked: under other digests they are others."""
    return hashlib.sha256(wanted.encode() + digests).hexdigest()[:20]


def fetch(wanted, jars):
    print("== fetching the jars of an HDFS, 57 MB", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=jars.parent) as draft:
        module = Path(draft) / "ivy.xml"
        module.write_text(wanted)
        command = ["java", "-cp", f"{spark_jars()}/*", "org.apache.ivy.Main", "-error", "-types", "jar"]
        command += [
            "-ivy",
            module,
            "-cache",
            f"{draft}/cache",
            "-retrieve",
            f"{draft}/jars/[artifact]-[revision].[ext]",
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        check(Path(draft) / "jars", DIGESTS.read_text())
        (Path(draft) / "jars").rename(jars)


def check(folder, digests):
    """Ends the program where the folder holds other jars than those of `digests`, in sha256sum's format."""
    wanted = {name: digest for digest, name in (line.split() for line in digests.splitlines())}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if wrong:
        sys.exit(f"run: fetched jars are not those of {DIGESTS.name}: {', '.join(wrong)}")


def s3_python():
    """The Python of an environment with the S3 server."""
    venv = ROOT / "build" / "s3_server"
    venv.parent.mkdir(exist_ok=True)
    command = [sys.executable, ROOT / "tools" / "venv.py", "--venv", venv, "--cache", torches.default_cache()]
    with locked(venv.with_suffix(".lock")):  # tests that run beside each other may ask at once
        subprocess.run([*command, "--requirements", ROOT / "tools" / "locks" / "s3.lock"], check=True)
    return venv / "bin" / "python"
