"""Data preparation on Spark: the guide's command as it is written, executors of their own, input that Spark reads."""

import gzip
import json
import shlex
import subprocess
from pathlib import Path

import pyarrow.parquet
import pytest
from preparation import BIN, environment, expected_files, files_of, run, texts, tokenized, train_bpe, write_jsonl

SCRIPT = Path(__file__).resolve().parent.parent / "python/phalanx/preprocess/pyspark_preprocess.py"
DOC = (Path(__file__).resolve().parent.parent / "docs/data.md").read_text()
DOCUMENTS = texts(300)

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("java"),
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_bpe()


@pytest.fixture(scope="module")
def expected(tokenizer):
    return expected_files(tokenized(tokenizer, DOCUMENTS))


@pytest.fixture
def folder(tokenizer, tmp_path):
    """What the guide's $DATA_PATH has."""
    for name in ("input", "output"):
        (tmp_path / name).mkdir()
    tokenizer.save(str(tmp_path / "20B_tokenizer.json"))
    write_jsonl(tmp_path / "input/stackexchange_aa.jsonl", DOCUMENTS)
    return tmp_path


def shell(command, **variables):
    answer = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=600, env=environment(**variables)
    )
    assert answer.returncode == 0, answer.stderr[-5000:]
    return answer.stdout  # where spark-submit leads all that Python says


@pytest.mark.slow
def test_the_guides_command_as_it_is_written(folder, expected):
    """As docs/data.md has it, which has it from the guide, and in the folder where the script is."""
    command = DOC.split("```")[1]
    assert "$SPARK_HOME/bin/spark-submit --executor-cores=2 --num-executors=2 ./pyspark_preprocess.py" in command
    place = f"cd {shlex.quote(str(SCRIPT.parent))}"
    said = shell(f"{place}\n{command}", SPARK_HOME=str(spark_home()), DATA_PATH=str(folder))
    check_promised(folder, expected)
    assert "start-up" in said and "300 documents" in said


def test_the_command_without_spark(folder, expected):
    shell(DOC.split("```")[3], DATA_PATH=str(folder))
    check_promised(folder, expected)


def check_promised(folder, expected):
    assert files_of(folder / "output/result") == expected
    names = {path.name for path in (folder / "output").iterdir()}
    assert names == {f"result_text_document.{end}" for end in ("bin", "idx", "json")}


def spark_home():
    return next(Path(BIN).parent.glob("lib/python3*/site-packages/pyspark"))


@pytest.mark.slow
def test_executors_in_processes_of_their_own(folder, expected):
    """Two of them, with nothing of ours on their path: what they run comes from the driver."""
    shell(
        f"spark-submit --master 'local-cluster[2,1,1024]' {shlex.quote(str(SCRIPT))} --engine spark "
        "--input $DATA_PATH/input/stackexchange_aa.jsonl --output-prefix $DATA_PATH/output/result --split-bytes 9000 "
        "--vocab $DATA_PATH/20B_tokenizer.json --tokenizer-type HFTokenizer --append-eod",
        DATA_PATH=str(folder),
        SPARK_HOME=str(spark_home()),
    )
    assert files_of(folder / "output/result") == expected


def arguments(folder, data):
    given = ["--input", data, "--output-prefix", folder / "output/result", "--append-eod"]
    return [*given, "--vocab", folder / "20B_tokenizer.json", "--tokenizer-type", "HFTokenizer"]


@pytest.mark.slow
def test_a_bad_line_and_a_run_that_goes_on_with_the_other_engine(folder, expected):
    lines = (folder / "input/stackexchange_aa.jsonl").read_text().splitlines()
    lines.insert(200, "{")
    bad = folder / "input/bad.jsonl"
    bad.write_text("\n".join(lines))
    given = [*arguments(folder, bad), "--split-bytes=9000"]
    answer = run(*given, engine="spark", timeout=600)
    assert answer.returncode == 1
    assert f"{bad}, line 201: is not JSON" in answer.stderr
    assert "Traceback" not in answer.stderr
    answer = run(*given, "--resume", "--on-error=skip")
    assert answer.returncode == 0, answer.stderr
    assert "resumed" in answer.stderr
    assert files_of(folder / "output/result") == expected


@pytest.mark.slow
def test_input_that_spark_reads(spark, folder, tokenizer):
    """As hdfs:// and s3a:// are, by URLs of this machine's files: a folder of plain and packed ones, and a pattern."""
    inside = folder / "remote"
    inside.mkdir()
    write_jsonl(inside / "a.jsonl", DOCUMENTS[:200])
    (inside / "b.jsonl.gz").write_bytes(gzip.compress(write_jsonl(folder / "b", DOCUMENTS[200:]).read_bytes()))
    content = (inside / "a.jsonl").read_bytes()
    (inside / "c.jsonl").write_bytes(content[:3000].rpartition(b"\n")[0] + b'\n{"text": "\xff"}\n')
    kept = content[:3000].count(b"\n")
    table = pyarrow.table({"text": DOCUMENTS, "id": range(300)})
    pyarrow.parquet.write_table(table, inside / "d.parquet", row_group_size=40)
    given = arguments(folder, f"file://{inside},{folder}/input/stackexchange_aa.jsonl,file://{inside}/[a]*.jsonl")
    answer = spark.run(*given, "--split-bytes=5000", "--on-error=skip")
    assert answer.returncode == 0, answer.stderr
    wanted = [*DOCUMENTS, *DOCUMENTS[:kept], *DOCUMENTS, *DOCUMENTS, *DOCUMENTS[:200]]
    assert files_of(folder / "output/result") == expected_files(tokenized(tokenizer, wanted))
    (error,) = map(json.loads, (folder / "output/result.errors.jsonl").read_text().splitlines())
    assert (error["line"], error["error"]) == (kept + 1, "is not UTF-8: invalid start byte at byte 11")
    assert error["file"].endswith("remote/c.jsonl")
