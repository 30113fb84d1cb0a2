"""What a person sees of data preparation."""

import io
import os

from phalanx.preprocess import progress
from phalanx.preprocess.worker import Progress
from preparation import command, environment, expected_files, files_of, texts, tokenized, train_bpe, write_jsonl
from terminal import Terminal


def test_times_are_read_as_on_a_clock():
    assert [progress.clock(seconds) for seconds in (0, 7.4, 754, 10921)] == ["0:00", "0:07", "12:34", "3:02:01"]


def test_plain_lines_where_there_is_no_terminal():
    out = io.StringIO()
    meter = progress.Meter(num_docs=None, log_interval=100, out=out)
    meter.total_bytes = 1000
    meter.ready()
    meter.found(50, 500)
    meter.add(Progress(99, 90, 9, 90))
    assert out.getvalue() == ""
    meter.add(Progress(1, 160, 9, 160))
    assert out.getvalue().startswith(" 75%  150 documents, ") and out.getvalue().endswith(" left\n")
    meter.add(Progress(100, 0, 0, 0))
    assert out.getvalue().count("\n") == 1, "not more often than once a second"


def test_a_number_of_documents_that_is_known_counts():
    out = io.StringIO()
    meter = progress.Meter(num_docs=400, log_interval=1, out=out)
    meter.ready()
    meter.add(Progress(100, 90, 9, 90))
    assert out.getvalue().startswith(" 25%  100 of 400 documents, ")


def test_a_bar_on_a_terminal_and_an_end_by_ctrl_c(tmp_path):
    """What is finished by then is not done again."""
    tokenizer = train_bpe()
    tokenizer.save(str(tmp_path / "tok.json"))
    documents = texts(5000)
    write_jsonl(tmp_path / "data.jsonl", documents)
    given = ",".join([str(tmp_path / "data.jsonl")] * 5)  # enough of it to be met in its midst
    arguments = ["--input", given, "--output-prefix", tmp_path / "r", "--engine=threads"]
    arguments += ["--vocab", tmp_path / "tok.json", "--tokenizer-type=HFTokenizer", "--split-bytes=20000"]
    terminal = Terminal(command(*arguments), environment(), tmp_path)
    terminal.wait_text(r"\[#+\.+\] +\d+%  [\d,]+ documents, [\d.]+ MB/s, [\d.]+ Mtokens/s, \d+:\d\d left")
    os.write(terminal.fd, b"\x03")
    assert terminal.wait_end() == 130
    assert "interrupted; finished parts are kept" in terminal.text and "Traceback" not in terminal.text
    again = Terminal(command(*arguments, "--resume"), environment(), tmp_path)
    assert again.wait_end() == 0, again.text
    assert "parts are finished" in again.text
    assert files_of(tmp_path / "r") == expected_files(tokenized(tokenizer, documents, eod=False) * 5)
