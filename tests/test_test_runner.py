"""The test runner believes no suite that crashed, counts each test once, and lets no skip pass unseen."""

import ast
import fnmatch
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path
from xml.etree import ElementTree

import _pytest.outcomes
import conftest
import pytest
import share
from harness import environment_of

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import callers, sanitize, torches  # noqa: E402
from tools import test as test_runner  # noqa: E402
from tools.suite import budgets, leftovers, programs, report, room, skips  # noqa: E402

SUITE = '<testsuites><testsuite name="s">{}</testsuite></testsuites>'
PASSED = '<testcase classname="m" name="{}"/>'
FAILED = '<testcase classname="m" name="{}"><failure message="no">trace</failure></testcase>'
ERROR = '<testcase classname="m" name="{}"><error message="clean-up">trace</error></testcase>'
SKIPPED = '<testcase classname="m" name="{}"><skipped message="needs a GPU">x</skipped></testcase>'


def write_report(folder, *cases, name="report.xml"):
    path = folder / name
    path.write_text(SUITE.format("".join(cases)))
    return path


def test_counts(tmp_path):
    path = write_report(tmp_path, PASSED.format("a"), FAILED.format("b"), SKIPPED.format("c"), PASSED.format("d"))
    result = report.read_report("suite", path, 1)
    assert (result.passed, result.failed, result.skipped) == (2, ["m.b"], [("m.c", "needs a GPU")])


def test_a_test_that_passes_and_fails_in_its_clean_up_failed_once(tmp_path):
    result = report.read_report("suite", write_report(tmp_path, PASSED.format("a"), ERROR.format("a")), 1)
    assert (result.passed, result.failed) == (0, ["m.a"])


@pytest.mark.parametrize("text", [None, "", "<testsuites><testsuite>"])
def test_a_suite_without_a_readable_report_failed(tmp_path, text):
    path = tmp_path / "report.xml"
    if text is not None:
        path.write_text(text)
    result = report.read_report("suite", path, -11)
    assert result.passed == 0
    assert result.failed == ["suite: ended with status -11 and left no readable report"]


def test_a_suite_that_passed_everything_and_crashed_failed(tmp_path):
    result = report.read_report("suite", write_report(tmp_path, PASSED.format("a")), 139)
    assert (result.passed, result.failed) == (1, ["suite: ended with status 139"])


def ctest_report(folder, **programs):
    """ctest's report of programs, by their status."""
    case = '<testcase name="{0}" classname="{0}" status="{1}"/>'
    return write_report(folder, *(case.format(name, status) for name, status in programs.items()), name="ctest.xml")


@pytest.fixture
def singles(tmp_path):
    (tmp_path / "gtest").mkdir()
    return tmp_path / "gtest"


def test_programs_count_by_their_single_tests(tmp_path, singles):
    write_report(singles, PASSED.format("a"), PASSED.format("b"), name="good_test.xml")
    write_report(singles, PASSED.format("a"), FAILED.format("b"), name="bad_test.xml")
    overview = ctest_report(tmp_path, good_test="run", bad_test="fail", crashed_test="fail", off_test="disabled")
    result = report.read_programs("unit tests", overview, 8, singles)
    assert result.passed == 2 + 1
    assert result.failed == ["m.b", "crashed_test.crashed_test: see its output above"]
    assert [name for name, _ in result.skipped] == ["off_test.off_test"]


def test_a_program_that_ends_early_or_runs_no_test_failed(tmp_path, singles):
    write_report(singles, PASSED.format("a"), name="good_test.xml")
    write_report(singles, name="empty_test.xml")
    overview = ctest_report(tmp_path, good_test="run", early_test="run", empty_test="run")
    result = report.read_programs("unit tests", overview, 0, singles)
    assert result.passed == 1
    assert result.failed == [
        "early_test.early_test: ended with 0 and reports no test",
        "empty_test.empty_test: ended with 0 and reports no test",
    ]


def test_unit_tests_without_a_readable_report_failed_once(tmp_path, singles):
    (tmp_path / "ctest.xml").write_text("<testsuite>")
    result = report.read_programs("unit tests", tmp_path / "ctest.xml", 8, singles)
    assert (result.passed, len(result.failed)) == (0, 1)


