"""Debuggers, profilers and the interpreter's own variables: a rank, warm and cold, beside `python -u script.py`.

docs/warm-workers.md, "Debuggers and profilers", names these tests. The tools are the real ones; scripts need no torch.
"""

import contextlib
import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from harness import PATIENCE_S
from share import free_port
from terminal import Terminal
from zygote_agent import Agent

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))

from phalanx._bootstrap.watching import state

BIN = Path(sys.executable).parent
WORK = """\
import sys


def square(count):
    total = 0
    for number in range(count):
        total += number
    return total


def main():
    if "--never" in sys.argv:
        print("never")
    print("sum", square(10))


main()
"""
WORK_LINES = [1, 4, 5, 6, 7, 8, 11, 12, 14, 17]
# What the interpreter took from its environment, as the script sees it. `frozen`: objects imported ahead of time.
FACTS = """\
import faulthandler, gc, json, os, sys, tracemalloc, warnings
checked = False
try:
    assert False
except AssertionError:
    checked = True
print("FACTS", json.dumps({
    "flags": str(sys.flags), "options": sys._xoptions, "warnings": list(map(str, warnings.filters)),
    "asserts": checked, "doc": json.dumps.__doc__ is None, "tracemalloc": tracemalloc.get_traceback_limit(),
    "faulthandler": faulthandler.is_enabled(), "hash": hash("abc"), "no_bytecode": sys.dont_write_bytecode,
    "prefix": sys.pycache_prefix, "path": sys.path, "encoding": sys.stdout.encoding, "home": sys.base_prefix,
    "user": __import__("site").USER_BASE, "break": breakpoint(), "original": getattr(sys, "orig_argv", []),
    "warm": gc.get_freeze_count() > 0,
}))
"""


@pytest.fixture
def ranks(job):
    """The ways to start the script of a rank, in the folder of `job`."""
    return Ways(job)


