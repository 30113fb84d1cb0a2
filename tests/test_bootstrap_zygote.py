"""The zygote and its spares: whose children they are, what is imported ahead and what never, how each of them ends."""

import ast
import email.message
import json
import os
import random
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import time
import types
from pathlib import Path

import pytest
import zygote_agent
from phalanx._bootstrap import forker, preload
from pidfd import pidfd_open
from sameness.prefix import Prefix
from share import free_user
from zygote_agent import BASE_ENV, Agent


@pytest.fixture
def agent():
    with Agent() as agent:
        yield agent


@pytest.fixture
def folder(tmp_path):
    """A function that writes files below the test's folder and returns its path."""

    def write(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__in__", "/")
            path = path if path.suffix else path.with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        return tmp_path

    return write


@pytest.fixture
def library(tmp_path_factory):
    """An agent whose Pythons find packages in a folder that is not the script's, and a function that writes them."""
    packages = tmp_path_factory.mktemp("packages") / "site-packages"  # by its name no code of the user's own

    def write(**modules):
        for name, text in modules.items():
            path = packages / (name.replace("__in__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))

    with Agent(env={"PYTHONPATH": str(packages)}) as agent:
        write.agent = agent
        yield write


def ends(pid_fd):
    ready, _, _ = select.select([pid_fd], [], [], zygote_agent.TIMEOUT_S)
    os.close(pid_fd)
    return bool(ready)


def run_env(library, **more):
    return {"PYTHONPATH": library.agent.env["PYTHONPATH"], **more}


# Processes.


def test_spare_is_the_agents_child_in_a_session_of_its_own(agent, folder):
    script = folder(script="import os; print(os.getppid(), os.getsid(0) == os.getpid())") / "script.py"
    ready = agent.start_zygote(script)
    assert ready["type"] == "ready" and ready["pid"] == agent.zygote_process.pid
    assert ready["modules"] > 20 and ready["ms"] >= 0
    spare = agent.fork()
    with open(f"/proc/{spare.pid}/stat") as file:
        _, parent, group, session = file.read().rpartition(")")[2].split()[:4]
    assert int(parent) == os.getpid() and int(group) == int(session) == spare.pid
    assert spare.run(script).result() == (0, f"{os.getpid()} True\n", "")


def test_many_spares_one_after_another(agent, folder):
    script = folder(script="import os; print(os.getpid())") / "script.py"
    agent.start_zygote(script)
    spares = [agent.fork() for _ in range(5)]
    results = [spare.run(script).result() for spare in reversed(spares)]
    assert [int(out) for _, out, _ in results] == [spare.pid for spare in reversed(spares)]


@pytest.mark.parametrize("kind", ["warm", "cold"])
def test_spare_ends_silently_when_nobody_wants_it(agent, folder, kind):
    script = folder(script="print('never')") / "script.py"
    with open(script.parent / "output", "w+b") as output:
        streams = {"stdout": output, "stderr": output}
        agent.start_zygote(script, **streams)
        spare = agent.fork() if kind == "warm" else agent.cold(**streams)
        spare.peer.close()
        assert spare.wait() == 0
        assert (script.parent / "output").read_bytes() == b""


def test_zygote_ends_when_nobody_wants_it(agent, folder):
    agent.start_zygote(folder(script="") / "script.py")
    agent.zygote.close()
    assert agent.zygote_process.wait(zygote_agent.TIMEOUT_S) == 0


@pytest.mark.parametrize("how", ["end of file", "killed"])
def test_workers_outlive_the_zygote(agent, folder, how):
    text = """
        import sys
        print('started')
        print(sys.stdin.readline())
        """
    script = folder(script=text) / "script.py"
    agent.start_zygote(script)
    running, waiting = agent.fork(), agent.fork()
    stdin, go = os.pipe()
    running.run(script, stdio=[stdin, running.out.fileno(), running.err.fileno()])
    assert running.peer.receive() == {"type": "started"}
    if how == "killed":
        agent.zygote_process.kill()
    else:
        agent.zygote.close()
    agent.zygote_process.wait(zygote_agent.TIMEOUT_S)
    waiting.run(script)
    assert waiting.result() == (0, "started\n\n", "")
    os.write(go, b"go on\n")
    os.close(go)
    os.close(stdin)
    assert running.result() == (0, "started\ngo on\n\n", "")


AGENT_TO_KILL = """
import os, sys, signal
sys.path.insert(0, {tests!r})
from zygote_agent import Agent
agent = Agent()
assert agent.start_zygote({script!r})["type"] == "ready"
workers = [agent.fork(), agent.fork(), agent.cold(), agent.cold()]
assert workers[2].peer.receive()["type"] == workers[3].peer.receive()["type"] == "spare"
for worker in workers[1:3]:
    worker.run({script!r})
    assert worker.peer.receive()["type"] == "started"
    assert worker.peer.receive()["type"] == "first_step"
os.kill(workers[1].pid, signal.SIGSTOP)
print(*[w.pid for w in workers], agent.zygote_process.pid, flush=True)
signal.pause()
"""


def test_nobody_outlives_the_agent(folder):
    """Waiting spares, a worker that never lets the interpreter lock go, a stopped one, the zygote: kill -9 ends all."""
    text = """
        import re, phalanx
        phalanx.step(1)
        re.match('(a*)*b', 'a' * 100)  # inside C, for ever
        """
    script = str(folder(script=text) / "script.py")
    tests = os.path.dirname(os.path.abspath(__file__))
    code = AGENT_TO_KILL.format(tests=tests, script=script)
    zygote_agent.become_subreaper()  # so that nobody else's children come our way unnoticed
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 5
        pid_fds = [pidfd_open(pid) for pid in pids]
        process.kill()
        process.wait()
        assert [ends(fd) for fd in pid_fds] == [True] * 5
        for pid in pids:
            os.waitpid(pid, 0)


def test_fork_that_fails_is_reported(folder):
    """A user who may have no third process. (Root may always: the zygote runs as somebody else.)"""
    python = "/usr/bin/python3"
    if os.getuid() != 0 or not os.access(python, os.X_OK):
        pytest.skip("needs root, and a Python that others may run")
    script = folder(script="") / "script.py"
    user = free_user()

    def become_limited():
        # The second is for what looks at sitecustomize; of a spare and its parent, one.
        resource.setrlimit(resource.RLIMIT_NPROC, (2, 2))
        os.setgid(user)
        os.setuid(user)

    with Agent(python=python) as agent:
        assert agent.start_zygote(script, cwd="/", preexec_fn=become_limited)["type"] == "ready"
        one, other = socket.socketpair()
        with one, other:
            agent.zygote.send({"type": "fork", "id": 17}, [other.fileno()])
            assert agent.zygote.receive() == {"type": "fork_failed", "id": 17, "reason": os.strerror(11)}


def test_who_looks_at_sitecustomize_is_alone(tmp_path, folder):
    """It has nothing by which the agent would take it for the zygote, and is deaf to what is meant for ranks."""
    seen = tmp_path / "seen"
    # By functions that nobody watches: the first that is watched ends it.
    (tmp_path / "sitecustomize.py").write_text(
        "import posix, signal, sys\n"
        "def link(fd):\n"
        "    try:\n"
        "        return posix.readlink(f'/proc/self/fd/{fd}')\n"
        "    except OSError:\n"
        "        return ''\n"
        "if sys.argv[0].endswith('site_probe.py'):\n"
        "    deaf = signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())\n"
        f"    seen = posix.open({str(seen)!r}, posix.O_WRONLY | posix.O_CREAT)\n"
        "    posix.write(seen, repr(([link(fd) for fd in range(3, 64)], deaf)).encode())\n"
    )
    with Agent(env={"PYTHONPATH": str(tmp_path)}) as agent:
        agent.start_zygote(folder(script="") / "script.py", close_fds=True)
        links, deaf = ast.literal_eval(seen.read_text())
    assert [link for link in links if link.startswith("socket:")] == []
    assert deaf


def test_without_privilege(folder):
    """All that is asked of the kernel works for an ordinary user."""
    python = "/usr/bin/python3"
    if os.getuid() != 0 or not os.access(python, os.X_OK):
        pytest.skip("needs root, and a Python that others may run")
    show = "import os; print(os.getuid(), open('/proc/self/cmdline').read().split('\\0'))"
    script = f"/dev/shm/phalanx-unprivileged-{os.getpid()}.py"
    user = free_user()

    def become_ordinary():
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)

    with open(script, "w") as file:
        file.write(show)
    try:
        with Agent(python=python) as agent:
            assert agent.start_zygote(script, cwd="/", preexec_fn=become_ordinary)["type"] == "ready"
            expected = (0, f"{user} ['{python}', '-u', '{script}', 'arg', '']\n", "")
            assert agent.fork().run(script, "arg", cwd="/").result() == expected
    finally:
        os.unlink(script)


@pytest.mark.parametrize("words", [1, 200])
def test_command_line_of_any_length(agent, folder, words):
    """Also one that is longer than the room that the padding makes."""
    script = folder(script="print(open('/proc/self/cmdline').read(), end='')") / "script.py"
    agent.start_zygote(script)
    args = ["word"] * words
    expected = "\0".join([sys.executable, "-u", str(script), *args, ""])
    assert agent.fork().run(script, *args).result() == (0, expected, "")


# Messages.


@pytest.mark.parametrize(
    "bad", ["unknown type", "no type", "not json", "too long", "fork without descriptor", "no object"]
)
def test_zygote_leaves_at_a_message_it_cannot_read(agent, folder, bad):
    agent.start_zygote(folder(script="") / "script.py")
    text = {
        "unknown type": b'{"type":"dance"}',
        "no type": b"{}",
        "not json": b"{]",
        "fork without descriptor": b'{"type":"fork","id":1}',
        "no object": b"[]",
        "too long": b"",
    }[bad]
    agent.zygote.socket.sendall(struct.pack("<I", (9 << 20) if bad == "too long" else len(text)) + text)
    assert agent.zygote.receive() is None
    assert agent.zygote_process.wait(zygote_agent.TIMEOUT_S) == 0


@pytest.mark.parametrize("kind", ["warm", "cold"])
def test_prepare_is_only_advice(agent, folder, kind):
    script = folder(script="print('ran')") / "script.py"
    agent.start_zygote(script)
    worker = agent.fork() if kind == "warm" else agent.cold()
    worker.peer.send({"type": "prepare", "script": str(script), "kind": "script", "a field to come": 1})
    assert worker.run(script).result() == (0, "ran\n", "")


@pytest.mark.parametrize("kind", ["warm", "cold"])
def test_worker_does_not_depend_on_who_listens(agent, folder, kind):
    script = folder(script="import sys, phalanx; sys.stdin.readline(); phalanx.step(3); print('ran')") / "script.py"
    agent.start_zygote(script)
    worker = agent.fork() if kind == "warm" else agent.cold()
    stdin, go = os.pipe()
    worker.run(script, stdio=[stdin, worker.out.fileno(), worker.err.fileno()])
    while worker.peer.receive()["type"] != "started":
        pass
    worker.peer.close()
    os.write(go, b"\n")
    assert worker.result() == (0, "ran\n", "")
    os.close(go)
    os.close(stdin)


def test_worker_that_closes_what_it_does_not_know(agent, folder):
    """Our socket's number may become a file of the script's: that is left alone."""
    text = """
        import os, phalanx
        os.closerange(3, 100)
        files = [open(f'file{i}', 'w') for i in range(20)]
        phalanx.step(1)
        if os.fork() == 0:
            for f in files: f.write('child ')
            for f in files: f.close()
            os._exit(0)
        os.wait()
        for f in files: f.close()
        print({open(f'file{i}').read() for i in range(20)})
        """
    where = folder(script=text)
    agent.start_zygote(where / "script.py")
    assert agent.fork().run(where / "script.py", cwd=where).result() == (0, "{'child '}\n", "")


# What is imported ahead of time, and what never.

# A plain sys.modules would end the prefix there.
REPORT = "import sys, json; loaded = sorted(sys.__dict__['modules'])\n"
PRINT = "print(json.dumps(loaded))\n"


def loaded_before_first_line(worker, script, **run):
    status, out, err = worker.run(script, **run).result()
    assert status == 0, err
    return json.loads(out)


def test_imports_of_the_text_are_there_before_its_first_line(library, folder):
    library(wanted="", package__in____init__="", package__in__sub="", package__in__other="", never="")
    text = (
        REPORT + "import wanted\nfrom package import sub\nimport package.other\nprint(end='')\nimport never\n" + PRINT
    )
    script = folder(script=text) / "script.py"
    assert library.agent.start_zygote(script)["type"] == "ready"
    loaded = loaded_before_first_line(library.agent.fork(), script, env=run_env(library))
    assert {"wanted", "package.sub", "package.other"} <= set(loaded)
    assert not {"never", "torch"} & set(loaded)
    assert "wanted" not in loaded_before_first_line(library.agent.cold(), script, env=run_env(library))


def test_only_libraries_that_do_not_care_are_imported_out_of_turn(library, folder):
    """networkx is one of them: torch brings it along. It lies hidden until the script imports it."""
    library(networkx=WHO, other=WHO)
    text = "import sys\nbefore = 'networkx' in sys.__dict__['modules']\nconfigure = print(end='')\n"
    text += "import networkx, other\nprint(before, networkx.who, other.who, networkx.__spec__.loader.name)\n"
    script = folder(script=text) / "script.py"
    assert library.agent.start_zygote(script, learnt=["networkx", "other"])["type"] == "ready"
    assert library.agent.fork().run(script, env=run_env(library)).result() == (0, "False zygote rank networkx\n", "")


WHO = "import sys; who = 'zygote' if type(sys.argv) is not list else 'rank'\n"


def test_checkpoints_are_imported_ahead_and_what_they_ask_of_torch_is_asked_before_the_fork(library, folder):
    """phalanx.checkpoint is of many modules: importing them takes 40 ms."""
    pytest.importorskip("torch")
    library(who=WHO)
    text = "from phalanx.checkpoint import ddp, selftest\nimport who\nprint(repr(selftest._state), who.who)\n"
    script = folder(script=text) / "script.py"
    assert library.agent.start_zygote(script)["type"] == "ready"
    status, out, err = library.agent.fork().run(script, env=run_env(library)).result()
    assert (status, out) == (0, "'' zygote\n"), err


def test_modules_of_the_scripts_own_tree_are_never_imported_ahead(library, folder):
    """Not even when a library would import one by its name: nothing behind that library is, either."""
    library(helper="origin = 'library'", uses="import helper", wanted="", behind="")
    where = folder(
        script=REPORT
        + "import helper, uses, behind\nassert helper.origin == 'own' and uses.helper is helper\n"
        + PRINT,
        helper="import wanted\norigin = 'own'",
    )
    script, learnt = where / "script.py", ["helper", "uses", "behind"]
    said = library.agent.start_zygote(script, learnt=learnt)
    assert (said["type"], said["module"]) == ("tainted", "uses")
    assert library.agent.start_zygote(script, learnt=learnt, deny=["uses"])["type"] == "ready"
    loaded = loaded_before_first_line(library.agent.fork(), script, env=run_env(library))
    assert "wanted" in loaded and not {"helper", "uses", "behind"} & set(loaded)


def test_a_folder_of_the_users_own_is_never_imported_ahead(folder, tmp_path_factory):
    """On PYTHONPATH, or by an editable install: it may be edited between two lives."""
    packages = tmp_path_factory.mktemp("work")
    (packages / "mine.py").write_text("version = 1")
    where = folder(script="import mine; print(mine.version)")
    env = {"PYTHONPATH": str(packages)}
    with Agent(env=env) as agent:
        agent.start_zygote(where / "script.py")
        for version in (1, 22):
            (packages / "mine.py").write_text(f"version = {version}")
            assert agent.fork().run(where / "script.py", env=env).result() == (0, f"{version}\n", "")


OF_ITS_OWN = {
    "a module that answers itself": "class M(types.ModuleType):\n    def __getattribute__(self, name):\n"
    "        return super().__getattribute__(name)\nsys.modules[__name__].__class__ = M",
    "an object": "class M: pass\nnew = M()\nvars(new).update(vars(sys.modules[__name__]))\nsys.modules[__name__] = new",
}


@pytest.mark.parametrize("what", OF_ITS_OWN)
def test_a_module_of_the_users_own_is_found_whatever_its_class(library, folder, tmp_path_factory, what):
    own = tmp_path_factory.mktemp("own")
    (own / "usermod.py").write_text(f"import sys, types\n{OF_ITS_OWN[what]}\n")
    library(wants="import usermod")
    library.agent.env["PYTHONPATH"] += os.pathsep + str(own)
    answer = library.agent.start_zygote(folder(script="import wants") / "script.py")
    assert (answer["type"], answer["module"]) == ("tainted", "wants"), answer
    assert answer["why"].endswith("usermod, which is the user's own")


def test_a_life_that_imports_nothing_more_teaches_nothing(library, folder):
    """Nor does what a worker itself needs between its fork and the script's first line."""
    library(wanted="")
    script = folder(script="import wanted, phalanx; phalanx.step(1)") / "script.py"
    library.agent.start_zygote(script)
    assert library.agent.fork().run(script, env=run_env(library)).messages()[-1]["modules"] == []


def test_own_modules_are_read_for_their_imports(library, folder):
    library(deep="")
    where = folder(
        script=REPORT + "from own import part\n" + PRINT,
        own__in____init__="from . import part",
        own__in__part="import deep",
    )
    library.agent.start_zygote(where / "script.py")
    loaded = loaded_before_first_line(library.agent.fork(), where / "script.py", env=run_env(library))
    assert "deep" in loaded and "own" not in loaded


def test_a_module_that_runs_is_main_while_it_imports(library, folder):
    """A library may ask whether somebody sits at a prompt, or which module runs."""
    library(asks="import __main__\nseen = hasattr(__main__, '__file__'), __main__.__spec__.name, __main__.__package__")
    where = folder(own__in____init__="", own__in__train=REPORT + "import asks\nprint(*asks.seen)\n" + PRINT)
    answer = library.agent.start_zygote("own.train", kind="module", cwd=where)
    assert answer["type"] == "ready", answer
    worker = library.agent.fork().run("own.train", kind="module", cwd=where, env=run_env(library))
    assert worker.result()[1].startswith("True own.train own\n"), worker.result()


def test_folders_of_data_are_no_modules(library, folder):
    """A folder called like a package (a run's output, say) does not make the package the script's own."""
    library(wandb="")
    where = folder(script=REPORT + "import wandb\n" + PRINT)
    (where / "wandb").mkdir()
    library.agent.start_zygote(where / "script.py")
    assert "wandb" in loaded_before_first_line(library.agent.fork(), where / "script.py", env=run_env(library))


@pytest.mark.parametrize(
    "change",
    ["os.environ['A'] = '1'", "os.environ.setdefault('A', '1')", "os.putenv('A', '1')", "del os.environ['PATH']"],
)
def test_what_follows_a_change_of_the_environment_is_never_imported_ahead(library, folder, change):
    library(early="", late="import os; seen = os.environ.get('A')")
    script = folder(script=REPORT + f"import os, early\n{change}\nimport late\n" + PRINT) / "script.py"
    library.agent.start_zygote(script)
    loaded = loaded_before_first_line(library.agent.fork(), script, env=run_env(library))
    assert "early" in loaded and "late" not in loaded


TAINTS = {
    "socket": ("import socket; kept = socket.socket()", "a socket"),
    "socket of a class": ("import socket\nclass C: kept = socket.socket()", "socket:"),
    "thread": ("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()", "a thread"),
    "process": ("import subprocess\nclass C: kept = subprocess.Popen(['sleep', '1'])", "a process"),
    "device": ("import os; kept = os.open('/dev/zero', os.O_RDONLY)", "/dev/zero"),
    "file": ("kept = open(__file__)", "an open file"),
    "descriptor": ("import os; kept = os.open(__file__, os.O_RDONLY)", "taints.py"),
    "epoll": ("import select; kept = select.epoll()", "epoll"),
    "database": ("import sqlite3; kept = sqlite3.connect(':memory:')", "SQLite"),
    "lock of processes": ("import multiprocessing as m; kept = m.Lock()", "a lock of multiprocessing"),
    "random numbers": ("import random; kept = random.Random()", "random numbers"),
    "pool": ("from concurrent.futures import ThreadPoolExecutor as T\nclass P(T): pass\nkept = P()", "a pool"),
    "rank": ("import os; rank = os.environ.get('RANK')", "RANK"),
    "local rank": ("import os; rank = int(os.getenv('LOCAL_RANK', '0'))", "LOCAL_RANK"),
    "world size": ("import os\ndef f(): return 'WORLD_SIZE' in os.environ\nf()", "WORLD_SIZE"),
    "devices": ("import os\ntry: os.environ['CUDA_VISIBLE_DEVICES']\nexcept Exception: pass", "CUDA_VISIBLE_DEVICES"),
    "run id": ("import os; os.environ.get('TORCHELASTIC_RUN_ID')", "TORCHELASTIC_RUN_ID"),
    "inner": ("import inner", "it imports inner: it reads RANK"),
    "whole environment": ("import os; kept = dict(os.environ)", "looks through all of the environment"),
    "list of the environment": ("import os; kept = list(os.environ)", "it keeps what it finds in the environment"),
    "items of the environment": ("import os\nfor k, v in os.environ.items(): k + v", "looks through all of the"),
    "text of all variables": (
        "import os; kept = '\\n'.join(map('='.join, os.environ.items()))",
        "it keeps what it finds in the environment",
    ),
    "bytes of all variables": (
        "import os; kept = str.encode('\\n'.join(map('='.join, os.environ.items())))",
        "it keeps what it finds in the environment",
    ),
    "text of all names": ("import os; kept = ' '.join(os.environ)", "it keeps what it finds in the environment"),
    "rank by its beginning": ("import os\nfor k in os.environ: k.startswith('LOCAL_')", "looks through all of the"),
    "rank set": ("import os; os.environ['RANK'] = '3'", "it sets RANK"),
    "environment by C": ("import ctypes; ctypes.CDLL(None).getenv(b'RANK')", "it calls getenv of the C library"),
    "process id": ("import os; kept = os.getpid()", "its process id"),
    "process id by name": ("from os import getpid\ndef f(): return getpid()\nf()", "its process id"),
    "finalizer": ("import multiprocessing.util as u\nu.Finalize(None, print, exitpriority=1)", "its process id"),
    "parent": ("import os; kept = os.getppid()", "its parent"),
    "session": ("import os; kept = os.getsid(0)", "its session"),
    "umask": ("import os; kept = os.umask(0o22)", "the umask"),
    "random bytes": ("import os; kept = os.urandom(8)", "it draws random numbers"),
    "token": ("import secrets; kept = secrets.token_hex()", "it draws random numbers"),
    "unique id": ("import uuid; kept = uuid.uuid4()", "it draws random numbers"),
    "random number": ("import random; kept = random.random()", "it seeds random numbers, or draws some"),
    "seed": ("import random; random.seed(3)", "it seeds random numbers, or draws some"),
    "caught": ("import os\ntry: os.getpid()\nexcept BaseException: pass", "its process id"),
    "program of the shell": ("import os; os.system('true')", "it starts a process"),
    "program by a name": (
        "import os\nos.waitpid(os.posix_spawnp('true', ['true'], os.environ), 0)",
        "it starts a process",
    ),
    "fork at a terminal": (
        "import os\npid, fd = os.forkpty()\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0)",
        "it starts a process",
    ),
    "program": ("import subprocess; subprocess.check_output(['true'])", "it starts a process"),
    "fork": ("import os\nif os.fork() == 0: os._exit(0)\nos.wait()", "it starts a process"),
    "names of the script": ("import sys; kept = vars(sys.modules['__main__'])", "it looks at __dict__ of __main__"),
    "terminal": ("import sys; kept = sys.stdout.isatty()", "a terminal"),
    "terminal by number": ("import os; kept = os.isatty(1)", "a terminal"),
    "stream set": ("import sys; sys.stdout.reconfigure(errors='replace')", "a standard stream"),
    "stream replaced": ("import io, sys; sys.stderr = io.StringIO()", "a standard stream"),
    "directory": ("import os; os.chdir('/')", "the working directory"),
    "arguments": ("import sys; sys.argv = ['other']", "sys.argv"),
    "timer": ("import signal; signal.setitimer(signal.ITIMER_VIRTUAL, 900)", "a timer"),
    "memory": ("import mmap\nclass C: kept = mmap.mmap(-1, 4096)", "memory that forks share"),
    "temporary folder": ("import tempfile; kept = tempfile.mkdtemp()", "a temporary file"),
    "failing": (
        "import sys\nif type(sys.argv) is not list: raise OSError('not now')",
        "its import fails: OSError: not now",
    ),
    "callback of forks": ("import os; os.register_at_fork(after_in_child=print)", "it wants to be told of forks"),
    "output by bytes": (
        "import sys; sys.stdout.buffer.write(b' '); sys.stdout.buffer.flush()",
        "it writes past sys.stdout",
    ),
    "arguments kept": ("from sys import argv", "it keeps sys.argv"),
    "arguments of the interpreter": ("import sys; kept = list(sys.orig_argv)", "it looks at sys.orig_argv"),
    "command line": ("kept = open('/proc/self/cmdline').read()", "it looks at /proc/self/cmdline"),
    "text of the environment": ("import os; kept = repr(os.environ)", "it looks through all of the environment"),
    "environment by pythonapi": ("import ctypes; ctypes.PyDLL(None).getenv", "it calls getenv of the C library"),
    "processors": ("import os; kept = os.sched_getaffinity(0)", "it asks which processors it may use"),
    "size of a terminal": (
        "import os\ntry: kept = os.get_terminal_size(1)\nexcept OSError: pass",
        "it asks for the size of a terminal",
    ),
    "id of a thread": ("import threading; kept = threading.get_native_id()", "it asks for the id of its thread"),
    "id of its own thread": (
        "import threading; kept = threading.current_thread().native_id",
        "it asks for the id of its thread",
    ),
    "id by the time": ("import uuid; kept = uuid.uuid1()", "it draws random numbers"),
    "device of random numbers": ("kept = open('/dev/urandom', 'rb').read(4)", "it draws random numbers"),
    "generator of its own": ("import random; kept = random.Random().random()", "it draws random numbers"),
    "key of multiprocessing": (
        "import multiprocessing; multiprocessing.current_process().authkey = b'lib'",
        "it sets the key of multiprocessing",
    ),
    "seed of NumPy": ("import numpy; numpy.random.seed(1)", "it seeds random numbers of NumPy"),
    "output by number": ("import os; os.write(2, b'')", "it writes past sys.stdout"),
    "where from": ("import traceback; traceback.print_stack()", "it says from where it was imported"),
}
if sys.version_info < (3, 10):
    del TAINTS["arguments of the interpreter"]  # there are none
if sys.version_info >= (3, 13):
    TAINTS["pool"] = (TAINTS["pool"][0], "it asks which processors it may use")  # before it is there


@pytest.mark.parametrize("what", TAINTS)
def test_module_that_taints_is_named_and_then_left_out(library, folder, what):
    """With what the script imports behind it, which may depend on it."""
    text, why = TAINTS[what]
    library(
        innocent="",
        depends="import taints" if what == "failing" else "try: import taints\nexcept Exception: pass",
        taints=text,
        inner="import os; os.environ.get('RANK')",
        behind="",
    )
    script = folder(script=REPORT + "import innocent, depends, taints, behind\n" + PRINT) / "script.py"
    answer = library.agent.start_zygote(script)
    assert (answer["type"], answer["module"]) == ("tainted", "depends") and why in answer["why"], answer
    assert library.agent.zygote_process.wait(zygote_agent.TIMEOUT_S) == 0
    assert library.agent.start_zygote(script, deny=["depends"])["type"] == "ready"
    loaded = loaded_before_first_line(library.agent.fork(), script, env=run_env(library, RANK="3"))
    assert "innocent" in loaded and not {"taints", "depends", "inner", "behind"} & set(loaded)


def test_what_imports_have_set_and_said_is_so_in_each_rank(library, folder):
    library(
        sets="import os; os.environ['SET'] = 'by sets'; os.environ.setdefault('KEPT', 'by'); del os.environ['GONE']\n"
        "assert os.environ['SET'] and 'GONE' not in os.environ",
        says="import sys, warnings; print('said'); warnings.warn('old', FutureWarning); sys.stderr.write('to err')",
    )
    library.agent.env.update(KEPT="outer", GONE="outer")
    text = "import sys\nloaded = 'sets' in sys.__dict__['modules']\nimport sets, says\nimport os, ctypes\n"
    text += "get = ctypes.CDLL(None).getenv\nget.restype = ctypes.c_char_p\n"
    text += "print(os.environ['SET'], get(b'SET'), os.environ['KEPT'], 'GONE' in os.environ, loaded)"
    script = folder(script=text) / "script.py"
    assert library.agent.start_zygote(script)["type"] == "ready"
    for _ in range(2):
        worker = library.agent.fork().run(script, env=run_env(library, KEPT="outer", GONE="outer"))
        status, out, err = worker.result()
        assert "cold" not in worker.messages()[0], err
        assert (status, out) == (0, "said\nby sets b'by sets' outer False True\n")
        assert err.endswith("to err") and err.count("FutureWarning: old") == 1


def test_who_has_kept_a_watched_function_keeps_one_that_works(library, folder):
    """A default of an argument cannot be exchanged; a name can."""
    library(keeps="import os\nfrom os import getpid\ndef ask(asked=os.getpid): return asked()")
    text = "import keeps, os\nprint(keeps.ask() == os.getpid() == keeps.getpid(), keeps.getpid is os.getpid)"
    script = folder(script=text) / "script.py"
    assert library.agent.start_zygote(script)["type"] == "ready"
    assert library.agent.fork().run(script, env=run_env(library)).result() == (0, "True True\n", "")


def test_a_name_of_a_package_is_asked_for_as_the_script_does(library, folder):
    """A lazy package imports a part then; what comes behind it finds that part there."""
    library(
        lazy__in____init__="import importlib\ndef __getattr__(name):\n    if name[:2] == '__': raise AttributeError\n"
        "    return globals().setdefault(name, importlib.import_module('lazy.' + name.lower()))",
        lazy__in__part="",
        lazy__in__other="",
        behind="import sys; SEEN = 'lazy.part' in sys.modules and 'lazy.other' in sys.modules",
    )
    text = "import lazy\nfrom lazy import Part\nX = lazy.Other\nimport behind\nassert behind.SEEN\n"
    script = folder(script=REPORT + text + PRINT) / "script.py"
    assert library.agent.start_zygote(script)["type"] == "ready"
    loaded = loaded_before_first_line(library.agent.fork(), script, env=run_env(library))
    assert {"lazy.part", "lazy.other", "behind"} <= set(loaded)


def test_a_look_at_what_a_class_holds(library, folder):
    """The name that is looked at is one of a module, no module itself."""
    library(coloured="class Colour:\n    RED = 'red'", behind="")
    text = REPORT + "from coloured import Colour\nC = Colour.RED\nimport behind\n" + PRINT
    script = folder(script=text) / "script.py"
    assert library.agent.start_zygote(script)["type"] == "ready"
    assert "coloured" in loaded_before_first_line(library.agent.fork(), script, env=run_env(library))


@pytest.mark.parametrize("error", ["KeyError(name)", "ValueError(name)", "SystemExit(3)"])
def test_a_look_that_fails_is_left_to_the_script(library, folder, error):
    library(lazy=f"def __getattr__(name):\n    if name[:2] == '__': raise AttributeError\n    raise {error}", behind="")
    script = folder(script="import lazy\nX = lazy.part\nimport behind\n") / "script.py"
    answer = library.agent.start_zygote(script)
    assert (answer["type"], answer["module"]) == ("tainted", "lazy") and answer["why"].startswith("its import fails: ")


def test_a_look_begins_at_the_longest_name_of_a_module():
    found = preload._longest_module("email.message.Message")
    assert found == (email.message, ["Message"])
    assert preload._longest_module("no_such_module.part") == (None, ["no_such_module", "part"])


def test_torch_behind_numpy_is_given_out_where_its_import_sets_variables(library, folder):
    """Both are hidden; with the first all that their imports have set is set."""
    library(stops="import os; os.getpid()")
    script = folder(script="import stops\nimport numpy\nimport torch\nprint(torch.__name__)") / "script.py"
    variable = "TORCHINDUCTOR_CACHE_DIR"
    base = {name: value for name, value in library.agent.env.items() if name != variable}
    library.agent.env = base
    assert library.agent.start_zygote(script, deny=["stops"])["type"] == "ready"
    worker = library.agent.fork().run(script, base=base)
    assert worker.result() == (0, "torch\n", "")
    assert worker.messages() == [{"type": "started"}]


def test_a_taint_costs_one_more_zygote_however_many_there_are(library, folder):
    library(**{f"reads{i}": "import os; rank = os.environ.get('RANK')" for i in range(5)})
    script = folder(script="import reads0, reads1, reads2, reads3, reads4; print(reads4.rank)") / "script.py"
    deny = []
    while library.agent.start_zygote(script, deny=deny)["type"] == "tainted":
        deny.append(library.agent.ready["module"])
    assert len(library.agent.zygotes) == 2
    assert library.agent.fork().run(script, env=run_env(library, RANK="3")).result() == (0, "3\n", "")


@pytest.mark.parametrize("value", ["sys.stdout", "random._inst", "random.random", "open('/dev/null').close()"])
def test_what_each_fork_has_anew_is_no_taint(library, folder, value):
    library(holds=f"import random, sys\nkept = {value}")
    assert library.agent.start_zygote(folder(script="import holds") / "script.py")["type"] == "ready"


def test_what_torchs_libraries_do_while_they_are_mapped_is_torchs_doing(library, folder, tmp_path):
    """They are mapped by a second thread while other modules are imported, which must not be blamed for it."""
    packages = library.agent.env["PYTHONPATH"]
    library(torch__in____init__="", sympy="")
    os.mkdir(packages + "/torch/lib")
    source = tmp_path / "opens.c"
    source.write_text(
        "#include <sys/socket.h>\n"
        "__attribute__((constructor)) static void start(void) { socket(AF_UNIX, SOCK_STREAM, 0); }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", packages + "/torch/lib/libtorch.so"], check=True)
    script = folder(script="import torch") / "script.py"
    answer = library.agent.start_zygote(script)
    assert (answer["type"], answer["module"]) == ("tainted", "torch") and "socket" in answer["why"]
    assert library.agent.start_zygote(script, deny=["torch"])["type"] == "ready"


def test_a_socket_that_was_only_garbage_is_no_taint(library, folder):
    library(leaves="import socket\nkept = socket.socket()\nloop = [kept]\nloop.append(loop)\ndel kept, loop")
    script = folder(script="import leaves; print('ran')") / "script.py"
    assert library.agent.start_zygote(script)["type"] == "ready"
    assert library.agent.fork().run(script, env=run_env(library)).result() == (0, "ran\n", "")


def test_zygote_of_a_rank_that_is_itself_a_rank(library, folder):
    """phalanx-run may itself have been started with RANK set: a library that copies the environment has the rank's."""
    library(copies="import os; copy = dict(os.environ)", shares="import os; there = os.environ.get('HOME')")
    library.agent.env["RANK"] = "7"
    text = "import shares, copies, os; print(copies.copy['RANK'], os.environ['RANK'])"
    script = folder(script=text) / "script.py"
    assert library.agent.start_zygote(script)["module"] == "copies"
    assert library.agent.start_zygote(script, deny=["copies"])["type"] == "ready"
    assert library.agent.fork().run(script, env=run_env(library, RANK="1")).result() == (0, "1 1\n", "")


def test_looking_through_the_environment_for_names_of_ones_own(library, folder):
    """As tqdm does: no variable of a rank is among them. One of the job's that comes later may be."""
    library(
        looks="import os\nFOUND = {k[6:].lower(): v for k, v in os.environ.items() if k.startswith('LOOKS_')}\n"
        "LOWER = [k for k in os.environ if k.lower().endswith('looks')]"
    )
    library.agent.env["LOOKS_A"] = "1"
    text = (
        "import sys; loaded = 'looks' in sys.__dict__['modules']\nimport looks; print(loaded, looks.FOUND, looks.LOWER)"
    )
    script = folder(script=text) / "script.py"
    assert library.agent.start_zygote(script)["type"] == "ready"
    env = run_env(library, LOOKS_A="1", RANK="1", TORCHELASTIC_RESTART_COUNT="2")
    assert library.agent.fork().run(script, env=env).result()[1] == "True {'a': '1'} []\n"
    worker = library.agent.fork().run(script, env={**env, "LOOKS_B": "2"})
    assert worker.result()[1] == "False {'a': '1', 'b': '2'} []\n"
    assert "LOOKS_B was not there" in worker.messages()[0]["cold"]


def test_import_that_fails_is_left_to_the_script(library, folder):
    library(
        package__in____init__="from package import good\nimport package.bad",
        package__in__good="",
        package__in__bad="import sys\nif type(sys.argv) is not list: raise RuntimeError('not now')",
        innocent="",
        behind="",
    )
    text = (
        REPORT + "import innocent, package.good, behind\nassert package.good is sys.modules['package.good']\n" + PRINT
    )
    script = folder(script=text) / "script.py"
    answer = library.agent.start_zygote(script)
    assert (answer["type"], answer["module"]) == ("tainted", "package.good") and "not now" in answer["why"]
    assert library.agent.start_zygote(script, deny=["package.good"])["type"] == "ready"
    loaded = loaded_before_first_line(library.agent.fork(), script, env=run_env(library))
    assert "innocent" in loaded and not {"package", "package.good", "behind"} & set(loaded)


def test_opting_out_by_the_environment(folder):
    with Agent(env={"PHALANX_WARM": "0"}) as agent:
        answer = agent.start_zygote(folder(script="import json") / "script.py")
        assert answer["type"] == "failed" and "PHALANX_WARM=0" in answer["reason"]
        assert agent.zygote_process.wait(zygote_agent.TIMEOUT_S) == 0


@pytest.mark.parametrize("line, out", [(1, True), (10, True), (11, False)])
def test_opting_out_by_a_line_of_the_script(agent, folder, line, out):
    script = folder(script="\n" * (line - 1) + "# phalanx: cold\nprint()\n") / "script.py"
    answer = agent.start_zygote(script)
    assert answer["type"] == ("failed" if out else "ready")
    if out:
        assert "the script asks for a cold start" in answer["reason"]


# What a spare cannot be, it becomes by starting afresh in the same process.


def assert_starts_afresh(spare, script, *args, **run):
    spare.run(script, *args, **run)
    messages = spare.messages()
    result = spare.result()
    assert messages[0]["type"] == "started" and messages[0]["cold"]
    return messages[0]["cold"], result


def test_hash_seed(agent, folder):
    script = folder(script="import os; print(hash('text'), os.getpid())") / "script.py"
    agent.start_zygote(script)
    env = {"PYTHONHASHSEED": "77"}
    expected = subprocess.run(
        [sys.executable, script], env={**os.environ, **env}, capture_output=True, text=True
    ).stdout
    spare = agent.fork()
    why, (status, out, _) = assert_starts_afresh(spare, script, env=env)
    assert "PYTHONHASHSEED" in why and status == 0
    assert out.split() == [expected.split()[0], str(spare.pid)]


@pytest.mark.parametrize("locale", [{}, {"LANG": "C"}, {"LANG": "C.UTF-8"}, {"LC_ALL": "C.UTF-8"}], ids=str)
def test_a_locale_that_python_sets_itself_is_no_difference(folder, locale):
    """Without a locale, as in most containers, the interpreter puts LC_CTYPE into its environment."""
    script = folder(script="import os, sys; print(sorted(os.environ.items()), sys.stdout.encoding)") / "script.py"
    env = {name: value for name, value in BASE_ENV.items() if not name.startswith(("LC_", "LANG"))}
    env.update(locale)
    expected = subprocess.run(
        [sys.executable, "-u", script], env={**env, "RANK": "0"}, capture_output=True, text=True, check=True
    ).stdout
    with Agent() as agent:
        agent.env = env
        agent.start_zygote(script)
        for worker in (agent.fork(), agent.cold()):
            assert worker.run(script, env={"RANK": "0"}, base=env).messages()[-1] == {"type": "started"}
            assert worker.result() == (0, expected, "")


def test_hash_seed_of_the_whole_job(folder):
    script = folder(script="print(hash('text'))") / "script.py"
    env = {"PYTHONHASHSEED": "77"}
    expected = subprocess.run(
        [sys.executable, script], env={**os.environ, **env}, capture_output=True, text=True
    ).stdout
    with Agent(env=env) as agent:
        agent.start_zygote(script)
        spare = agent.fork()
        assert spare.run(script, env=env).messages() == [{"type": "started"}]
        assert spare.result() == (0, expected, "")


def test_variable_that_a_module_has_read_while_it_was_imported(library, folder):
    library(reads="import os; seen = os.environ.get('SOME_SETTING', 'unset')")
    script = folder(script="import reads; print(reads.seen)") / "script.py"
    library.agent.start_zygote(script)
    assert library.agent.fork().run(script, env=run_env(library)).result() == (0, "unset\n", "")
    why, result = assert_starts_afresh(library.agent.fork(), script, env=run_env(library, SOME_SETTING="now"))
    assert "SOME_SETTING" in why and result == (0, "now\n", "")


def test_script_that_came_to_change_the_environment_first(library, folder):
    library(reads="import os; seen = os.environ.get('SOME_SETTING')")
    script = folder(script="import os, reads; print(reads.seen)") / "script.py"
    library.agent.start_zygote(script)
    spares = [library.agent.fork() for _ in range(2)]
    assert spares[0].run(script, env=run_env(library)).result() == (0, "None\n", "")
    script.write_text("import os; os.environ['SOME_SETTING'] = 'own'\nimport reads; print(reads.seen)")
    why, result = assert_starts_afresh(spares[1], script, env=run_env(library))
    assert "before it imports reads" in why and result == (0, "own\n", "")


def test_own_module_that_came_to_do_so(library, folder):
    library(reads="import os; seen = os.environ.get('SOME_SETTING')")
    where = folder(script="import own, reads; print(reads.seen)", own="import os")
    library.agent.start_zygote(where / "script.py")
    spare = library.agent.fork()
    folder(own="import os; os.environ['SOME_SETTING'] = 'own'")
    why, result = assert_starts_afresh(spare, where / "script.py", env=run_env(library))
    assert "before it imports reads" in why and result == (0, "own\n", "")


def test_library_that_was_changed_since(library, folder):
    library(version="number = 1")
    script = folder(script="import version; print(version.number)") / "script.py"
    library.agent.start_zygote(script)
    spare = library.agent.fork()
    library(version="number = 22")
    why, result = assert_starts_afresh(spare, script, env=run_env(library))
    assert "version.py has changed" in why and result == (0, "22\n", "")


# What a library does at its import that looks at folders and files, and what training does then.
LOOKS_AT_FILES = {
    "for installed packages": (
        "import importlib.metadata as m\ntry: m.version('nowhere')\nexcept m.PackageNotFoundError: pass",
        "open('checkpoint.pt', 'w').close()",
    ),
    "whether a log is there": ("import os; HAS = os.path.exists('train.log')", "open('train.log', 'a').write('more')"),
    "whether a log is there, by pathlib": (
        "import pathlib; HAS = pathlib.Path('train.log').is_file()",
        "open('train.log', 'a').write('more')",
    ),
    "whether a module is there": (
        "import importlib.util; HAS = importlib.util.find_spec('wave') is not None",
        "open('checkpoint.pt', 'w').close()",
    ),
    "for a help": ("import argparse; P = argparse.ArgumentParser(); P.add_argument('--a')", ""),
    "for a random order": ("import more_itertools.recipes", ""),
    "at arguments, and fails": (
        "import sys\ndef f():\n    a = sys.argv\n    try: 1 / 0\n    except ZeroDivisionError as e: x = e\nf()",
        "",
    ),
}


@pytest.mark.parametrize("what", LOOKS_AT_FILES)
def test_what_training_changes_leaves_spares_warm(library, folder, what):
    text, then = LOOKS_AT_FILES[what]
    place = folder(script="import looks, sys; print(looks.__name__)", **{"train.log": "first"})
    recipes = "import random\n_private_randrange = random.Random().randrange\n"
    library(looks=text, more_itertools__in____init__="", more_itertools__in__recipes=recipes)
    assert library.agent.start_zygote(place / "script.py", cwd=place)["type"] == "ready"
    spare = library.agent.fork()
    subprocess.run([sys.executable, "-c", then], cwd=place, check=True)
    spare.run(place / "script.py", cwd=place, env=run_env(library))
    assert "cold" not in spare.messages()[0]
    assert spare.result() == (0, "looks\n", "")


def test_arguments_that_a_module_has_read(library, folder):
    library(reads="import sys; seen = sys.argv[1:]")
    script = folder(script="import reads, sys; print(reads.seen, type(sys.argv))") / "script.py"
    library.agent.start_zygote(script, args=["a"])
    spares = [library.agent.fork() for _ in range(2)]
    expected = "['{0}'] <class 'list'>\n"
    assert spares[0].run(script, "a", env=run_env(library)).result() == (0, expected.format("a"), "")
    why, result = assert_starts_afresh(spares[1], script, "b", env=run_env(library))
    assert "sys.argv" in why and result == (0, expected.format("b"), "")


def test_what_the_script_has_put_into_sys_modules_stays_there(library, folder):
    """A stand-in, say, so that a part of torch finds that one."""
    library(functorch="import networkx", networkx="")
    text = "import sys, types\nown = sys.modules['networkx'] = types.ModuleType('networkx')\nimport functorch\n"
    script = folder(script=text + "print(functorch.networkx is own, sys.modules['networkx'] is own)") / "script.py"
    assert library.agent.start_zygote(script, learnt=["functorch", "networkx"])["type"] == "ready"
    worker = library.agent.fork().run(script, env=run_env(library))
    assert "the script has put networkx into sys.modules" in worker.messages()[-1]["cold"]
    assert worker.result() == (0, "True True\n", "")


# What the script does before it imports something that was imported ahead of its turn. These values do not stand in its
# text: others are there when it is imported (scanning/variables.py).
UNFIT = {
    "a variable": ("os.environ['SETTING'] = str('own')", "it has read SETTING"),
    "a variable of its C code": ("os.environ['MKL_CBWR'] = str(1)", "it may have read MKL_CBWR"),
    "a folder": ("sys.path.insert(0, vendored)", "networkx is another one on the script's sys.path"),
    "a finder": ("sys.meta_path.insert(0, type('F', (), {'find_spec': lambda *a: None}))", "an import hook"),
    "a path hook": ("sys.path_hooks.insert(0, zipimport.zipimporter)", "sys.path_hooks"),
    "an import function": (
        "builtins.__import__ = lambda *a, real=builtins.__import__: real(*a)",
        "builtins.__import__",
    ),
}


@pytest.mark.parametrize("what", UNFIT)
def test_what_was_imported_ahead_and_is_unfit_then(library, folder, tmp_path, what):
    """The life starts anew, as the same process, and says what no later one shall find imported."""
    change, why = UNFIT[what]
    library(networkx="import os; seen = os.environ.get('SETTING')")
    (tmp_path / "vendored").mkdir()
    (tmp_path / "vendored/networkx.py").write_text("seen = 'vendored'")
    text = "import builtins, os, sys, zipimport\nvendored = os.path.dirname(os.path.abspath(__file__)) + '/vendored'\n"
    script = folder(script=text + f"{change}\nimport networkx\nprint(networkx.seen, os.getpid())\n") / "script.py"
    assert library.agent.start_zygote(script, learnt=["networkx"])["type"] == "ready"
    plain = {**BASE_ENV, **run_env(library)}
    expected = subprocess.run([sys.executable, script], env=plain, capture_output=True, text=True).stdout.split()[0]
    spare = library.agent.fork().run(script, env=run_env(library))
    first, second = spare.messages()
    assert first == {"type": "started"}
    assert second["deny"] == "phalanx.late" and "networkx was imported ahead of its turn, but" in second["cold"]
    assert why in second["cold"]
    assert spare.result() == (0, f"{expected} {spare.pid}\n", "")
    assert library.agent.start_zygote(script, learnt=["networkx"], deny=["phalanx.late"])["type"] == "ready"
    spare = library.agent.fork().run(script, env=run_env(library))
    assert spare.messages() == [{"type": "started"}]
    assert spare.result() == (0, f"{expected} {spare.pid}\n", "")


def test_own_module_that_came_to_hide_a_preloaded_one(library, folder):
    library(common="origin = 'library'")
    where = folder(script="import common; print(common.origin)")
    script = where / "script.py"
    library.agent.start_zygote(script)
    spare = library.agent.fork()
    folder(common="origin = 'own'")
    why, result = assert_starts_afresh(spare, script, env=run_env(library))
    assert "common" in why and result == (0, "own\n", "")


def test_library_in_front_that_came_to_hide_a_preloaded_one(library, folder, tmp_path):
    """Two folders of installed packages on PYTHONPATH: in the second a new name hides nothing."""
    overlay = tmp_path / "overlay" / "site-packages"
    overlay.mkdir(parents=True)
    usual = library.agent.env["PYTHONPATH"]
    library.agent.env["PYTHONPATH"] = f"{overlay}:{usual}"
    library(common="origin = 'library'")
    (overlay / "first.py").write_text("origin = 'overlay'")
    script = folder(script="import common, first; print(common.origin, first.origin)") / "script.py"
    library.agent.start_zygote(script)
    spares = [library.agent.fork() for _ in range(2)]
    library(first="origin = 'behind'")
    spares[0].run(script, env=run_env(library))
    assert spares[0].result() == (0, "library overlay\n", "") and spares[0].messages() == [{"type": "started"}]
    (overlay / "common.py").write_text("origin = 'overlay'")
    why, result = assert_starts_afresh(spares[1], script, env=run_env(library))
    assert why == f"{overlay} has its own common" and result == (0, "overlay overlay\n", "")


@pytest.mark.parametrize("how", ["a new file", "an edited file", "a new user-site"])
def test_entries_of_the_path_that_came(folder, tmp_path, how):
    """By a .pth file, as pip install -e writes it, or with the user's own site-packages."""
    prefix = Prefix(tmp_path / "prefix")
    prefix.folder.joinpath("pyvenv.cfg").write_text("include-system-site-packages = true\n")  # it has a user-site
    env = {**BASE_ENV, "PYTHONUSERBASE": str(tmp_path / "user")}
    user_site = tmp_path / "user" / os.path.relpath(prefix.packages, prefix.folder)
    if how == "an edited file":
        (prefix.packages / "mine.pth").write_text("/nowhere\n")
    where = folder(script="import json, os\nos.getloadavg()\nimport mine\nprint(mine.X)", checkout__in__mine="X = 1")
    with Agent(str(prefix.python), base=env) as agent:
        assert agent.start_zygote(where / "script.py")["type"] == "ready"
        spare = agent.fork()
        if how == "a new user-site":
            user_site.mkdir(parents=True)
            (user_site / "mine.py").write_text("X = 1")
        else:
            (prefix.packages / "mine.pth").write_text(f"{where / 'checkout'}\n")
        why, result = assert_starts_afresh(spare, where / "script.py", env=env)
    assert why.endswith("says something else of sys.path than when the zygote started") and result == (0, "1\n", "")


# A life after another.


def test_script_edited_between_two_lives(agent, folder):
    where = folder(script="import helper; print(1, helper.x)", helper="x = 'one'")
    script = where / "script.py"
    agent.start_zygote(script)
    spares = [agent.fork() for _ in range(3)]
    assert spares[0].run(script).result() == (0, "1 one\n", "")
    folder(script="import helper; print(2, helper.x)", helper="x = 'second'")
    assert spares[1].run(script).result() == (0, "2 second\n", "")
    script.unlink()
    assert spares[2].run(script).result()[0] == 2


OLDER_TORCH = {
    "torch__in____init__": """
        class default_generator:
            seed = staticmethod(lambda: None)
        get_num_threads = set_num_threads = lambda *n: 1
        """,
    **{f"torch__in__distributed__in__{package}__init__": "" for package in ("", "nn__in__", "nn__in__jit__in__")},
    "torch__in__distributed__in__nn__in__jit__in__instantiator": """
        import sys, tempfile
        _TEMP_DIR = tempfile.TemporaryDirectory()
        INSTANTIATED_TEMPLATE_DIR_PATH = _TEMP_DIR.name
        sys.path.append(INSTANTIATED_TEMPLATE_DIR_PATH)
        """,
}


def test_folder_that_older_torches_make_while_they_are_imported(library, folder):
    """Each life has one of its own, and takes no other's along when it ends; test_bootstrap_torch.py asks real ones."""
    library(**OLDER_TORCH)
    text = """
        import os, sys, torch.distributed.nn.jit.instantiator as torchs
        name = torchs.INSTANTIATED_TEMPLATE_DIR_PATH
        print(name, sys.path.count(name), os.path.isdir(name), torchs._TEMP_DIR.name == name)
        """
    script = folder(script=text) / "script.py"
    assert library.agent.start_zygote(script)["type"] == "ready"
    results = [library.agent.fork().run(script, env=run_env(library)).result() for _ in range(2)]
    first, second = (out.split(" ", 1) for _, out, _ in results)
    assert [status for status, _, _ in results] == [0, 0] and first[0] != second[0]
    assert first[1] == second[1] == "1 True True\n"
    assert not os.path.exists(first[0]) and not os.path.exists(second[0])


def test_random_numbers_are_fresh_in_each_life(agent, folder):
    text = "import random, uuid, tempfile, multiprocessing as mp, os\n"
    text += "print(random.random(), uuid.uuid4(), next(tempfile._get_candidate_names()))\n"
    text += "print(mp.current_process().authkey.hex())"
    try:
        import numpy  # noqa: F401

        text = "import numpy\n" + text + "\nprint(numpy.random.rand())"
    except ImportError:
        pass
    script = folder(script=text) / "script.py"
    agent.start_zygote(script)
    results = [agent.fork().run(script).result() for _ in range(2)]
    assert [(status, err) for status, _, err in results] == [(0, "")] * 2
    first, second = (out.split() for _, out, _ in results)
    assert len(first) == len(second) >= 4
    assert all(a != b for a, b in zip(first, second)), (first, second)


def test_seeded_numbers_are_those_of_any_process(agent, folder):
    script = folder(script="import random; random.seed(5); print(random.random())") / "script.py"
    agent.start_zygote(script)
    assert agent.fork().run(script).result() == (0, f"{random.Random(5).random()}\n", "")


def pending_signals(pid):
    """Of the process, as the kernel's bits."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^ShdPnd:\s*(\w+)$", status, re.MULTILINE)[1], 16)


def signalled_behind_its_request(agent, script, number):
    """What becomes of a spare that gets that signal before it has looked at its request."""
    spare = agent.fork()
    os.kill(spare.pid, signal.SIGSTOP)
    os.waitpid(spare.pid, os.WUNTRACED)
    spare.run(script)
    os.kill(spare.pid, number)
    os.kill(spare.pid, signal.SIGCONT)
    return spare.result()


def test_a_signal_behind_the_request_is_the_ranks(agent, folder):
    """What stops a job between a rank's start and its first line."""
    script = folder(script="print('ran')") / "script.py"
    agent.start_zygote(script)
    assert signalled_behind_its_request(agent, script, signal.SIGTERM) == (-signal.SIGTERM, "", "")


@pytest.mark.parametrize("script", ["print('ran')\n", "print('no Python\n"])
def test_an_interrupt_behind_the_request_is_told_on_the_ranks_stderr(agent, folder, script):
    """Not in the zygote's last words; so is one where the spare becomes a plain Python."""
    path = folder(script=script) / "script.py"
    assert agent.start_zygote(path)["type"] == "ready"
    status, out, err = signalled_behind_its_request(agent, path, signal.SIGINT)
    assert (status, out) == (-signal.SIGINT, "") and err.endswith("KeyboardInterrupt\n")


@pytest.mark.parametrize("is_warm", [True, False])
def test_ranks_without_a_debugger_pass_breakpoints_over_where_python_reads_no_variables(folder, is_warm):
    where = folder(
        script="breakpoint(); breakpoint('own', x=1); print('past')", wrapper=f'exec {sys.executable} -E "$@"'
    )
    wrapper, script = where / "wrapper.py", where / "script.py"
    wrapper.write_text("#!/bin/sh\n" + wrapper.read_text())
    wrapper.chmod(0o755)
    with Agent(str(wrapper)) as agent:
        if is_warm:
            assert agent.start_zygote(script)["type"] == "ready"
        worker = agent.fork() if is_warm else agent.cold()
        assert worker.run(script, env={"PYTHONBREAKPOINT": "0"}).result() == (0, "past\n", "")


@pytest.mark.parametrize(
    ("version", "options", "malloc", "is_cold"),
    [
        ((3, 8), ["-X", "dev"], None, True),
        ((3, 8), [], "pymalloc_debug", True),
        ((3, 8), ["-E"], "debug", False),
        ((3, 8), [], "malloc", False),
        ((3, 9), ["-X", "dev"], "debug", False),
    ],
)
def test_where_python_crashes_at_the_end_of_a_fork(version, options, malloc, is_cold):
    flags = types.SimpleNamespace(dev_mode="dev" in options, ignore_environment=int("-E" in options))
    why = forker._why_no_fork(version, flags, malloc)
    assert (why is not None) == is_cold


def test_signals_for_ranks_end_neither_zygote_nor_spare(agent, folder):
    """A scheduler sends them to everything of a node. The script finds them as any fresh Python does, and one that was
    ignored from the start, as in the background of a shell, ignored."""
    text = """
        import signal
        words = {signal.default_int_handler: "interrupt", signal.SIG_DFL: "default", signal.SIG_IGN: "ignored"}
        names = "SIGINT SIGTERM SIGHUP SIGUSR1 SIGUSR2 SIGQUIT".split()
        print(*(words[signal.getsignal(getattr(signal, name))] for name in names))
        """
    script = folder(script=text) / "script.py"

    def hear():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run in such a background themselves
        signal.signal(signal.SIGQUIT, signal.SIG_IGN)

    agent.start_zygote(script, preexec_fn=hear)
    spare = agent.fork()
    for pid in (agent.zygote_process.pid, spare.pid):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(pid, number)
    while pending_signals(spare.pid) != 0:
        time.sleep(0.01)  # nobody tells when a process has read a signal
    for waiting in (spare, agent.fork()):
        assert waiting.run(script).result() == (0, "interrupt default default default default ignored\n", "")
