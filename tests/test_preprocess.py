"""phalanx-preprocess from files to files: what comes out never depends on how the work was done."""

import gzip
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import zstandard
from harness import command_path
from phalanx.data import IndexedDataset
from preparation import EOD, expected_files, files_of, run, started, texts, tokenized, train_bpe, write_jsonl

DOCUMENTS = texts(600)
TURNS = 5  # of kills...
AT_A_TIME = 3  # ...of which so many fall in as many thirds of a run's life, the others among its parts


@pytest.fixture(scope="module")
def tokenizer():
    return train_bpe()


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    """A corpus and its tokenizer."""
    made = tmp_path_factory.mktemp("corpus")
    write_jsonl(made / "data.jsonl", DOCUMENTS)
    tokenizer.save(str(made / "tok.json"))
    return made


@pytest.fixture(scope="module")
def expected(tokenizer):
    return expected_files(tokenized(tokenizer, DOCUMENTS))


@pytest.fixture
def given(folder, tmp_path):
    """The arguments of a run into a folder of its own; `given.out` is its prefix."""

    class Given(list):
        out = tmp_path / "result"

    found = Given(["--input", folder / "data.jsonl", "--output-prefix", Given.out, "--append-eod"])
    found += ["--vocab", folder / "tok.json", "--tokenizer-type", "HFTokenizer"]
    return found


def times(given, count):
    """The same run of so many times the input: it is not over before its test has come to it."""
    longer = type(given)(given)
    longer[1] = ",".join([str(given[1])] * count)
    return longer


def done(*arguments, **more):
    answer = run(*arguments, **more)
    assert answer.returncode == 0, answer.stderr
    return answer.stderr


@pytest.mark.parametrize(("split_bytes", "workers"), [(None, 1), (100_000, 64), (997, 2), (50, 2)])
def test_the_result_is_that_of_one_loop(given, expected, split_bytes, workers):
    """50 bytes: most splits have no line that begins in them."""
    if split_bytes == 50:
        given[1] = write_jsonl(given.out.parent / "few.jsonl", DOCUMENTS[:60])
        expected = expected_files(tokenized(train_bpe(), DOCUMENTS[:60]))
    said = done(*given, f"--workers={workers}", *([f"--split-bytes={split_bytes}"] if split_bytes else []))
    assert files_of(given.out) == expected
    left = {name for name in os.listdir(given.out.parent) if name.startswith("result")}
    assert left == {"result_text_document.bin", "result_text_document.idx", "result_text_document.json"}
    documents = 60 if split_bytes == 50 else len(DOCUMENTS)
    assert f"{documents:,} documents" in said and "start-up" in said


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_result_is_that_of_megatron_core(given, tokenizer, tmp_path):
    """Of its own builder, which is given each document's tokens, as Megatron's preprocess_data.py does."""
    done(*given, "--workers=2", "--split-bytes=9000")
    documents = tokenized(tokenizer, DOCUMENTS)
    theirs = tmp_path / "theirs_text_document"
    build = {"prefix": str(theirs), "vocab_size": tokenizer.get_vocab_size(), "documents": documents}
    asked = tmp_path / "asked.json"
    asked.write_text(json.dumps({"build": [build], "merge": {}, "read": [f"{given.out}_text_document"]}))
    oracle = [sys.executable, "-W", "ignore", Path(__file__).with_name("megatron_oracle.py"), asked]
    answer = subprocess.run(oracle, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1]
    assert files_of(given.out) == files_of(tmp_path / "theirs")
    assert json.loads(answer)["documents"] == [documents]


def test_the_sidecar_and_verify(given):
    """The same sidecar, whatever engine and cut; `phalanx data` takes the dataset for whole, and notices a change."""
    told = []
    for split_bytes in (5000, 1 << 20):
        done(*given, f"--split-bytes={split_bytes}")
        told.append(json.loads(given.out.with_name("result_text_document.json").read_text()))
        assert told[-1].pop("written_unix_ms") > 0
    assert told[0] == told[1]
    assert told[0]["documents"] == len(DOCUMENTS) and told[0]["tokenizer"]["vocab_size"] == 600
    verify = [command_path("phalanx"), "data", "verify", f"{given.out}_text_document"]
    assert subprocess.run(verify, capture_output=True).returncode == 0
    content = bytearray(given.out.with_name("result_text_document.bin").read_bytes())
    content[7] ^= 1
    given.out.with_name("result_text_document.bin").write_bytes(content)
    assert subprocess.run(verify, capture_output=True).returncode == 1


