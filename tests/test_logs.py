"""Where output goes: files, console, prefixes, filters; what is kept of a failure."""

import json
import socket

import pytest

dropin = pytest.mark.dropin


def logs(job, name, attempt=0):
    """{local rank: text of that stream's file}."""
    files = job.folder.glob(f"logs/*/attempt_{attempt}/*/{name}.log")
    return {int(file.parent.name): file.read_text() for file in files}


def start(job, *flags, arguments=(), nproc=2):
    node = job.standalone("printer.py", *arguments, nproc=nproc, flags=[f"--log-dir={job.folder / 'logs'}", *flags])
    assert node.wait() == 0, job.story()
    return node


def out(rank, life=0):
    return f"out of rank {rank} in life {life}"


def err(rank, life=0):
    return f"err of rank {rank} in life {life}"


@dropin
def test_console(job):
    """Without flags both streams come through as they are; a pipe mixes what two ranks write at once, if it is long."""
    node = start(job, arguments=["--long"])
    assert all(out(rank) in node.stdout and err(rank) in node.stderr for rank in (0, 1))
    assert node.stdout.count("x") == 2 * 20_000


@dropin
def test_redirects(job):
    """--redirects=3 puts both streams in files, byte for byte, and nothing on the console."""
    node = start(job, "--redirects=3")
    assert node.stdout == ""
    assert "err of rank" not in node.stderr
    assert logs(job, "stdout") == {rank: f"{out(rank)}\nunfinished line of rank {rank}" for rank in (0, 1)}
    assert logs(job, "stderr") == {rank: f"{err(rank)}\n" for rank in (0, 1)}


@dropin
def test_tee(job):
    """--tee=3 writes files and console, there with the rank's prefix before each line, the unfinished one included."""
    node = start(job, "--tee=3")
    for rank in (0, 1):
        assert f"[default{rank}]:{out(rank)}\n" in node.stdout
        assert f"[default{rank}]:unfinished line of rank {rank}" in node.stdout
        assert f"[default{rank}]:{err(rank)}\n" in node.stderr
        assert logs(job, "stdout")[rank] == f"{out(rank)}\nunfinished line of rank {rank}"


def test_tee_keeps_lines_whole(job):
    """torchrun begins one rank's line in the midst of another's, where that is long or unfinished."""
    node = start(job, "--tee=3", arguments=["--long"])
    lines = node.stdout.splitlines()
    for rank in (0, 1):
        assert f"[default{rank}]:{out(rank)}" in lines
        assert f"[default{rank}]:unfinished line of rank {rank}" in lines
        assert f"[default{rank}]:{err(rank)}" in node.stderr.splitlines()
        assert logs(job, "stdout")[rank].startswith(f"{out(rank)}\nxxx")


@dropin
def test_streams_by_local_rank(job):
    """Both flags take a map of local ranks; what is not named stays on the console as it is."""
    node = start(job, "-r", "0:1", "-t", "1:2")
    assert out(0) not in node.stdout
    assert out(1) in node.stdout
    assert f"[default1]:{err(1)}" in node.stderr
    assert f"{err(0)}\n" in node.stderr
    assert f"[default0]:{err(0)}" not in node.stderr
    assert out(0) in logs(job, "stdout")[0]
    assert logs(job, "stderr")[1] == f"{err(1)}\n"


@dropin
def test_prefix_template(job):
    """--log-line-prefix-template with every macro."""
    template = "<${role_name} ${local_rank} ${rank} ${hostname}> "
    node = start(job, "--tee=1", "--role=actor", f"--log-line-prefix-template={template}")
    assert (
        f"<actor 1 1 {socket.gethostname()}> {out(1)}" in node.stdout
        or f"<actor 1 1 {socket.getfqdn()}> {out(1)}" in (node.stdout)
    )


@dropin
def test_local_ranks_filter(job):
    """--local-ranks-filter shows chosen ranks on the console; files have all."""
    node = start(job, "--tee=3", "--local-ranks-filter=1")
    assert out(1) in node.stdout
    assert out(0) not in node.stdout
    assert err(0) not in node.stderr
    assert sorted(logs(job, "stdout")) == [0, 1]


def test_filter_without_files(job):
    """Ranks that are filtered and not redirected are silent."""
    node = start(job, "--local-ranks-filter=0")
    assert out(0) in node.stdout
    assert "rank 1" not in node.stdout + node.stderr


@dropin
def test_every_attempt_keeps_its_files(job):
    """A restart writes to attempt_1 and leaves attempt_0 alone."""
    start(job, "--redirects=3", "--max-restarts=1", arguments=["--fail"])
    assert out(1) in logs(job, "stdout", attempt=0)[1]
    assert {rank: text.splitlines()[0] for rank, text in logs(job, "stdout", attempt=1).items()} == {
        0: out(0, 1),
        1: out(1, 1),
    }


