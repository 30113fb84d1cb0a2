"""A worker is, to its script, the process that `python -u script.py args...` would be: both are run and compared."""

import json
import os
import pty
import subprocess
import sys
import textwrap

import pytest
from zygote_agent import BASE_ENV, Agent

WORKLOADS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "workloads")
DESCRIBE = os.path.join(WORKLOADS, "describe_process.py")
RANK_ENV = {"RANK": "1", "LOCAL_RANK": "1", "PHX_TEXT": "caf\u00e9 \udcff"}


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    """One zygote, without torch, for all scripts of this file."""
    script = tmp_path_factory.mktemp("zygote") / "any.py"
    script.write_text("")
    with Agent() as agent:
        env = {**agent.env, "PHALANX_PRELOAD": "logging,threading,multiprocessing"}
        assert agent.start_zygote(script, env=env)["type"] == "ready"
        yield agent


@pytest.fixture(params=["warm", "cold"])
def worker(agent, request):
    worker = agent.fork() if request.param == "warm" else agent.cold()
    yield worker
    worker.end()


def plain(tmp_path, script, *args, kind="script", cwd=None, env=None, stdin=None, stdout=None, **popen):
    """The script under Python itself: (status, stdout, stderr)."""
    what = ["-m", script] if kind == "module" else [script]
    with open(tmp_path / "plain.out", "w+b") as out, open(tmp_path / "plain.err", "w+b") as err:
        done = subprocess.run(
            [sys.executable, "-u", *map(str, [*what, *args])],
            cwd=cwd,
            env={**BASE_ENV, **(env or {})},
            stdin=stdin or subprocess.DEVNULL,
            stdout=stdout or out,
            stderr=err,
            start_new_session=True,
            **popen,
        )
        out.seek(0)
        err.seek(0)
        return done.returncode, out.read().decode(), err.read().decode()


def flat(tree, prefix=""):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def compare_descriptions(expected, seen):
    """Equal, but for what we mean to differ: the worker's socket, and our import hooks."""
    expected, seen = dict(flat(json.loads(expected))), dict(flat(json.loads(seen)))
    assert seen.pop("os.descriptors") == [*expected.pop("os.descriptors"), "socket"]
    seen["sys.meta_path"] = [f for f in seen["sys.meta_path"] if "phalanx" not in f]
    differences = {k: (expected[k], seen.get(k)) for k in expected if expected[k] != seen.get(k)}
    assert not differences


@pytest.mark.parametrize("form", ["absolute", "relative", "dotted", "linked", "linked folder"])
def test_script_sees_a_process_of_its_own(worker, tmp_path, form):
    os.symlink(DESCRIBE, tmp_path / "linked.py")
    os.symlink(WORKLOADS, tmp_path / "folder")
    script, cwd = {
        "absolute": (DESCRIBE, tmp_path),
        "relative": ("describe_process.py", WORKLOADS),
        "dotted": ("./workloads/../workloads/describe_process.py", os.path.dirname(WORKLOADS)),
        "linked": ("linked.py", tmp_path),
        "linked folder": ("folder/describe_process.py", tmp_path),
    }[form]
    args = ["--lr", "0.1", "", "two words", "caf\u00e9"]
    env = {**RANK_ENV, "PWD": str(cwd)}
    status, out, err = plain(tmp_path, script, *args, cwd=cwd, env=env, preexec_fn=lambda: os.umask(0o027))
    assert (status, err) == (0, "")
    seen = worker.run(script, *args, cwd=cwd, env=env, umask=0o027).result()
    assert (seen[0], seen[2]) == (0, "")
    compare_descriptions(out, seen[1])
    assert {"type": "started"} in worker.messages()  # and a spare did not have to start afresh for it


