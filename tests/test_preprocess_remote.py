"""Data preparation from HDFS and S3, by real servers on this machine: as of the same files here, byte for byte.

The first time their jars and environments are fetched, some 100 MB.
"""

import gzip
import json
import shlex
import shutil

import file_servers
import pyarrow.parquet
import pytest
import zstandard
from preparation import files_of, run, texts, train_bpe, write_jsonl
from test_preprocess_spark import DOC, SCRIPT, shell, spark_home

from tools import hadoop_servers, venv

DOCUMENTS = texts(900)
SPLIT = "--split-bytes=20000"
ODD_FILES = ("_hidden.jsonl", "packed.zip", "packed.jsonl.zst.tar")
ODD_NAME = "f [1]{x} %41 ü.jsonl"

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("java"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A tokenizer, and a folder of every kind that Spark reads."""
    made = tmp_path_factory.mktemp("remote")
    train_bpe().save(str(made / "tok.json"))
    inside = made / "documents"
    inside.mkdir()
    write_jsonl(inside / "a.jsonl", DOCUMENTS[:300])
    plain = write_jsonl(made / "plain", DOCUMENTS[300:500]).read_bytes()
    (inside / "b.jsonl.gz").write_bytes(gzip.compress(plain[:9000]) + gzip.compress(plain[9000:]))
    plain = write_jsonl(made / "plain", DOCUMENTS[500:700]).read_bytes()
    (inside / "c.jsonl.zst").write_bytes(zstandard.compress(plain[:9000]) + zstandard.compress(plain[9000:]))
    table = pyarrow.table({"id": range(200), "text": DOCUMENTS[700:]})
    pyarrow.parquet.write_table(table, inside / "d.parquet", row_group_size=40)
    (inside / "e.jsonl").touch()
    write_jsonl(inside / ODD_NAME, DOCUMENTS[:5])
    (inside / "_SUCCESS").touch()
    lines = (inside / "a.jsonl").read_text().splitlines()
    lines.insert(200, "{")
    (made / "bad.jsonl").write_text("\n".join(lines))
    (made / "cut.jsonl.gz").write_bytes((inside / "b.jsonl.gz").read_bytes()[:-4000])
    for name in ODD_FILES:
        (made / name).write_text("{}\n")
    (made / "empty.parquet").touch()
    return made


@pytest.fixture(scope="module")
def hdfs(home):
    with file_servers.hdfs(home) as cluster:
        cluster.put(*home.iterdir())  # by a JVM of its own: all at once
        yield cluster


@pytest.fixture
def given(home, tmp_path):
    return lambda *inputs: [
        *("--input", ",".join(map(str, inputs)), "--output-prefix", tmp_path / "result", SPLIT),
        *("--vocab", home / "tok.json", "--tokenizer-type", "HFTokenizer", "--append-eod"),
    ]


def local(home, *inputs):
    """What the same files come to here, with the other engine."""
    words = ["--input", ",".join(map(str, inputs)), "--output-prefix", home / "local", "--on-error=skip"]
    answer = run(*words, "--vocab", home / "tok.json", "--tokenizer-type", "HFTokenizer", "--append-eod")
    assert answer.returncode == 0, answer.stderr
    return files_of(home / "local")


@pytest.mark.slow
def test_a_file_that_ends_too_early_leaves_no_part(hdfs, spark, given, tmp_path):
    """Python is handed what could be read, and then the end."""
    answer = spark.run(*given(f"{hdfs.url}/cut.jsonl.gz"))
    assert answer.returncode == 1
    wanted = f"{hdfs.url}/cut.jsonl.gz: is damaged, not complete, or has changed: EOFException"
    assert wanted in answer.stderr.splitlines()[-1]
    assert not list(tmp_path.glob("result_text_document.parts/*.part"))


@pytest.mark.slow
def test_folders_and_patterns_of_hdfs_in_their_order(home, hdfs, spark, given, tmp_path):
    inside, root = home / "documents", f"{hdfs.url}/documents"
    answer = spark.run(*given(root, inside / "a.jsonl", f"{root}/{{d,a}}*", f"{root}/{ODD_NAME}"))
    assert answer.returncode == 0, answer.stderr
    again = (inside / "a.jsonl", inside / "a.jsonl", inside / "d.parquet", inside / ODD_NAME)
    assert files_of(tmp_path / "result") == local(home, inside, *again)


@pytest.mark.slow
def test_a_bad_line_of_hdfs_and_what_a_cancelled_task_has_read(home, hdfs, spark, given, tmp_path):
    """A cancelled task sees an end of its records that is none: nothing of it may count as finished."""
    # The first two of four parts are there when the third fails.
    answer = spark.run(*given(f"{hdfs.url}/bad.jsonl"))
    assert answer.returncode == 1
    assert f"{hdfs.url}/bad.jsonl, line 201: is not JSON" in answer.stderr
    answer = spark.run(*given(f"{hdfs.url}/bad.jsonl"), "--resume", "--on-error=skip")
    assert answer.returncode == 0, answer.stderr
    assert "resumed" in answer.stderr
    assert files_of(tmp_path / "result") == local(home, home / "bad.jsonl")
    (error,) = map(json.loads, (tmp_path / "result.errors.jsonl").read_text().splitlines())
    assert (error["file"], error["line"]) == (f"{hdfs.url}/bad.jsonl", 201)


@pytest.mark.slow
def test_refusals_are_sentences(hdfs, spark):
    wanted = {
        "s3a://corpus/documents": "S3AFileSystem not found); spark-submit --packages org.apache.hadoop:hadoop-aws:3",
        "s3://corpus/documents": "write s3a:// for S3",
        "ftps://here/documents": "has no file system for ftps://",
        "hdfs://127.0.0.1:9/documents": "Connection refused",
        f"{hdfs.url}/nothing": "there is no such file",
        f"{hdfs.url}/no*thing": "there is no such file",
        f"{hdfs.url}/_hidden.jsonl": "names begin with '_'",
        f"{hdfs.url}/packed.zip": "this kind of archive is not read",
        f"{hdfs.url}/packed.jsonl.zst.tar": "jsonl.zst.tar is read from file systems that are mounted here",
        f"{hdfs.url}/empty.parquet": "is empty, and so no parquet file",
    }
    answer, logged = spark.ask(inputs=list(wanted))
    assert "Traceback" not in logged
    assert len(answer["said"]) == len(wanted), answer
    for (word, text), said in zip(wanted.items(), answer["said"]):
        assert text in said, (word, said)
        assert word in said


def test_s3_as_the_guide_has_it(home, tmp_path):
    (tmp_path / "output").mkdir()
    shutil.copy(home / "tok.json", tmp_path / "20B_tokenizer.json")
    command = DOC.split("```")[5].strip()
    assert command.startswith("spark-submit \\\n  --packages org.apache.hadoop:hadoop-aws:")
    ivy = hadoop_servers.cache() / "ivy"
    command = command.replace("spark-submit", f"spark-submit --conf spark.jars.ivy={shlex.quote(str(ivy))}", 1)
    with file_servers.s3(tmp_path, "corpus") as store, venv.locked(ivy.with_suffix(".lock")):
        store.put(home / "documents")
        keys = {"AWS_ACCESS_KEY_ID": "anybody", "AWS_SECRET_ACCESS_KEY": "secret"}
        place = {"DATA_PATH": str(tmp_path), "S3_ENDPOINT": store.endpoint, "SPARK_HOME": str(spark_home())}
        said = shell(f"cd {shlex.quote(str(SCRIPT.parent))}\n{command} {SPLIT}", **place, **keys)
    assert "left out, no documents by its name: s3a://corpus/documents/_SUCCESS" in said
    assert files_of(tmp_path / "output/result") == local(home, home / "documents")