def test_the_older_layout(given, tokenizer):
    done(*given, "--dataset-impl=lazy")
    documents = tokenized(tokenizer, DOCUMENTS)
    content, _ = expected_files(documents, "i")
    assert files_of(given.out)[0] == content
    dataset = IndexedDataset(f"{given.out}_text_document")
    assert [list(dataset[i]) for i in range(len(dataset))] == [ids for sequences in documents for ids in sequences]


def test_nothing_is_done_twice_once_all_is_done(given):
    done(*given)
    before = given.out.with_name("result_text_document.idx").stat()
    assert "nothing is left to do" in done(*given, "--resume")
    assert given.out.with_name("result_text_document.idx").stat().st_ino == before.st_ino
    assert "nothing is left to do" not in done(*[word for word in given if word != "--append-eod"], "--resume")


def test_a_full_disk_leaves_parts_and_a_sentence(given, small_disk):
    (small_disk.path / "ballast").write_bytes(bytes((1 << 20) - 100_000))
    answer = run(*given, "--output-prefix", small_disk.path / "r", "--split-bytes=20000")
    assert answer.returncode == 1
    assert "No space left on device" in answer.stderr and "Traceback" not in answer.stderr
    assert not list(small_disk.path.glob("r*.idx"))


def test_without_the_end_of_documents(given, tokenizer):
    done(*[word for word in given if word != "--append-eod"])
    assert files_of(given.out) == expected_files(tokenized(tokenizer, DOCUMENTS, eod=False))


def test_several_keys_and_sentences(given, tokenizer, tmp_path):
    """One dataset for each key; a list of texts is one document of several sequences."""
    path = tmp_path / "two.jsonl"
    lists = [[text, "", f"{text} again"] for text in DOCUMENTS[:50]]
    with open(path, "w") as file:
        for text, sentences in zip(DOCUMENTS, lists):
            file.write(json.dumps({"title": text, "body": sentences}) + "\n")
    done(*given, "--input", path, "--jsonl-keys", "title", "body", "--split-bytes=3000")
    assert files_of(given.out, "title") == expected_files(tokenized(tokenizer, DOCUMENTS[:50]))
    bodies = []
    for sentences in lists:
        ids = [found for found in (tokenizer.encode(text).ids for text in sentences) if found]
        if ids:
            ids[-1] = [*ids[-1], tokenizer.token_to_id(EOD)]
        bodies.append(ids)
    assert files_of(given.out, "body") == expected_files(bodies)


def test_many_files_come_in_the_order_given(given, tokenizer, tmp_path):
    """Files as they are named, those of patterns and folders by name, whatever they are packed in."""
    inside = tmp_path / "in"
    inside.mkdir()
    parts = [DOCUMENTS[i * 100 : (i + 1) * 100] for i in range(6)]
    for number, part in enumerate(parts):
        write_jsonl(tmp_path / "plain.jsonl", part)
        plain = (tmp_path / "plain.jsonl").read_bytes()
        if number == 1:
            (inside / "b.jsonl.gz").write_bytes(gzip.compress(plain[:9000]) + gzip.compress(plain[9000:]))
        elif number == 2:
            frames = [zstandard.compress(plain[start : start + 7000]) for start in range(0, len(plain), 7000)]
            (inside / "c.jsonl.zst").write_bytes(b"".join(frames))
        else:
            (inside / f"{'abcdef'[number]}.jsonl").write_bytes(plain)
    (inside / "current_chunk_incomplete").write_bytes(b"")
    said = done(
        *given, "--input", f"{inside}/f.jsonl,{inside}/[de]*.jsonl,{inside}", "--split-bytes=4000", "--workers=2"
    )
    wanted = [text for number in (5, 3, 4, *range(6)) for text in parts[number]]
    assert files_of(given.out) == expected_files(tokenized(tokenizer, wanted))
    assert "left out, no documents by its name" in said and "current_chunk_incomplete" in said