@pytest.mark.parametrize("name", ["package.module", "package", "single", "package.inner"])
def test_module_sees_a_process_of_its_own(worker, tmp_path, name):
    describe = open(DESCRIBE).read()
    for file in ("package/module.py", "package/__main__.py", "single.py", "package/inner/__main__.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(describe)
    (tmp_path / "package/__init__.py").write_text("here = __name__\n")
    expected = plain(tmp_path, name, "--a", kind="module", cwd=tmp_path, env=RANK_ENV)
    assert expected[0] == 0, expected[2]
    seen = worker.run(name, "--a", kind="module", cwd=tmp_path, env=RANK_ENV).result()
    assert (seen[0], seen[2]) == (0, "")
    compare_descriptions(expected[1], seen[1])


def test_streams_on_a_terminal(worker, tmp_path):
    texts = []
    for run in (
        lambda fd: plain(tmp_path, DESCRIBE, cwd=tmp_path, stdin=fd, stdout=fd),
        lambda fd: worker.run(DESCRIBE, cwd=tmp_path, stdio=[fd, fd, worker.err.fileno()]).result(),
    ):
        master, slave = pty.openpty()
        done = subprocess.Popen(["cat"], stdin=master, stdout=subprocess.PIPE)
        assert run(slave)[0] == 0
        os.close(slave)
        os.close(master)
        text = done.communicate()[0].decode()
        texts.append(json.loads(text)["streams"])
    assert texts[0] == texts[1]
    assert texts[0]["stdout"]["tty"] and texts[0]["stdin"]["tty"]


def test_stdin_and_stdout_in_the_middle_of_files(worker, tmp_path):
    """What Python asks of a descriptor when it makes a stream (its position) is asked of the worker's own."""
    script = tmp_path / "s.py"
    script.write_text(
        "import sys\nprint(sys.stdin.readline(), sys.stdin.tell(), sys.stdout.tell(), sys.stdin.read())\n"
    )
    texts = []
    for run in (
        lambda i, o: plain(tmp_path, script, stdin=i, stdout=o),
        lambda i, o: worker.run(script, stdio=[i, o, worker.err.fileno()]).result(),
    ):
        (tmp_path / "in").write_text("first\nsecond\nthird\n")
        (tmp_path / "out").write_text("before\n")
        with open(tmp_path / "in", "rb", buffering=0) as source, open(tmp_path / "out", "ab", buffering=0) as target:
            source.seek(6)
            target.seek(0, 2)
            assert run(source.fileno(), target.fileno())[0] == 0
        texts.append((tmp_path / "out").read_text())
    assert texts[0] == texts[1] and "second" in texts[0]


SCRIPTS = {
    "exit 0": "import sys; sys.exit(0)",
    "exit none": "import sys; sys.exit()",
    "exit 3": "import sys; sys.exit(3)",
    "exit 300": "import sys; sys.exit(300)",
    "exit negative": "import sys; sys.exit(-1)",
    "exit text": "import sys; print('out', end=''); sys.exit('said on stderr')",
    "exit object": "raise SystemExit([1, 2])",
    "exception": """
        def inner(n):
            return 1 // n
        def outer():
            inner(0)  # the line to be shown
        outer()
        """,
    "chained exception": """
        try:
            {}['key']
        except KeyError as e:
            raise ValueError('second') from e
        """,
    "exception in exec": "exec(compile('1/0', '<made>', 'exec'))",
    "recursion": "def f(): f()\ntry: f()\nexcept RecursionError: print('caught')",
    "syntax error": "print('never')\nx = = 1\n",
    "indentation error": "if True:\nprint('never')\n",
    "null byte": "print(1)\0\n",
    "bad encoding": "# -*- coding: no-such-coding -*-\n",
    "latin-1": b"# -*- coding: latin-1 -*-\nprint(ascii('\xe9'))\n",
    "not utf-8": b"print('\xe9')\n",
    "bom": b"\xef\xbb\xbfprint('bom')\n",
    "future": "from __future__ import annotations\ndef f(a: nowhere): pass\nprint(f.__annotations__)",
    "no future": "def f(a: int): pass\nprint(f.__annotations__)",
    "doc": "'''The doc.'''\nprint(__doc__)",
    "module annotations": "x: int = 3\nprint(__annotations__)",
    "last line": "import sys; sys.stdout.write('no newline')",
    "empty": "",
    "os._exit": "import os; print('x', end=''); os._exit(3)",
    "abort": "import os; os.abort()",
    "segfault": "import ctypes; ctypes.string_at(0)",
    "sigterm": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "sigkill": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "sigint": """
        import os, signal
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            print('cleaned')
        """,
    "keyboard interrupt": "raise KeyboardInterrupt('stop')",
    "interrupt handled": """
        import os, signal
        try: os.kill(os.getpid(), 2)
        except KeyboardInterrupt: print('handled')
        """,
    "sigpipe": """
        import os; r, w = os.pipe(); os.close(r)
        try: os.write(w, b'x')
        except BrokenPipeError: print('EPIPE')
        """,
    "excepthook": """
        import sys
        sys.excepthook = lambda *a: print('hook', a[0], a[2].tb_lineno, a[1].__traceback__ is a[2])
        1/0
        """,
    "callback that looks at the last traceback": """
        import atexit, sys, traceback
        show = lambda: print([frame.name for frame in traceback.extract_tb(sys.last_traceback)])
        atexit.register(show)
        def inner(): 1 / 0
        inner()""",
    "broken excepthook": "import sys\ndef hook(*a): raise ValueError('hook')\nsys.excepthook = hook\n1/0",
    "traceback module": """
        import traceback, sys
        def hook(kind, value, trace):
            traceback.print_exception(value)
            print([f.name for f in traceback.extract_tb(trace)])
        sys.excepthook = hook
        1/0
        """,
    "atexit": """
        import atexit, sys
        atexit.register(print, 'first registered')
        atexit.register(print, 'second registered')
        print('main', sys.is_finalizing())
        """,
    "atexit after failure": "import atexit; atexit.register(print, 'at exit'); 1/0",
    "atexit and the script's file": """
        import atexit
        atexit.register(lambda: print([name for name in ('__file__', '__cached__', '__loader__') if name in globals()]))
        """,
    "the script's file behind a failure": """
        import atexit
        atexit.register(lambda: print([name for name in ('__file__', '__cached__') if name in globals()]))
        1 / 0
        """,
    "the script's file behind sys.exit": """
        import atexit, sys
        atexit.register(lambda: print([name for name in ('__file__', '__cached__') if name in globals()]))
        sys.exit(3)
        """,
    "the script's file behind a hook that fails": """
        import atexit, sys
        atexit.register(lambda: print([name for name in ('__file__', '__cached__') if name in globals()]))
        sys.excepthook = None
        1 / 0
        """,
    "atexit exits": "import atexit, os; atexit.register(os._exit, 7)",
    "threads": """
        import threading, time
        gate = threading.Event()
        def late():
            gate.wait()
            print('a thread ends the process')
        threading.Thread(target=late).start()
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        def after_main():
            threading.main_thread().join()
            gate.set()
        threading.Thread(target=after_main).start()
        print('main ends')
        """,
    "exit in a thread": """
        import threading, sys
        t = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join(); print('on')
        """,
    "exception in a thread": """
        import threading
        t = threading.Thread(target=lambda: 1/0, name='T'); t.start(); t.join(); print('on')
        """,
    "destructors": """
        import sys
        class Last:
            def __del__(self, print=print): print('destructor')
        cycle = Last(); cycle.me = cycle
        sys.kept = Last()
        """,
    "buffered file": """
        f = open('buffered.txt', 'w'); f.write('flushed at exit')
        import atexit; atexit.register(lambda: print(f.closed))
        """,
    "c stdio": "import ctypes; ctypes.CDLL(None).printf(b'from C '); print('from Python')",
    "warning": "import warnings; warnings.warn('careful')",
    "resource warning": "import warnings; warnings.simplefilter('always'); open('/dev/null'); print('on')",
    "closed stdout": "import os; os.close(1); print('lost')",
    "full disk": "import sys; sys.stdout = open('/dev/full', 'w'); print('lost')",
    "source": """
        import inspect
        def f():
            return 'a body'  # and a comment
        class C:
            x = 1
        print(inspect.getsource(f), inspect.getsource(C))
        """,
    "getfile": "import inspect, sys, __main__; print(inspect.getfile(__main__), inspect.getmodule(sys._getframe()))",
    "pickle": """
        import pickle
        class Point:
            def __init__(self, x): self.x = x
            def __eq__(self, other): return self.x == other.x
        def function(): return 1
        data = pickle.dumps([Point(3), Point, function])
        assert b'__main__' in data
        again = pickle.loads(data)
        print(again[0] == Point(3), again[1] is Point, again[2] is function)
        """,
    "not main": "if __name__ != '__main__': print('wrong')\nelse: print('main')",
    "runpy": """
        import runpy
        if __name__ == '__main__':
            print(sorted(runpy.run_path(__file__, run_name='other')))
        """,
    "global names": "print(sorted(globals()), sorted(locals()) == sorted(globals()), vars() is globals())",
    "subprocess": """
        import subprocess, sys
        code = 'import os; print(os.listdir("/proc/self/fd"))'
        print(subprocess.run([sys.executable, '-c', code], capture_output=True, close_fds=False).stdout)
        """,
    "fork": "import os\npid = os.fork()\nif pid == 0: os._exit(5)\nprint(os.waitpid(pid, 0)[1])",
    "dataclass": """
        import dataclasses, typing
        @dataclasses.dataclass
        class D:
            x: 'typing.List[int]'
        print(typing.get_type_hints(D))
        """,
    "asyncio": """
        import asyncio
        async def f(): return await asyncio.sleep(0, 'done')
        print(asyncio.run(f()))
        """,
    "sibling": "import sibling; print(sibling.__file__ == __file__.replace('script.py', 'sibling.py'))",
    "own json": "import json, sys; print(json.mine)",
    "site": "import sys; print(sys.modules['site'].ENABLE_USER_SITE, sys.path[1:])",
}
PROCESSES = """
    import multiprocessing as mp, os, pickle, sys
    class Job:
        def __init__(self, n): self.n = n
    def work(job):
        return job.n * 2, __name__ in ('__main__', '__mp_main__'), type(job).__module__, os.path.basename(sys.argv[0])
    if __name__ == '__main__':
        with mp.get_context({method!r}).Pool(2) as pool:
            print(pool.map(work, [Job(1), Job(2)]))
    """
SCRIPTS.update({f"multiprocessing {m}": PROCESSES.format(method=m) for m in ("spawn", "fork", "forkserver")})


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.filterwarnings("ignore")
def test_script_ends_as_under_python_itself(agent, tmp_path, name):
    text = SCRIPTS[name]
    data = text if isinstance(text, bytes) else textwrap.dedent(text).encode()
    script = tmp_path / "script.py"
    script.write_bytes(data)
    (tmp_path / "sibling.py").write_text("")
    if name == "own json":
        (tmp_path / "json.py").write_text("mine = 'not the one of the standard library'\n")
    expected = plain(tmp_path, script, cwd=tmp_path)
    for how in (agent.fork, agent.cold):
        worker = how()
        assert worker.run(script, cwd=tmp_path).result() == expected, how.__name__
        started = [m for m in worker.messages() if m["type"] == "started"]
        assert bool(started) == (name not in NEVER_START)
        if name != "own json":  # which only a fresh interpreter can be without the other one
            assert not started or "cold" not in started[0]


NEVER_START = ("syntax error", "indentation error", "null byte", "bad encoding", "not utf-8")


@pytest.mark.parametrize(
    "what", ["missing", "unreadable folder", "folder", "zip", "pyc", "missing module", "module in package"]
)
def test_what_is_no_plain_script(worker, tmp_path, what):
    """Python itself says what is wrong, in its own words, or runs it."""
    kind, script = "script", what
    if what == "folder":
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder/__main__.py").write_text("import sys; print('in a folder', sys.argv)")
    elif what == "unreadable folder":
        (tmp_path / what).mkdir()
    elif what == "zip":
        import zipfile

        with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
            archive.writestr("__main__.py", "import sys; print('in an archive', sys.path[0])")
    elif what == "pyc":
        import py_compile

        (tmp_path / "source.py").write_text("print('compiled', __file__)")
        py_compile.compile(str(tmp_path / "source.py"), cfile=str(tmp_path / "script.pyc"))
        script = "script.pyc"
    elif what == "missing module":
        kind, script = "module", "no_such_module"
    elif what == "module in package":
        (tmp_path / "package").mkdir()
        (tmp_path / "package/__init__.py").write_text("")
        kind, script = "module", "package.no_such_module"
    expected = plain(tmp_path, script, "arg", kind=kind, cwd=tmp_path)
    assert worker.run(script, "arg", kind=kind, cwd=tmp_path).result() == expected
    assert expected[0] == (0 if what in ("folder", "zip", "pyc") else 2 if what == "missing" else 1)


MODULES_THAT_FAIL = {
    "in the module": {"fails.py": "def f():\n    raise ValueError('here')\nf()\n"},
    "in its package": {"__init__.py": "print('once')\nraise ValueError('here')\n", "fails.py": ""},
    "by its syntax": {"__init__.py": "print('once')\n", "fails.py": "def f(:\n"},
    "by not being there": {"__init__.py": "print('once')\n"},
}


@pytest.mark.parametrize("how", MODULES_THAT_FAIL)
def test_module_that_fails(worker, tmp_path, how):
    """In the words of `python -m`, with the frames of runpy; what its package does is done once."""
    (tmp_path / "package").mkdir()
    for name, text in {"__init__.py": "", **MODULES_THAT_FAIL[how]}.items():
        (tmp_path / "package" / name).write_text(text)
    expected = plain(tmp_path, "package.fails", kind="module", cwd=tmp_path)
    assert expected[0] == 1 and expected[1].count("once") == ("once" in str(MODULES_THAT_FAIL[how]))
    assert worker.run("package.fails", kind="module", cwd=tmp_path).result() == expected


def test_environment_is_exactly_the_one_given(worker, tmp_path):
    script = tmp_path / "s.py"
    script.write_text(
        "import os, subprocess, json\n"
        "child = subprocess.run(['env', '-0'], stdout=subprocess.PIPE).stdout\n"
        "print(json.dumps([dict(os.environ), sorted(os.fsdecode(child).rstrip('\\0').split('\\0'))]))\n"
    )
    env = {"ONLY": "this", "RANK": "0", "TEXT": "caf\u00e9"}
    worker.run(script, cwd="/", base=env)
    status, out, err = worker.result()
    assert (status, err) == (0, "")
    environ, child = json.loads(out)
    assert environ == {**env, **({"LC_CTYPE": "C.UTF-8"} if "LC_CTYPE" in environ else {})}
    assert [pair for pair in child if not pair.startswith("LC_CTYPE")] == sorted(f"{k}={v}" for k, v in env.items())


def test_time_zone(worker, tmp_path):
    script = tmp_path / "s.py"
    script.write_text("import time; print(time.strftime('%H', time.localtime(0)))\n")
    assert worker.run(script, env={"TZ": "XYZ-5"}).result() == (0, "05\n", "")


def test_limits_and_dispositions_are_those_of_the_agent(tmp_path):
    """What a process inherits (limits, ignored signals, priority, core dumps) is passed on untouched."""
    import resource
    import signal

    def prepare():
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300))
        resource.setrlimit(resource.RLIMIT_CORE, (4096, 8192))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        os.nice(3)

    expected = plain(tmp_path, DESCRIBE, cwd=tmp_path, preexec_fn=prepare)
    with Agent() as agent:
        assert agent.start_zygote(DESCRIBE, preexec_fn=prepare)["type"] == "ready"
        for worker in (agent.fork(), agent.cold(preexec_fn=prepare)):
            seen = worker.run(DESCRIBE, cwd=tmp_path).result()
            assert (seen[0], seen[2]) == (0, "")
            compare_descriptions(expected[1], seen[1])