def test_no_filter_or_shard_of_the_shell_reaches_unit_tests(tmp_path, monkeypatch):
    monkeypatch.setenv("GTEST_FILTER", "Nothing.*")
    monkeypatch.setenv("GTEST_TOTAL_SHARDS", "2")
    environment = programs.gtest_environment(tmp_path, 7)
    found = {name: value for name, value in environment.items() if name.startswith("GTEST_")}
    assert found == {"GTEST_OUTPUT": f"xml:{tmp_path}/", "GTEST_COLOR": "no", "GTEST_RANDOM_SEED": "8"}
    assert environment["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize("seed", [0, 1, 99_998, 99_999, (1 << 31) - 1])
def test_the_seed_of_a_run_is_one_of_googletests(tmp_path, seed):
    """Who takes 0 or a larger one chooses another each time."""
    given = [programs.gtest_environment(tmp_path, seed)["GTEST_RANDOM_SEED"] for _ in range(2)]
    assert given[0] == given[1] and 1 <= int(given[0]) <= 99_999


def test_the_seed_of_a_run_reaches_all_that_chooses(tmp_path, monkeypatch):
    started = []

    def started_with(command, env=None, limit_s=None):
        started.append((" ".join(map(str, command)), (env or {}).get("GTEST_RANDOM_SEED")))
        return 1

    monkeypatch.setattr(test_runner, "REPORTS", tmp_path)
    monkeypatch.setattr(test_runner, "run", started_with)
    monkeypatch.setattr(test_runner, "run_all", lambda tests, long: None)
    monkeypatch.setattr(test_runner.Run, "suite", lambda tests, name, work: work())
    monkeypatch.setattr(torches, "suites", lambda arguments: [])
    monkeypatch.setattr(callers, "run", lambda arguments: None)
    test_runner.run_unit_tests(41)
    test_runner.run_long(test_runner.Run(41, tmp_path))
    said = {
        name: [row for row in started if name in row[0]] for name in ("ctest", "fuzz.sh", "sanitize", "sim", "torchrun")
    }
    assert said["ctest"][0][1] == "42"
    assert said["fuzz.sh"][0][0].endswith(" 41")
    assert "--seed=41" in said["torchrun"][0][0] and "--launcher=torchrun" in said["torchrun"][0][0]
    assert "--seed 41" in said["sanitize"][0][0] and "--from 41" in said["sim"][0][0]


@pytest.mark.parametrize(("there", "failed"), [([], 1), (["3.8"], 0)])
def test_a_machine_where_no_row_of_torches_can_run_fails(monkeypatch, there, failed):
    monkeypatch.setattr(torches, "interpreters", lambda *_: dict.fromkeys(there, "python"))
    monkeypatch.setattr(torches, "run_row", lambda *_: report.Result(passed=1))
    total = report.Result()
    for _, work in torches.suites([]):
        total.add(work())
    assert len(total.failed) == failed
    assert (total.passed > 0) == bool(there)
    assert skips.check(total, skips.read()).failed == total.failed


def test_sanitizers_stop_at_what_they_find_whatever_the_shell_says(tmp_path, monkeypatch):
    for name in sanitize.OPTIONS:
        monkeypatch.setenv(name, "halt_on_error=0:exitcode=0")
    monkeypatch.setenv("GTEST_FILTER", "Nothing.*")
    environment = sanitize.environment(tmp_path, 7)
    assert {name: environment[name] for name in sanitize.OPTIONS} == sanitize.OPTIONS
    assert "GTEST_FILTER" not in environment and environment["GTEST_OUTPUT"] == f"xml:{tmp_path}/"


def test_sanitizers_have_presets_and_programs_that_there_are():
    presets = json.loads((ROOT / "CMakePresets.json").read_text())
    assert {preset["name"] for preset in presets["buildPresets"]} >= {*sanitize.PRESETS, *sanitize.ONLY}
    lists = [*(ROOT / "src").rglob("CMakeLists.txt"), ROOT / "simulation" / "CMakeLists.txt"]
    programs = set(re.findall(r"phx_test\((\w+)", "".join(path.read_text() for path in lists)))
    assert programs > set(sanitize.ONLY["ubsan"])
    assert all(re.search(sanitize.any_of(names), name) for names in sanitize.ONLY.values() for name in names)
    assert not re.search(sanitize.any_of(["core_test"]), "master_core_test")


def test_sanitizers_report_skips_and_programs_that_ran_no_test(tmp_path, singles):
    write_report(singles, PASSED.format("a"), SKIPPED.format("b"), name="good_test.xml")
    overview = ctest_report(tmp_path, good_test="run", early_test="run")
    cases = sanitize.cases_of(overview, singles, 0)
    suite = ElementTree.Element("testsuite")
    suite.extend(cases)
    ElementTree.ElementTree(suite).write(tmp_path / "sanitize.xml")
    result = report.read_report("sanitizers", tmp_path / "sanitize.xml", 1)
    assert result.skipped == [("m.b", "needs a GPU")]
    assert result.failed == ["early_test.early_test"]


def test_times_are_summed_up_by_file(tmp_path):
    case = '<testcase classname="{}" name="{}" time="{}"/>'
    cases = [
        case.format("tests.test_a", "x", 1.5),
        case.format("tests.test_a.TestOne", "y", 2),
        case.format("lint", "z", 4),
    ]
    result = report.read_report("suite", write_report(tmp_path, *cases), 0)
    assert result.times_s == {"tests/test_a.py": 3.5, "lint": 4.0}


ALLOWED = [{"test": "tests.test_gpu.*", "reason": "no CUDA device", "why": "needs a GPU"}]


@pytest.mark.parametrize(
    ("name", "reason", "allowed"),
    [
        ("tests.test_gpu.test_copy", "no CUDA device", True),
        ("tests.test_gpu.test_copy", "torch is not there", False),
        ("tests.test_other.test_copy", "no CUDA device", False),
    ],
)
def test_a_skip_that_is_not_on_the_list_is_a_failure(name, reason, allowed):
    result = skips.check(report.Result(passed=1, skipped=[(name, reason)]), ALLOWED)
    assert len(result.skipped) == allowed
    assert [name in line and reason in line for line in result.failed] == [True] * (not allowed)


def test_each_allowed_skip_says_why(tmp_path):
    assert skips.read()
    path = tmp_path / "list.json"
    path.write_text(json.dumps([{"test": "*", "reason": "*", "why": ""}]))
    with pytest.raises(ValueError, match="test, reason and why"):
        skips.read(path)


def test_a_skip_of_googletest_has_its_words_without_their_place(tmp_path):
    """As googletest writes it. Words alone can be allowed: lines move."""
    case = '<testcase classname="s" name="{}"><skipped message="{}&#x0A;x" type=""/></testcase>'
    cases = [
        case.format("a", "/src/base/a_test.cc:63&#x0A;needs a GPU"),
        case.format("b", "needs a GPU: 3"),
        case.format("c", "/src/base/a_test.cc:64").replace("&#x0A;x", ""),
    ]
    result = report.read_report("suite", write_report(tmp_path, *cases), 0)
    assert result.skipped == [("s.a", "needs a GPU"), ("s.b", "needs a GPU: 3"), ("s.c", "no reason given")]


def test_each_allowed_reason_is_given_somewhere():
    """In our tests and tools, or by pytest.importorskip. A pattern's words stand in one line, in their order."""
    own = [path for folder in ("tests", "src", "tools") for path in (ROOT / folder).rglob("*") if path.is_file()]
    texts = [path.read_text() for path in own if path.suffix in (".py", ".cc", ".sh") and path != Path(__file__)]
    texts.append(Path(_pytest.outcomes.__file__).read_text())

    def is_given(reason):
        words = re.compile(".*".join(map(re.escape, reason.split("*"))))
        return any(words.search(text) for text in texts)

    assert [entry["reason"] for entry in skips.read() if not is_given(entry["reason"])] == []
    assert not is_given("no such * reason")


def reasons_given(path):
    """Of the skips in a file of tests, as patterns: what is filled in is a *. Of a variable nothing is known."""
    for node in ast.walk(ast.parse(path.read_text())):
        name = getattr(getattr(node, "func", None), "attr", None)
        words = node.args[:1] if name == "skip" else [] if name != "skipif" else [key.value for key in node.keywords]
        for word in words:
            parts = word.values if isinstance(word, ast.JoinedStr) else [word]
            yield "".join(part.value if isinstance(part, ast.Constant) else "*" for part in parts)


def test_each_reason_that_a_test_gives_is_allowed():
    """Else it fails on the one machine that has this reason. (Where differ.json names scripts, it is meant to.)"""
    entries = [entry["reason"] for entry in skips.read()]
    given = {reason for path in (ROOT / "tests").glob("*.py") for reason in reasons_given(path)}
    assert len(given) > 15
    stray = {reason for reason in given if not any(fnmatch.fnmatch(reason, entry) for entry in entries)}
    assert stray == {"tests/sameness/differ.json names scripts"}


@pytest.mark.parametrize(
    ("name", "allowed"), [("WorkersTest.DISABLED_WithoutPidfds", True), ("WorkersTest.DISABLED_Flaky", False)]
)
def test_a_test_that_was_switched_off_is_no_child_of_another(tmp_path, name, allowed):
    suite, test = name.split(".")
    case = f'<testcase classname="{suite}" name="{test}" status="notrun" result="suppressed"/>'
    result = skips.check(report.read_report("unit tests", write_report(tmp_path, case), 0), skips.read())
    assert (len(result.skipped), len(result.failed)) == (allowed, not allowed)


def test_budgets_warn_of_the_worst_first():
    limits = {"default": 10, "tests/test_slow.py": 60}
    times_s = {"tests/test_slow.py": 59.0, "tests/test_a.py": 11.0, "tests/test_b.py": 30.0, "tests/test_c.py": 9.0}
    assert budgets.over(times_s, limits) == [("tests/test_b.py", 30.0, 10), ("tests/test_a.py", 11.0, 10)]


def test_budgets_are_of_files_that_are_there():
    assert budgets.gone(budgets.read(), lambda file: (ROOT / file).exists()) == []
    assert budgets.gone({"default": 1, "tests/test_gone.py": 2}, lambda file: False) == ["tests/test_gone.py"]


def test_a_background_program_tells_its_end_and_shows_why_it_failed(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(programs, "REPORTS", tmp_path)
    good = programs.Background("good", [sys.executable, "-c", "print('fine')"])
    bad = programs.Background("bad one", [sys.executable, "-c", "print('oh no'); raise SystemExit(3)"])
    assert (good.wait()[0], bad.wait()[0]) == (0, 3)
    assert capsys.readouterr().out == "oh no\n\n"


def test_what_works_behind_yields_until_it_is_waited_for(tmp_path, monkeypatch):
    """The program tells its share when it was started, and once more when it is waited for."""
    monkeypatch.setattr(programs, "REPORTS", tmp_path)
    pipes = [tmp_path / "started", tmp_path / "waited-for"]
    for pipe in pipes:
        os.mkfifo(pipe)
    share_of_it = "open('/proc/self/autogroup').read()"
    if not Path("/proc/self/autogroup").exists():  # this kernel shares out by nothing but niceness
        share_of_it = "{'started': 'nice 7', 'waited-for': 'nice 0'}[pipe.rpartition('/')[2]]"
    code = f"import sys\nfor pipe in sys.argv[1:]:\n with open(pipe, 'w') as out: out.write({share_of_it})"
    program = programs.Background("polite", [sys.executable, "-c", code, *pipes], nice=7)
    told = [pipes[0].read_text()]
    wait = program.process.wait
    monkeypatch.setattr(program.process, "wait", lambda _: [told.append(pipes[1].read_text()), wait()][1])
    assert program.wait()[0] == 0
    assert [re.search(r"nice (\d+)", text)[1] for text in told] == ["7", "0"]


# A foreground program as ctest is: it ends by the first signal and does not end its child, which holds the pipe.
LEAVES_A_CHILD = """
import os, signal
pid = os.fork()
signal.alarm(60)  # if nobody ends it
if pid == 0:
    {disposition}
    os.write(4, b"begun")
    while True:
        signal.pause()
signal.pause()
"""
RUN = "from tools.suite import programs; programs.hear_signals(); raise SystemExit(programs.run({command!r}))"
DEAF = "signal.signal(signal.SIGINT, signal.SIG_IGN)"


def run_in_foreground(code, tmp_path, run=RUN):
    """A program that runs `code` by programs.run, and a pipe that all of it hold."""
    os.mkfifo(tmp_path / "alive")
    held = ["bash", "-c", 'exec 4> "$0" "$@"', str(tmp_path / "alive"), sys.executable, "-c", code]
    process = subprocess.Popen([sys.executable, "-c", run.format(command=held, reports=str(tmp_path))], cwd=ROOT)
    return process, open(tmp_path / "alive", "rb", buffering=0)


@pytest.mark.parametrize("disposition", ["pass", DEAF])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_program_leaves_no_child_running(tmp_path, number, disposition):
    process, alive = run_in_foreground(LEAVES_A_CHILD.format(disposition=disposition), tmp_path)
    assert alive.read(5) == b"begun"
    process.send_signal(number)
    assert alive.read() == b""  # ends with the last that holds it
    assert process.wait() == 128 + number


WAITS = "import os, signal\nos.write(4, b'begun')\nsignal.alarm(60)\nsignal.pause()"
IN_BACKGROUND = """
from pathlib import Path
from tools.suite import programs
programs.REPORTS = Path({reports!r})
programs.Background("left", {command!r}, nice=1).wait()
"""


@pytest.mark.parametrize("how", [RUN, IN_BACKGROUND])
def test_a_killed_run_leaves_no_program_running(tmp_path, how):
    process, alive = run_in_foreground(WAITS, tmp_path, how)
    assert alive.read(5) == b"begun"
    process.kill()
    assert alive.read() == b""  # ends with the last that holds it
    process.wait()


def test_ctrl_z_stops_the_program_with_us_and_fg_continues_it(tmp_path, monkeypatch):
    code = "import os\nos.write(4, str(os.getpid()).encode())\nwith open(os.environ['GO']) as go: go.read()"
    os.mkfifo(tmp_path / "go")
    monkeypatch.setenv("GO", str(tmp_path / "go"))
    process, alive = run_in_foreground(code, tmp_path)
    pid = int(alive.read(20))
    process.send_signal(signal.SIGTSTP)
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    assert re.search(r"^State:\s+T", Path(f"/proc/{pid}/status").read_text(), re.M)
    process.send_signal(signal.SIGCONT)
    (tmp_path / "go").write_text("")
    assert process.wait() == 0


ASKED_EARLY = """
import os, signal, subprocess
from tools.suite.programs import CtrlZ
with CtrlZ() as ctrl_z:
    os.kill(os.getpid(), signal.SIGTSTP)
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    ctrl_z.stops(process.pid)
    process.kill()
"""


def test_ctrl_z_before_the_program_has_started():
    process = subprocess.Popen([sys.executable, "-c", ASKED_EARLY], cwd=ROOT)
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    process.send_signal(signal.SIGCONT)
    assert process.wait() == 0


OWN_TESTS = """
import ctypes, os, signal, threading, harness, pytest

def test_first(): pass

@pytest.mark.timeout(1 if "{how}" == "native" else 100)
def test_second():
    if "{how}" == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if "{how}" == "wait":
        with open(os.environ["BEGUN"], "w") as begun:
            begun.write("x")
        signal.pause()
    if "{how}" == "leave":
        job = harness.Job("/tmp")
        job.run(command=["sh", "-c", 'exec 5> "$0"; echo $$ >&5; exec sleep 1000', os.environ["ALIVE"]])
        with open(os.environ["BEGUN"]) as begun:
            begun.read()
        os.kill(os.getpid(), signal.SIGKILL)
    if "{how}" == "native":
        libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_lock(mutex)  # no signal lets it return
    if "{how}" == "thread":
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()

@pytest.mark.slow
def test_third(): pass

@pytest.mark.long
def test_fourth(): pass
"""


@pytest.fixture
def own_run(tmp_path):
    """A function that starts ./run test in a clone that has one file of tests."""
    shutil.copytree(ROOT / "tools", tmp_path / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "tests").mkdir()
    for file in (ROOT / "tests").glob("*.py"):
        if not file.name.startswith("test_"):
            shutil.copy(file, tmp_path / "tests")

    def start(*arguments, how="pass"):
        (tmp_path / "tests" / "test_own.py").write_text(OWN_TESTS.format(how=how))
        command = [sys.executable, tmp_path / "tools" / "test.py", *arguments]
        env = {**os.environ, "BEGUN": str(tmp_path / "begun"), "ALIVE": str(tmp_path / "alive")}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)

    return start


def closing(process):
    """Its status, and the lines behind the table of times."""
    said = process.communicate()[0].splitlines()
    return process.returncode, said[max(i for i, line in enumerate(said) if re.search(r"^ *\d+\.?\d* s  ", line)) + 1 :]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["tests/nonsense.py"], "file or directory not found: tests/nonsense.py"),
        (["-k", "nothing"], "no test was selected by these arguments"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_a_run_of_no_test_says_why_and_advises_no_seed(own_run, arguments, reason):
    status, said = closing(own_run(*arguments))
    assert (status, said) == (1, [f"FAILED: pytest: {reason}", "0 passed, 1 failed, 0 skipped"])


def test_a_crash_names_its_test_and_keeps_what_others_came_to(own_run):
    status, said = closing(own_run("tests/test_own.py", how="crash"))
    assert status == 1
    assert "FAILED: end-to-end: ended with status -11 in tests/test_own.py::test_second" in said
    assert said[-1] == "1 passed, 1 failed, 0 skipped"


@pytest.mark.parametrize("beside", [[], ["-n", "1"]])
def test_a_deadlock_in_native_code_ends_with_its_name(own_run, beside):
    """Python hears no signal there, and so no time limit."""
    status, said = closing(own_run("tests/test_own.py", "--grace=0.5", *beside, how="native"))
    assert status == 1
    (line,) = [line for line in said if line.startswith("FAILED: ")]
    assert line.endswith("test_second")
    assert said[-1] == ("2 passed, 1 failed, 0 skipped" if beside else "1 passed, 1 failed, 0 skipped")


def test_a_pytest_that_does_not_end_is_ended_and_names_its_test(tmp_path, monkeypatch):
    """Nothing in it watches its time."""
    (tmp_path / "slow.journal").write_text("began a\npassed a\nbegan b\n")
    monkeypatch.setattr(test_runner, "REPORTS", tmp_path)
    monkeypatch.setattr(programs, "REPORTS", tmp_path)
    tests = test_runner.Run(1, tmp_path, limit_s=0.1)
    monkeypatch.setattr(tests, "pytest", lambda *_: ["sleep", "1000"])
    result = tests.end_to_end("slow", [])
    assert (result.passed, len(result.failed)) == (1, 1)
    assert re.fullmatch(r"slow: ended with status -2, ended by us after 0\.1 s in b", result.failed[0])
    tests.behind("slow", tests.pytest())
    tests.join()
    assert tests.total.failed == result.failed


def test_what_a_test_leaves_as_its_process_dies_is_ended_and_told(own_run, tmp_path):
    """Its job has a session of its own. It holds a pipe, which ends with it."""
    os.mkfifo(tmp_path / "alive")
    os.mkfifo(tmp_path / "begun")
    process = own_run("tests/test_own.py", how="leave")
    with open(tmp_path / "alive", "rb", buffering=0) as alive:
        pid = int(alive.readline())
        (tmp_path / "begun").write_text("")
        assert alive.read() == b""
    said = process.communicate()[0]
    assert process.returncode == 1
    assert f"warning: left running by a test, and killed: {pid} sleep 1000\n" in said
    assert said.endswith("\n1 passed, 1 failed, 0 skipped\n")


def test_only_what_carries_the_mark_of_a_run_is_ended(monkeypatch):
    marks = [leftovers.MARKER + "=one", leftovers.MARKER + "=another"]
    environments = [dict([mark.split("=")]) for mark in marks]
    running = [subprocess.Popen(["sleep", "1000"], env=environment) for environment in environments]
    try:
        for process, mark in zip(running, marks):
            assert mark.encode() in environment_of(process.pid)  # behind its exec
        monkeypatch.setattr(leftovers, "ENDS_WITHIN_S", 0.1)
        told = leftovers.end("one")
        assert [line.split(" ", 1)[0] for line in told] == [str(running[0].pid)]
        assert (running[0].wait(), running[1].poll()) == (-signal.SIGKILL, None)
    finally:
        for process in running:
            process.kill()


def test_what_a_thread_raises_fails_its_test(own_run):
    status, said = closing(own_run("tests/test_own.py", how="thread"))
    assert (status, said[-1]) == (1, "2 passed, 1 failed, 0 skipped")
    assert "FAILED: tests.test_own.test_second" in said


def test_a_test_that_crashes_its_process_is_not_run_again(own_run):
    """With others beside it; those that its process had still to run are."""
    status, said = closing(own_run("-n", "1", "--long", "tests/test_own.py", how="crash"))
    (line,) = [line for line in said if line.startswith("FAILED: ")]
    assert line.endswith("test_second")
    assert (status, said[-1]) == (1, "3 passed, 1 failed, 0 skipped")


def test_an_interrupted_run_tells_how_far_it_came(own_run, tmp_path):
    os.mkfifo(tmp_path / "begun")
    process = own_run("tests/test_own.py", how="wait")
    assert (tmp_path / "begun").read_text() == "x"
    process.terminate()
    said = process.communicate()[0].splitlines()
    assert process.returncode == 128 + signal.SIGTERM
    assert said[-1].startswith("interrupted; 1 passed, ") and said[-1].endswith(" so far")


@pytest.mark.parametrize(("mode", "passed"), [(None, 3), ("--quick", 2), ("--long", 4)])
def test_a_mode_counts_with_other_arguments_too(own_run, mode, passed):
    status, said = closing(own_run(*filter(None, [mode]), "tests/test_own.py"))
    assert (status, said[-1]) == (0, f"{passed} passed, 0 failed, 0 skipped")


def test_quick_and_long_are_not_one_run(own_run):
    process = own_run("--quick", "--long")
    assert "not allowed with argument --quick" in process.communicate()[1]
    assert process.returncode == 2


FILE = """
import pytest

@pytest.mark.slow
def test_0(): pass

@pytest.mark.alone
def test_1(): pass

@pytest.mark.long
def test_2(): pass

@pytest.mark.parametrize("n", range(8))
def test_3(n): pass
"""


def collected(folder, *arguments):
    """Names of the tests that pytest chooses of FILE and of one that has slow tests alone, with our conftest."""
    (folder / "test_many.py").write_text(FILE)
    (folder / "test_few.py").write_text("import pytest\n@pytest.mark.slow\ndef test_only(): pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", f"--rootdir={folder}", "-p", "no:cacheprovider"]
    markers = ["-o", "markers=slow"]
    plugin = ["-p", "conftest"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(
        [*command, *markers, *plugin, *arguments, str(folder)], cwd=folder, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]


def test_a_slice_has_tests_of_each_file(tmp_path):
    assert collected(tmp_path, "--slice=2") == ["test_only", "test_3[0]", "test_3[4]"]
    assert len(collected(tmp_path)) == 1 + 2 + 8
    assert "test_2" in collected(tmp_path, "--long")


@pytest.fixture
def own_shares(monkeypatch):
    """Nobody else's: the tests around this one hold some."""
    monkeypatch.setattr(share, "NAME", f"phalanx-test-share-{uuid.uuid4().hex}")


def test_processes_that_test_beside_each_other_share_no_ports(own_shares):
    shares = [share.Share() for _ in range(3)]
    ports = [{one.free_port("127.0.0.1") for _ in range(share.PORTS_EACH)} for one in shares]
    assert all(len(ports[i] & ports[j]) == 0 for i in range(3) for j in range(i))
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(map(max, ports)) < lowest, "the kernel gives these to anybody"


def test_jobs_of_slurm_meet_at_ports_of_their_share_alone(own_shares):
    """By Slurm's rule, which tests/test_slurm.py has from the guide."""
    shares = [share.Share() for _ in range(3)]
    jobs = [[one.free_slurm_job("127.0.0.1") for _ in range(share.PORTS_EACH)] for one in shares]
    ports = [{20_000 + 13 * job % 10_000 for job in ids} for ids in jobs]
    assert [(min(row), max(row)) for row in ports] == [(20_000, 20_099), (20_100, 20_199), (20_200, 20_299)]


def test_a_share_is_of_the_machine_and_not_of_a_folder_or_a_user(own_shares, tmp_path):
    """Another user with another TMPDIR has the same ports."""
    own = share.Share()
    code = Path(share.__file__).read_text() + f"\nNAME = {share.NAME!r}\nprint(Share().number)\n"
    other = {"user": 65_534} if os.geteuid() == 0 else {}
    env = {"TMPDIR": str(tmp_path)}  # and with the system's Python, which anybody may run
    done = subprocess.run(["python3", "-c", code], env=env, cwd="/", capture_output=True, text=True, **other)
    assert (own.number, done.stdout) == (0, "1\n"), done.stderr


def test_a_port_in_use_is_not_given_out(own_shares):
    own = share.Share()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", own.free_port("127.0.0.1")))
        taken.listen()
        again = {own.free_port("127.0.0.1") for _ in range(share.PORTS_EACH)}
        assert taken.getsockname()[1] not in again


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), signal.SIGSEGV)"])
def test_a_process_of_tests_that_crashes_at_its_end_has_failed(tmp_path, end):
    (tmp_path / "test_end.py").write_text(
        f"import atexit, os, signal\n@atexit.register\ndef at_end():\n    {end or 'pass'}\ndef test_it(): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", f"--rootdir={tmp_path}", "-p", "no:cacheprovider"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run([*command, "-p", "conftest"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert "1 passed" in done.stdout
    assert (done.returncode == 0) == (end == ""), done.stdout + done.stderr
    assert ("a process of tests ended with -11" in done.stdout) == (end != "")


def test_files_that_share_something_slow_run_in_one_process(tmp_path):
    """Those of one group, each a real file; the others' tests are dealt out one by one."""
    assert all((ROOT / file).exists() for file in conftest.IN_ONE_PROCESS)
    (tmp_path / "tests").mkdir()
    for name in ("test_preprocess_remote.py", "test_preprocess_spark.py", "test_free.py"):
        text = (
            "import os, pytest\n"
            "@pytest.mark.parametrize('n', range(8))\n"
            "def test_it(n): print(f'ran {__name__} by {os.getpid()}')\n"
        )
        (tmp_path / "tests" / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-n", "2", "-rP", f"--rootdir={tmp_path}", "-p", "no:cacheprovider"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run([*command, "-p", "conftest"], cwd=tmp_path, env=env, capture_output=True, text=True)
    ran = [line.split() for line in done.stdout.splitlines() if line.startswith("ran ")]
    grouped = {pid for _, name, _, pid in ran if "preprocess" in name}
    assert len(ran) == 24 and len(grouped) == 1, done.stdout + done.stderr


def test_a_machine_without_memory_is_told_before_tests_fail_of_it(tmp_path):
    (tmp_path / "phx-dead").mkdir()
    (tmp_path / "phx-dead" / "slot").write_bytes(bytes(3 << 20))
    assert room.why_none(None) is None
    assert room.why_none(room.NEEDED_MIB, tmp_path) is None
    why = room.why_none(room.NEEDED_MIB - 1, tmp_path)
    assert f"take {room.NEEDED_MIB} MiB of memory, and {room.NEEDED_MIB - 1} MiB are available" in why
    assert f"{tmp_path / 'phx-dead'} 3 MiB" in why
    assert "phalanx ckpt discard" in why
    assert room.why_none(0, tmp_path / "missing").endswith("0 MiB are available")
    (tmp_path / "meminfo").write_text("MemFree: 1 kB\nMemAvailable: 2049 kB\n")
    assert room.available_mib(tmp_path / "meminfo") == 2
    (tmp_path / "meminfo").write_text("MemFree: 1 kB\n")
    assert room.available_mib(tmp_path / "meminfo") is None