def test_failure_report(job):
    """@record's error.json stands where the environment says, goes into the report with its traceback, and, with the
    error code added, to the file that phalanx-run's own TORCHELASTIC_ERROR_FILE names."""
    own_file = job.folder / "own" / "error.json"
    own_file.parent.mkdir()
    flags = [f"--log-dir={job.folder / 'logs'}", "--max-restarts=0", "--redirects=3"]
    node = job.standalone("recorded.py", flags=flags, env={"TORCHELASTIC_ERROR_FILE": str(own_file)})
    assert node.wait() == 1, job.story()
    written = next(job.folder.glob("logs/*/attempt_0/1/error.json"))
    recorded = json.loads(written.read_text())
    assert recorded["message"]["message"] == "ValueError: the planned error"
    assert "recorded.py FAILED" in node.stderr
    assert "First cause: rank 1" in node.stderr
    assert "ValueError: the planned error" in node.stderr
    assert "in inner" in node.stderr
    recorded["message"]["errorCode"] = 1
    assert json.loads(own_file.read_text()) == recorded


@dropin
def test_own_error_file(job):
    """The same copy under torchrun: what stands above a launcher reads one format."""
    own_file = job.folder / "error.json"
    node = job.standalone("recorded.py", flags=["--max-restarts=0"], env={"TORCHELASTIC_ERROR_FILE": str(own_file)})
    assert node.wait() == 1, job.story()
    message = json.loads(own_file.read_text())["message"]
    (job.folder / "any file").touch()
    assert own_file.stat().st_mode == (job.folder / "any file").stat().st_mode  # others may look for it
    assert message["message"] == "ValueError: the planned error"
    assert message["errorCode"] == 1
    assert "in inner" in message["extraInfo"]["py_callstack"]


def test_last_words(job):
    """Without @record the report shows what the rank wrote last, redirected or not."""
    node = job.standalone("printer.py", "--fail", flags=["--max-restarts=0", "--redirects=3"])
    assert node.wait() == 1, job.story()
    box = node.stderr[node.stderr.index("First cause") :]
    assert "exit code 5" in box
    assert err(1) in box


@dropin
def test_duplicate_filters(job):
    """Lines of tee'd ranks that hold one of the texts are in one more file of the attempt, from all ranks, with their
    prefix; files and console have everything as ever."""
    flags = ["--tee=0:3,1:1", "--duplicate-stdout-filters=in life,,,unfinished", "--duplicate_stderr_filters", "err of"]
    node = start(job, *flags)
    (stdout,) = job.folder.glob("logs/*/attempt_0/filtered_stdout.log")
    (stderr,) = job.folder.glob("logs/*/attempt_0/filtered_stderr.log")
    # "in life," is in no line: ",," is a comma. torchrun's file lacks the newline that was not there.
    assert sorted(stdout.read_text().replace("[", "\n[").split()) == sorted(
        "[default0]:unfinished line of rank 0 [default1]:unfinished line of rank 1".split()
    )
    assert stderr.read_text() == f"[default0]:{err(0)}\n"
    assert out(0) in node.stdout
    assert logs(job, "stdout")[0].startswith(out(0))


def test_ranks_of_two_digits(job):
    """Maps take local ranks of any number of digits; torchrun's take one."""
    start(job, "--redirects=10:1,11:3", "--no-warm", nproc=12)
    assert sorted(logs(job, "stdout")) == [10, 11]
    assert sorted(logs(job, "stderr")) == [11]


@dropin
def test_run_path(job):
    """--run-path runs the file as __main__; its own exit counts."""
    node = start(job, "--run-path", nproc=1)
    assert out(0) in node.stdout


def test_run_path_of_a_folder(job):
    """What Python runs as a program is taken: a folder with a __main__.py, too."""
    folder = job.folder / "program"
    folder.mkdir()
    (folder / "__main__.py").write_text("import helper, sys\nprint(helper.answer, sys.argv[1])\n")
    (folder / "helper.py").write_text("answer = 42\n")
    node = job.standalone(folder, "x", nproc=1, flags=["--run-path"])
    assert node.wait() == 0, job.story()
    assert node.stdout == "42 x\n"


def test_log_format_json(job):
    """Every line that phalanx-run says is an object; what ranks write stays theirs."""
    node = job.standalone("light_recorded.py", flags=["--log-format=json", "--max-restarts=0", "--monitor-interval=1"])
    assert node.wait() == 1, job.story()
    objects = [json.loads(line) for line in node.stderr.splitlines() if line.startswith("{")]
    assert "phalanx-run: " not in node.stderr
    assert objects[0]["level"] == "warning"
    assert "--monitor-interval: has no effect" in objects[0]["message"]
    assert {each["program"] for each in objects} == {"phalanx-run"}
    assert {each["hostname"] for each in objects} == {socket.gethostname()}
    assert len({each["job_id"] for each in objects}) == 1
    end = objects[-1]
    assert end["level"] == "error"
    assert end["script"].endswith("light_recorded.py")
    assert end["first_cause"]["exit_code"] == 1
    assert end["first_cause"]["error"] == "ValueError: the planned error"
    assert "in inner" in end["first_cause"]["traceback"]


def test_a_log_directory_that_cannot_be(job):
    """Told before anything runs, whatever it was wanted for."""
    (job.folder / "file").touch()
    node = job.standalone("printer.py", flags=[f"--log-dir={job.folder / 'file' / 'logs'}", "--redirects=3"])
    assert node.wait() == 1
    assert "--log-dir" in node.stderr and "Not a directory" in node.stderr
    assert "rank" not in node.stdout
