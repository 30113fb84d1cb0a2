"""An HDFS and an S3 for tests, on this machine: real namenode and datanode, and a server that speaks S3."""

import contextlib
import json
import os
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import hadoop_servers  # noqa: E402

CLUSTER = "org.apache.hadoop.test.MiniDFSClusterManager"
CORE_SITE = "<configuration><property><name>fs.defaultFS</name><value>{}</value></property></configuration>"


@contextlib.contextmanager
def server(command, log, end="\n"):
    """A process that says on its stdout where it can be reached; this yields the word, which `end` is the end of. It
    ends with this one, however that ends."""
    command = ["setpriv", "--pdeathsig=KILL", *map(str, command)]
    with open(log, "w") as said:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True)
    with process:
        try:
            place = "".join(read_to(process.stdout, end))
            assert place.endswith(end), f"{command[0]} did not start: {Path(log).read_text()[-3000:]}"
            yield place.strip()
        finally:
            process.kill()


def read_to(stream, end):
    """Its characters up to and with `end`."""
    while letter := stream.read(1):
        yield letter
        if letter == end:
            return


class Hdfs:
    def __init__(self, url, folder):
        self.url, self.folder = url, folder
        (folder / "core-site.xml").write_text(CORE_SITE.format(url))

    def put(self, *paths):
        """Files and folders into the root, by the command that `hadoop fs` is."""
        command = ["java", "-cp", f"{self.folder}:{hadoop_servers.spark_jars()}/*", "org.apache.hadoop.fs.FsShell"]
        utf8 = {**os.environ, "LC_ALL": "C.UTF-8"}  # Java names files by it
        command += ["-put", "-f", *map(str, paths), "/"]
        done = subprocess.run(command, env=utf8, stderr=subprocess.PIPE, text=True, timeout=120)
        assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def hdfs(folder):
    """With one datanode; what it keeps lies in `folder`."""
    java = [
        "java",
        "-Xmx512m",
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        f"-Dtest.build.data={folder}/data",
        "-cp",
        hadoop_servers.hdfs_classpath(),
        CLUSTER,
    ]
    with server(
        [*java, "-format", "-datanodes", "1", "-writeDetails", "/dev/stdout"], folder / "hdfs.log", "}"
    ) as details:
        yield Hdfs(f"hdfs://127.0.0.1:{json.loads(details)['namenode_port']}", folder)


class S3:
    def __init__(self, endpoint, bucket):
        self.endpoint, self.bucket = endpoint, bucket
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is on this machine
        self.request("")

    def request(self, key, content=b""):
        url = f"{self.endpoint}/{self.bucket}/{urllib.parse.quote(key)}".rstrip("/")
        kind = {"Content-Type": "application/octet-stream"}  # urllib's own word for it is that of a form
        self.opener.open(urllib.request.Request(url, content, kind, method="PUT"), timeout=30).close()

    def put(self, folder):
        for path in Path(folder).iterdir():
            self.request(f"{Path(folder).name}/{path.name}", path.read_bytes())


@contextlib.contextmanager
def s3(folder, bucket):
    with server([hadoop_servers.s3_python(), ROOT / "tests/s3_server.py"], folder / "s3.log") as endpoint:
        yield S3(endpoint, bucket)