class Ways:
    """The same script under Python itself, and as a rank, warm and cold."""

    def __init__(self, job):
        self.job = job

    def write(self, name, text):
        path = self.job.folder / name
        path.write_text(text)
        return path

    def command(self, way, *flags):
        if way == "plain":
            return [sys.executable, "-u"]
        ways = {"warm": [], "cold": ["--no-warm"], "forced": ["--warm"]}
        return [*self.job.command(), "--standalone", f"--state-dir={self.job.folder / 'state'}", *ways[way], *flags]

    def run(self, way, *arguments, env=None, stdin="", flags=()):
        done = subprocess.run(
            [*self.command(way, *flags), *map(str, arguments)],
            env=self.job.environment(env),
            cwd=self.job.folder,
            timeout=PATIENCE_S,
            input=stdin,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout, done.stderr

    @contextlib.contextmanager
    def started(self, way, *arguments, flags=(), stdin=subprocess.DEVNULL):
        """The running process; it is killed where it has not ended."""
        command = [*self.command(way, *flags), *map(str, arguments)]
        with subprocess.Popen(
            command, env=self.job.environment(), cwd=self.job.folder, stdin=stdin, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def all_alike(self, *arguments, **more):
        """What plain Python, a warm rank and a cold one all print, and end with."""
        plain = self.run("plain", *arguments, **more)[:2]
        assert {way: self.run(way, *arguments, **more)[:2] for way in ("warm", "cold")} == {
            "warm": plain,
            "cold": plain,
        }
        return plain


class Client:
    """The least of a debug adapter's client: requests, their answers, events."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.file = self.socket.makefile("rb")
        self.sent = 0

    def send(self, command, **arguments):
        self.sent += 1
        request = {"seq": self.sent, "type": "request", "command": command, "arguments": arguments}
        text = json.dumps(request).encode()
        self.socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
        return self.sent

    def ask(self, command, **arguments):
        number = self.send(command, **arguments)
        return self._until(lambda message: message.get("request_seq") == number).get("body")

    def event(self, name):
        return self._until(lambda message: message.get("event") == name)["body"]

    def _until(self, is_it):
        while True:
            head = self.file.readline()
            assert head, "the debugger has closed the connection"
            self.file.readline()
            message = json.loads(self.file.read(int(head.split(b":")[1])))
            if is_it(message):
                return message

    def attach_and_stop(self, path, line):
        """Waits at that line: (names of the frames, the value of `total`). Then the script goes on."""
        self.ask("initialize", adapterID="test", pathFormat="path", linesStartAt1=True, columnsStartAt1=True)
        self.send("attach", justMyCode=True)
        self._until(lambda message: message.get("event") == "initialized")
        self.ask("setBreakpoints", source={"path": str(path)}, breakpoints=[{"line": line}])
        self.ask("configurationDone")
        thread = self.event("stopped")["threadId"]
        frames = self.ask("stackTrace", threadId=thread)["stackFrames"]
        value = self.ask("evaluate", expression="total", frameId=frames[0]["id"])["result"]
        self.ask("continue", threadId=thread)
        return [frame["name"] for frame in frames], value

    def close(self):
        self.file.close()
        self.socket.close()


@pytest.mark.parametrize("way", ["warm", "cold"])
@pytest.mark.parametrize("form", ["in the script", "-m debugpy"])
def test_debugpy_attaches(ranks, way, form):
    """Breakpoints are met, and the frames shown are the script's own."""
    port = free_port()
    listens = f"debugpy.listen({port})\n" if form == "in the script" else ""
    waits = f'import debugpy\n{listens}print("listening", flush=True)\ndebugpy.wait_for_client()\n'
    script = ranks.write("debugged.py", waits + WORK)
    line = 1 + script.read_text().splitlines().index("    return total")
    before = [] if listens else ["-m", "debugpy", "--listen", port]
    with ranks.started(way, *before, script) as process:
        assert process.stdout.readline() == "listening\n"
        client = Client(port)
        assert client.attach_and_stop(script, line) == (["square", "main", "<module>"], "45")
        assert process.stdout.readline() == "sum 45\n"
        assert process.wait(PATIENCE_S) == 0
        client.close()


def test_pdb_reads_what_is_piped_in(ranks):
    """breakpoint() in a rank of a job whose stdin is a pipe, and `-m pdb`, as without a launcher."""
    script = ranks.write("stops.py", "x = 41\nbreakpoint()\nprint('after', x)\n")
    _, out = ranks.all_alike(script, stdin="p x + 1\nc\n")
    assert "(Pdb) 42\n" in out
    assert "after 41" in ranks.all_alike("-m", "pdb", script, stdin="n\nn\nc\nq\n")[1]


@pytest.mark.parametrize("hook", ["0", "os.getcwd", "no_such_module.call"])
def test_pythonbreakpoint(ranks, hook):
    script = ranks.write("hooked.py", "print(breakpoint())\n")
    ranks.all_alike(script, env={"PYTHONBREAKPOINT": hook})


@pytest.mark.parametrize("way", ["warm", "cold"])
def test_py_spy_names_the_scripts_frames(ranks, way):
    """The two frames below the script's are the bootstrap's."""
    # Whether it has gone on to its next line or not: no frame lies below that of deep().
    text = "import os, sys\ndef deep():\n    os.write(1, b'%d\\n' % os.getpid())\n    sys.stdin.readline()\ndeep()\n"
    with ranks.started(way, ranks.write("waits.py", text), stdin=subprocess.PIPE) as process:
        pid = process.stdout.readline().strip()
        dump = [str(BIN / "py-spy"), "dump", "--json", "--pid", pid]
        done = subprocess.run(dump, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        frames = [(frame["name"], Path(frame["filename"]).name) for frame in json.loads(done.stdout)[0]["frames"]]
        door = {"warm": "zygote.py", "cold": "worker.py"}[way]
        own = [("deep", "waits.py"), ("<module>", "waits.py")]
        assert frames == [*own, ("run", "runner.py"), ("<module>", door)]
        process.communicate("go on\n", timeout=PATIENCE_S)
        assert process.returncode == 0


@pytest.mark.parametrize("form", ["COVERAGE_PROCESS_START", "-m coverage run"])
def test_coverage_counts_the_scripts_lines(ranks, form):
    """Each rank writes a file of its own, with the lines that a plain run has."""
    import coverage

    script = ranks.write("work.py", WORK)
    rc = ranks.write("coverage.rc", f"[run]\ndata_file={ranks.job.folder}/data\nparallel=True\ninclude={script}\n")
    for way, nproc in (("plain", 1), ("warm", 2), ("cold", 1)):
        before = ["-m", "coverage", "run", f"--rcfile={rc}"] if form.startswith("-m") else []
        env = {} if before else {"COVERAGE_PROCESS_START": rc}
        flags = [f"--nproc-per-node={nproc}"]
        status, out, err = ranks.run(way, *before, script, env=env, flags=flags)
        # Letter by letter: print() writes in pieces, and two ranks' may mix.
        assert (status, sorted(out)) == (0, sorted("sum 45\n" * nproc)), err
        files = sorted(ranks.job.folder.glob("data.*"))
        assert len(files) == nproc, (way, files)
        for file in files:
            data = coverage.CoverageData(str(file))
            data.read()
            assert sorted(data.lines(str(script))) == WORK_LINES, way
            data.close()
            file.unlink()


def test_coverage_and_profilers_in_the_script(ranks):
    """coverage's own interface, cProfile, sys.settrace and sys.setprofile count what the script does, and no more than
    that its standard streams have a write() in Python."""
    ranks.write("work.py", WORK)
    ranks.all_alike(
        ranks.write(
            "measures.py",
            "import coverage, cProfile, pstats, sys\n"
            "cov = coverage.Coverage(data_file=None)\n"
            "cov.start(); import work; cov.stop()\n"
            "print(sorted(cov.get_data().lines(work.__file__)))\n"
            "profile = cProfile.Profile(); profile.runcall(work.main)\n"
            "counts = pstats.Stats(profile).stats.items()\n"
            "print(sorted((k[2], v[0]) for k, v in counts if k[0].endswith('work.py') or 'print' in k[2]))\n"
            "seen = []\n"
            "def trace(frame, event, argument):\n"
            "    seen.append((frame.f_code.co_name, event, frame.f_lineno))\n"
            "    return trace\n"
            "for install in (sys.settrace, sys.setprofile):\n"
            "    install(trace); work.square(2); install(None)\n"
            "print(seen, sys.gettrace(), sys.getprofile())\n",
        )
    )


@pytest.mark.parametrize("way", ["warm", "cold"])
def test_cprofile_as_a_module(ranks, way):
    status, out, err = ranks.run(way, "-m", "cProfile", ranks.write("work.py", WORK))
    assert status == 0, err
    called = {line.split()[-1] for line in out.splitlines() if "work.py:" in line}
    assert called == {"work.py:1(<module>)", "work.py:4(square)", "work.py:11(main)"}


@pytest.mark.parametrize("way", ["warm", "cold"])
def test_faulthandler_shows_the_scripts_frames(ranks, way):
    """On a signal that the script registers, after a time, and in a crash (PYTHONFAULTHANDLER). What it writes from C
    ends with the bootstrap's two frames."""
    script = ranks.write(
        "faults.py",
        "import ctypes, faulthandler, os, signal, threading\n"
        "def asks():\n    os.kill(os.getpid(), signal.SIGUSR1)\n"
        "faulthandler.register(signal.SIGUSR1)\nasks()\n"
        "def waits():\n    read, write = os.pipe()\n"
        "    with open(write, 'w') as file:\n"
        "        faulthandler.dump_traceback_later(0.01, file=file)\n        os.read(read, 1)\n"
        "        faulthandler.cancel_dump_traceback_later()\n"
        "    print(os.read(read, 9999).decode().replace('\\n', ' '))\n"
        "waits()\n"
        "def crashes():\n    ctypes.string_at(0)\ncrashes()\n",
    )
    status, out, err = ranks.run(way, script, env={"PYTHONFAULTHANDLER": "1"}, flags=["--max-restarts=0"])
    assert status == 1
    # 9: it was not on a processor for those 10 ms. 11: what is written first woke it before its frames were looked at.
    assert re.search("line (9|10|11) in waits", out) and "line 13 in <module>" in out
    for name, line in (("asks", 5), ("crashes", 16)):
        at = err.index(f"in {name}\n")
        assert f'faults.py", line {line} in <module>' in err[at:].splitlines()[1], err
    assert "Fatal Python error: Segmentation fault" in err


ALIKE = {
    "PYTHONWARNINGS": "error::UserWarning",
    "PYTHONDEVMODE": "1",
    "PYTHONTRACEMALLOC": "5",
    "PYTHONHASHSEED": "7",
    "PYTHONOPTIMIZE": "2",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONPYCACHEPREFIX": "/nowhere/cache",
    "PYTHONPATH": "/nowhere/first",
    "PYTHONUSERBASE": "/nowhere/user",
    "PYTHONUTF8": "1",
    "PYTHONFAULTHANDLER": "1",
    "PYTHONSTARTUP": "/nowhere/startup.py",  # for interactive interpreters alone
    "PYTHONBREAKPOINT": "os.getcwd",
    "PYTHONINSPECT": "1",  # at a terminal alone
    "LC_ALL": "C",
}


def facts(answer):
    status, out, err = answer
    assert status == 0, err
    found = json.loads(next(line for line in out.splitlines() if line.startswith("FACTS"))[5:])
    return found, found.pop("warm")


def test_variables_of_the_interpreter(ranks):
    """All that it takes from its environment is in a warm rank what it is in a plain process."""
    script = ranks.write("facts.py", FACTS)
    plain, _ = facts(ranks.run("plain", script, env=ALIKE))
    assert plain["hash"] and plain["tracemalloc"] == 5 and not plain["asserts"] and plain["prefix"] == "/nowhere/cache"
    assert facts(ranks.run("warm", script, env=ALIKE)) == (plain, True)
    assert facts(ranks.run("cold", script, env=ALIKE)) == (plain, False)


def test_another_pythonhome(ranks):
    """The same Python named by PYTHONHOME."""
    script, env = ranks.write("facts.py", FACTS), {"PYTHONHOME": sys.base_prefix, "PYTHONBREAKPOINT": "0"}
    env["PYTHONHASHSEED"] = "1"
    plain, _ = facts(ranks.run("plain", script, env=env))
    assert facts(ranks.run("warm", script, env=env)) == (plain, True)


@pytest.mark.parametrize("variable", ["PYTHONPROFILEIMPORTTIME", "PYTHONVERBOSE"])
def test_who_asks_for_imports_gets_all_of_them(ranks, variable):
    """Workers start cold, and that is said once; --warm counts more, and tells of those that are not done ahead."""
    script = ranks.write("imports.py", "import colorsys, sys\nfor n in range(1): pass\nimport chunk_of_mine\n")
    ranks.write("chunk_of_mine.py", "")
    status, _, err = ranks.run("warm", script, env={variable: "1"}, flags=["--nproc-per-node=2"])
    assert status == 0
    assert err.count(f"{variable} is set, which tells of imports: workers start cold") == 1
    told = r"| colorsys" if variable.endswith("TIME") else "import 'colorsys'"
    assert err.count(told) == 2, err
    status, _, err = ranks.run("forced", script, env={variable: "1"}, flags=["--nproc-per-node=2"])
    assert status == 0 and "workers start cold" not in err
    assert err.count(told.replace("colorsys", "chunk_of_mine")) == 2


@pytest.mark.parametrize("way", ["plain", "warm", "cold"])
def test_pythoninspect_at_a_terminal(ranks, way):
    """The interpreter asks for more when the script has ended, and has the script's names."""
    script = ranks.write("ends.py", "answer = 6\n")
    flags = [] if way == "plain" else ["--debug-rank=0"]
    env = {**ranks.job.environment({"PYTHONINSPECT": "1"}), "TERM": "xterm"}
    terminal = Terminal([*ranks.command(way, *flags), str(script)], env, ranks.job.folder)
    try:
        terminal.wait_text(">>> ")
        terminal.type("answer * 7\n")
        terminal.wait_text(r"\n42\r")
        terminal.type("exit()\n")
        assert terminal.wait_end() == 0, terminal.text
    finally:
        terminal.close()


@pytest.fixture
def wrapper(ranks):
    """A script that gives Python options of its own, as PYTHON_EXEC may name one."""
    path = ranks.write("my-python", f'#!/bin/sh\nexec {sys.executable} -X dev -W error::UserWarning "$@"\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("way", ["cold", "warm"])
def test_options_of_a_wrapped_interpreter(ranks, wrapper, way):
    """Each rank has them, as under torchrun; also where PHALANX_BOOTSTRAP_DIR lets it start warm."""
    script, env = ranks.write("facts.py", FACTS), {"PYTHONBREAKPOINT": "0", "PYTHONHASHSEED": "1"}
    command = [wrapper, "-u", script]
    done = subprocess.run(command, env=ranks.job.environment(env), cwd=ranks.job.folder, capture_output=True, text=True)
    plain, _ = facts((done.returncode, done.stdout, done.stderr))
    assert plain["options"] == {"dev": True}
    env["PYTHON_EXEC"] = wrapper
    if way == "warm":
        env["PHALANX_BOOTSTRAP_DIR"] = Path(state.__file__).parent.parent
    assert facts(ranks.run("warm", script, env=env)) == (plain, way == "warm")


def test_options_of_a_wrapped_interpreter_outlive_a_fresh_start(ranks, wrapper):
    """A spare that must start afresh, and a script that cannot start, are given to the interpreter with its options."""
    script = ranks.write("options.py", "import sys\nprint(sys._xoptions, sys.warnoptions[-1], sys.orig_argv[1:5])\n")
    wrong = ranks.write("wrong.py", "x = = 1\n")
    with Agent(python=str(wrapper)) as agent:
        assert agent.start_zygote(script)["type"] == "ready"
        worker = agent.fork().run(script, env={"PYTHONHASHSEED": "3"})
        out = "{'dev': True} error::UserWarning ['-X', 'dev', '-W', 'error::UserWarning']\n"
        assert worker.result() == (0, out, "")
        assert any("PYTHONHASHSEED" in message.get("cold", "") for message in worker.messages())
        plain = subprocess.run([wrapper, "-u", wrong], capture_output=True, text=True)
        assert agent.fork().run(wrong).result() == (1, "", plain.stderr)


@pytest.mark.parametrize("way", ["warm", "cold"])
def test_a_warning_of_the_compiler_is_said_once(ranks, way):
    """Not by those who read the script ahead of time; and where it is an error, it is one for the script alone."""
    script = ranks.write("escapes.py", "print('\\d')\n")
    for kind in ("always", "error"):
        plain = ranks.run("plain", script, env={"PYTHONWARNINGS": kind})
        status, out, err = ranks.run(way, script, env={"PYTHONWARNINGS": kind}, flags=["--max-restarts=0"])
        assert (bool(status), out) == (bool(plain[0]), plain[1])
        assert "invalid escape" in plain[2]
        assert err.count("escapes.py:1: ") == plain[2].count("escapes.py:1: ") and "<unknown>" not in err


@pytest.mark.parametrize("flags", [[], ["-m", "debugpy", "--listen", "PORT"]])
def test_phalanx_run_below_a_debugger(ranks, flags):
    """`python -m debugpy -m phalanx.run`, as editors start it, runs the job; ranks are debugged by their own words."""
    port = str(free_port())
    words = [port if word == "PORT" else word for word in flags]
    script = ranks.write("work.py", WORK)
    state_dir = f"--state-dir={ranks.job.folder / 'state'}"
    status, out, err = ranks.run("plain", *words, "-m", "phalanx.run", "--standalone", state_dir, script)
    assert (status, out) == (0, "sum 45\n"), err


@pytest.mark.parametrize(
    "path, counts",
    [
        ("/dev/nvidia0", True),
        ("/dev/nvidia-uvm", True),
        ("/dev/dxg", True),
        ("/dev/vfio/vfio", True),
        ("/dev/vfio/12", True),
        ("/dev/kfd", True),
        ("/dev/dri/renderD128", True),
        ("/dev/null", False),
        ("/dev/shm/x", False),
        ("/srv/dev/dxg", False),
        ("pipe:[1]", False),
    ],
)
def test_what_counts_as_a_device(path, counts):
    """A module whose import leaves one open is not imported ahead, torch and its like not excepted."""
    assert state.is_device(path) is counts