BAD_LINES = {
    b'{"text": "cut': "is not JSON: Unterminated string",
    b'{"body": 1}': "has no key 'text'; its keys: 'body'",
    b'{"text": null}': "has no text under 'text' but null",
    b'{"text": ["a", {"b": 1}]}': "has no text under 'text' but a list with an object",
    b'["text"]': "is no JSON object but a list",
    b'{"text": "\xff\xfe"}': "is not UTF-8: invalid start byte at byte 11",
    b'{"text": "\\ud800"}': "has half a surrogate pair under 'text', at character 1",
    b'{"text": ' + b"[" * 100_000: "nested too deeply",
}


@pytest.fixture
def spoilt(tmp_path):
    """(path, {line: what is wrong with it}), each kind of wrong line at a random place."""
    lines = [json.dumps({"text": text}).encode() for text in DOCUMENTS]
    rng = random.Random(3)
    wrong = dict(zip(sorted(rng.sample(range(10, 600), len(BAD_LINES))), BAD_LINES))
    for place, line in wrong.items():
        lines.insert(place, line)
    lines.insert(5, b"")
    (tmp_path / "spoilt.jsonl").write_bytes(b"\r\n".join(lines))
    return tmp_path / "spoilt.jsonl", {lines.index(line) + 1: why for line, why in BAD_LINES.items()}


@pytest.mark.parametrize("split_bytes", [1 << 20, 700])
def test_bad_lines_are_left_out_and_listed(given, spoilt, expected, split_bytes):
    path, wrong = spoilt
    said = done(*given, "--input", path, "--on-error=skip", f"--split-bytes={split_bytes}", "--workers=2")
    assert files_of(given.out) == expected
    listed = [json.loads(line) for line in Path(f"{given.out}.errors.jsonl").read_text().splitlines()]
    assert [entry["line"] for entry in listed] == sorted(wrong)
    assert all(entry["file"] == str(path) and wrong[entry["line"]] in entry["error"] for entry in listed)
    assert f"{len(wrong)} lines were no documents" in said


@pytest.mark.parametrize("split_bytes", [1 << 20, 700])
def test_a_bad_line_ends_the_run_by_its_number(given, spoilt, expected, split_bytes):
    """What is finished serves the run that leaves it out."""
    path, wrong = spoilt
    answer = run(*given, "--input", path, f"--split-bytes={split_bytes}")
    assert answer.returncode == 1
    line = min(wrong)
    assert f"{path}, line {line}: {wrong[line]}" in answer.stderr.replace("\n", " ")
    assert not given.out.with_name("result_text_document.idx").exists()
    said = done(*given, "--input", path, f"--split-bytes={split_bytes}", "--resume", "--on-error=skip")
    assert ("resumed" in said) == (split_bytes == 700)
    assert files_of(given.out) == expected


def test_what_a_run_has_left_is_not_taken_unasked(given, spoilt):
    path, _ = spoilt
    arguments = [*given, "--input", path, "--split-bytes=700"]
    assert run(*arguments).returncode == 1
    answer = run(*arguments)
    assert answer.returncode == 1
    assert "--resume goes on from them" in answer.stderr


def test_parts_of_other_options_are_made_anew(given, tokenizer, spoilt):
    path, _ = spoilt
    run(*given, "--input", path, "--split-bytes=700")
    others = [word for word in given if word != "--append-eod"]
    said = done(*others, "--input", path, "--split-bytes=700", "--resume", "--on-error=skip")
    assert "resumed: 0 of" in said
    assert files_of(given.out) == expected_files(tokenized(tokenizer, DOCUMENTS, eod=False))


def test_a_damaged_part_is_made_anew(given, spoilt, expected):
    path, _ = spoilt
    arguments = [*given, "--input", path, "--split-bytes=700"]
    run(*arguments)
    parts = sorted(given.out.with_name("result_text_document.parts").glob("*.part"))
    assert len(parts) > 2
    for place, part in zip((4100, 20, -1), parts):
        content = bytearray(part.read_bytes())
        content[place] ^= 1
        part.write_bytes(content)
    said = done(*arguments, "--resume", "--on-error=skip")
    assert f"resumed: {len(parts) - 3} of" in said
    assert files_of(given.out) == expected


def test_two_runs_do_not_share_a_prefix(given):
    with started(*times(given, 50), "--engine=threads", "--split-bytes=997") as first:
        assert "in " in first.stderr.readline()
        parts = given.out.with_name("result_text_document.parts")
        while not list(parts.glob("*")):  # the first one has its lock before it writes anything
            assert first.poll() is None
        first.send_signal(signal.SIGSTOP)  # or it may end before the second has come so far
        answer = run(*given)
        assert first.poll() is None
    assert answer.returncode == 1
    assert "another run works there" in answer.stderr


def test_a_worker_that_is_killed_ends_the_run_with_a_word(given, tokenizer):
    """What the others have finished is kept."""
    given = times(given, 5)
    with started(*given, "--engine=threads", "--split-bytes=997", "--workers=2") as process:
        parts = given.out.with_name("result_text_document.parts")
        while not list(parts.glob("*.part")):
            assert process.poll() is None
        (victim, *_) = [
            child for child in psutil.Process(process.pid).children() if "spawn_main" in str(child.cmdline())
        ]
        victim.kill()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "was killed, as the kernel does when memory is short" in said and "Traceback" not in said
    assert "parts are finished" in done(*given, "--split-bytes=997", "--resume")
    assert files_of(given.out) == expected_files(tokenized(tokenizer, DOCUMENTS) * 5)


def kill_within(process, parts, moment_s, more_parts):
    """Kills a run at a moment of its life, or as soon as there are so many parts more. True if it was done before."""
    until = len(list(parts.glob("*.part"))) + more_parts if more_parts else math.inf
    ends_at = time.monotonic() + moment_s
    while (left_s := ends_at - time.monotonic()) > 0 and len(list(parts.glob("*.part"))) < until:
        try:
            process.wait(min(left_s, 0.002 if more_parts else left_s))
            return True
        except subprocess.TimeoutExpired:
            pass
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return False


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_kills_at_any_time_change_nothing(given, expected, pytestconfig, choose):
    """Each run is killed and goes on from where the last one was, until one is done: three times of five at a moment
    that is spread over the whole of its life, twice among its parts, however long it took to start; the first of all at
    once, before it has a part. (The join is killed at each of its calls by test_data_crash.py.)"""
    kills = pytestconfig.getoption("--kills") // 2 or 25
    arguments = [*given, "--engine=threads", "--split-bytes=997", "--workers=2"]
    began = time.monotonic()
    done(*arguments)
    took_s = time.monotonic() - began
    parts = given.out.parent / "result_text_document.parts"
    lives = killed = resumed = 0
    met = set()
    while killed < kills:
        for path in given.out.parent.glob("result*"):
            assert path.name.endswith((".bin", ".idx", ".json")), path
            path.unlink()
        finished = False
        while not finished:
            turn = lives % TURNS
            began = time.monotonic()
            if not lives:
                moment_s = 0
            elif turn < AT_A_TIME:
                moment_s = 1.2 * took_s * (turn + choose.random()) / AT_A_TIME
            else:
                moment_s = 60
            lives += 1
            with started(*arguments, "--resume") as process:
                finished = kill_within(process, parts, moment_s, turn >= AT_A_TIME and choose.randint(1, 8))
                said = process.stderr.read()
            if finished:
                assert process.returncode == 0, said
                resumed += "resumed" in said
                # The first may have run beside much else. One that was killed behind its join leaves nothing to do.
                if "resumed" not in said and "nothing is left to do" not in said:
                    took_s = min(took_s, time.monotonic() - began)
            else:
                killed += 1
                met.add(any(parts.glob("*.part")))
        assert files_of(given.out) == expected
    assert resumed and met == {False, True}
