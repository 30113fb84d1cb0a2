"""What a rank is given at its start, warm and cold, where words, names and scripts are unusual; and what a life that
starts anew is given once more."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from zygote_agent import Agent


@pytest.fixture
def agent():
    with Agent() as agent:
        yield agent


def start_cold_at(variable):
    """What makes a spare start afresh."""
    return {variable: "1"}


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def under_python(script, *args, **popen):
    """(status, stdout, stderr)"""
    done = subprocess.run([sys.executable, "-u", script, *args], capture_output=True, text=True, **popen)
    return done.returncode, done.stdout, done.stderr


def test_a_spare_with_many_arguments_starts_afresh(agent, tmp_path):
    """As many as a glob of shards gives: more than the kernel takes in one word."""
    script = write(tmp_path / "script.py", "import sys; print(len(sys.argv), sys.argv[-1])")
    words = [f"data/a-shard-with-a-name-as-datasets-have-them-{number:05}.parquet" for number in range(3000)]
    agent.start_zygote(script)
    worker = agent.fork().run(script, *words, env=start_cold_at("PYTHONHASHSEED"))
    assert "PYTHONHASHSEED" in worker.messages()[0]["cold"]
    assert worker.result() == (0, f"3001 {words[-1]}\n", "")


def on_a_pipe(text, run):
    """What `run(descriptor)` comes to, with a text to be read there."""
    source, target = os.pipe()
    os.write(target, text.encode())
    os.close(target)
    try:
        return run(source)
    finally:
        os.close(source)


TEXTS_ON_A_PIPE = {
    "runs": "import sys\nprint('hello', sys.argv, __file__)\n",
    "fails": "1 / 0\n",
    "is no Python": "x = = 1\n",
}


@pytest.mark.parametrize("text", TEXTS_ON_A_PIPE)
@pytest.mark.parametrize("kind", ["warm", "cold"])
def test_a_script_on_a_pipe_is_read_by_python_alone(agent, tmp_path, kind, text):
    text = TEXTS_ON_A_PIPE[text]
    expected = on_a_pipe(text, lambda fd: under_python("/dev/stdin", "word", cwd=tmp_path, stdin=fd))
    # As a launch has it where the script was a file when the zygote began.
    agent.start_zygote(write(tmp_path / "script.py", ""))
    worker = agent.fork() if kind == "warm" else agent.cold()
    streams = worker.out.fileno(), worker.err.fileno()
    on_a_pipe(text, lambda fd: worker.run("/dev/stdin", "word", cwd=tmp_path, stdio=[fd, *streams]))
    assert worker.result() == expected


@pytest.mark.parametrize("what", ["/dev/stdin", "a named pipe"])
def test_no_zygote_reads_what_can_be_read_once(agent, tmp_path, what):
    if what == "a named pipe":
        os.mkfifo(tmp_path / what)
    answer = agent.start_zygote(what, cwd=tmp_path, stdin=subprocess.DEVNULL)
    assert answer == {"type": "failed", "reason": f"{what} is a pipe or a device, whose text can be read once"}


def test_a_script_on_a_named_pipe(agent, tmp_path):
    os.mkfifo(tmp_path / "script.py")
    worker = agent.cold().run("script.py", cwd=tmp_path)
    (tmp_path / "script.py").write_text("print('hello')\n")
    assert worker.result() == (0, "hello\n", "")


# Of the standard library, what the bootstrap imports for itself and Python itself does not.
STANDARD = "contextlib copy ctypes functools json operator random selectors signal socket struct token traceback types"


@pytest.fixture
def shadows(tmp_path):
    """A folder for PYTHONPATH that has a module by each of these names that no Python imports at its start."""
    names = f"print(*set({STANDARD!r}.split()) - set(__import__('sys').modules))"
    names = subprocess.run([sys.executable, "-c", names], capture_output=True, text=True, check=True).stdout.split()
    assert {"json", "selectors", "signal"} <= set(names)
    for name in names:
        write(tmp_path / "shadows" / f"{name}.py", f"print('here is', {name!r})")
    return tmp_path / "shadows"


@pytest.mark.parametrize("kind", ["warm", "cold"])
@pytest.mark.parametrize("imports", ["", "signal, json, selectors"])
def test_a_folder_on_pythonpath_with_names_of_the_standard_library(shadows, tmp_path, kind, imports):
    """Nothing of it runs but what the script imports, and that is what the script is given."""
    text = f"import {imports}\nprint(signal.__file__)" if imports else "print('ran')"
    script = write(tmp_path / "script.py", text)
    with Agent(env={"PYTHONPATH": str(shadows)}) as agent:
        expected = under_python(script, env=agent.env)
        assert expected[1].count("here is") == len(imports.split())
        assert agent.start_zygote(script)["type"] == "ready"
        worker = agent.fork() if kind == "warm" else agent.cold()
        assert worker.run(script, base=agent.env).result() == expected
        assert worker.messages()[-1] == {"type": "started"}


LOCALES = {
    "ASCII": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "UTF-8": {"LC_ALL": "C.UTF-8"},
}


@pytest.mark.parametrize("locale", LOCALES)
@pytest.mark.parametrize("kind", ["warm", "cold", "afresh"])
def test_names_in_any_locale(tmp_path, kind, locale):
    """Bytes of variables, words and folders are what they are under Python; also where the new life has another."""
    folder = tmp_path / "jos\u00e9 \udce9"
    text = "import os, sys; print(os.environb[b'WHO'], *map(os.fsencode, [*sys.argv, os.getcwd()]))"
    script = write(folder / "script \u00e9.py", text)
    env = {"PATH": os.environ["PATH"], "WHO": "jos\u00e9 \udcff", **LOCALES[locale]}
    with Agent(base=env) as agent:
        agent.start_zygote(script.name, cwd=folder)
        worker = agent.cold() if kind == "cold" else agent.fork()
        if kind == "afresh":
            env = {**env, **LOCALES["UTF-8" if locale == "ASCII" else "ASCII"]}
        expected = under_python(script.name, "\u00e9 \udce9", cwd=folder, env=env)
        assert (expected[0], expected[2]) == (0, "")
        worker.run(script.name, "\u00e9 \udce9", cwd=folder, base=env)
        assert ("cold" in worker.messages()[-1]) == (kind == "afresh")
        assert worker.result() == expected


def test_what_is_said_of_a_folder_that_is_no_text(tmp_path):
    """The agent would close the socket at half a character."""
    folder = tmp_path / "packages \udce9" / "site-packages"
    write(folder / "library.py", "")
    script = write(tmp_path / "script.py", "import library; print('ran')")
    with Agent(env={"PYTHONPATH": str(folder)}) as agent:
        agent.start_zygote(script)
        worker = agent.fork()
        write(folder / "library.py", "changed = True")
        why = worker.run(script, base=agent.env).messages()[0]["cold"]
        assert why == f"{tmp_path}/packages \\xe9/site-packages/library.py has changed since it was imported"
        assert worker.result() == (0, "ran\n", "")


WRAPPER = """#!/bin/sh
export SITE_ROOT=/opt/site PATH="/opt/site/bin:$PATH" LD_BIND_NOW=1 {more}
unset NEEDLESS
exec {python} "$@"
"""


def test_options_of_an_interpreter_that_keeps_no_original_words():
    """Before Python 3.10: they are read from the kernel, so that what a wrapper gave is given on."""
    own = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python")
    text = f"import sys; del sys.orig_argv; sys.path.insert(0, {own!r})\n"
    text += "from phalanx._bootstrap import linux; print(linux.interpreter_options())"
    words = [sys.executable, "-I", "-W", "error", "-u"]
    assert subprocess.run([*words, "-c", text], capture_output=True, text=True).stdout == f"{words}\n"


@pytest.fixture
def wrapper(tmp_path):
    """A function that writes a wrapper of the interpreter."""

    def write_wrapper(more=""):
        path = write(tmp_path / "python", WRAPPER.format(python=sys.executable, more=more))
        path.chmod(0o755)
        return str(path)

    return write_wrapper


@pytest.mark.parametrize("kind", ["warm", "cold", "afresh"])
def test_what_a_wrapper_of_the_interpreter_exports(wrapper, tmp_path, kind):
    """Whole environments are compared, and those that the kernel shows."""
    text = "import os\nfor e in os.environb, sorted(open('/proc/self/environ', 'rb').read().split(b'\\0')):\n"
    script = write(tmp_path / "script.py", text + "    print(sorted(e.items()) if e is os.environb else e)\n")
    env = {"PATH": os.environ["PATH"], "NEEDLESS": "1", "LC_ALL": "C.UTF-8", "RANK": "1"}
    given = {name: value for name, value in env.items() if name != "RANK"}
    with Agent(wrapper(), base=given) as agent:
        assert agent.start_zygote(script, given=given)["type"] == "ready"
        worker = agent.cold() if kind == "cold" else agent.fork()
        if kind == "afresh":
            env["PYTHONHASHSEED"] = "1"
        expected = subprocess.run([wrapper(), "-u", script], env=env, capture_output=True, text=True, check=True)
        assert expected.stdout.count("SITE_ROOT") == 2 and "NEEDLESS" not in expected.stdout
        worker.run(script, base=env)
        assert ("cold" in worker.messages()[-1]) == (kind == "afresh")
        assert worker.result() == (0, expected.stdout, "")


def test_a_wrapper_that_makes_a_ranks_variable(wrapper, tmp_path):
    script = write(tmp_path / "script.py", "")
    with Agent(wrapper("CUDA_VISIBLE_DEVICES=${LOCAL_RANK:-0}")) as agent:
        why = "what starts Python sets CUDA_VISIBLE_DEVICES, which is another one in each rank"
        assert agent.start_zygote(script, given=agent.env) == {"type": "failed", "reason": why}


@pytest.fixture
def begins_anew(tmp_path):
    """A function that runs a script whose life begins anew at its `import networkx`, and gives (result, messages)."""
    packages = tmp_path / "site-packages"
    write(packages / "networkx.py", "import os; seen = os.environ.get('SETTING')")
    with Agent(env={"PYTHONPATH": str(packages)}) as agent:

        def run(before, after, **popen):
            text = textwrap.dedent(before) + "os.environ['SETTING'] = 'own'\nimport networkx\n" + textwrap.dedent(after)
            script = write(tmp_path / "script.py", "import os, signal, sys, threading\n" + text)
            assert agent.start_zygote(script, learnt=["networkx"], **popen)["type"] == "ready"
            worker = agent.fork().run(script, base=agent.env)
            messages = worker.messages()
            return worker.result(), messages

        yield run


INHERITED = """
    import resource
    def inherited():
        ignored = {number for number in range(1, 32) if signal.getsignal(number) is signal.SIG_IGN}
        limits = [resource.getrlimit(limit) for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)]
        return sorted(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0), ignored, limits
    print(inherited(), signal.getitimer(signal.ITIMER_REAL))
    """
CHANGED = """
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, print)
    resource.setrlimit(resource.RLIMIT_NOFILE, (99, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    signal.setitimer(signal.ITIMER_REAL, 500)
    """


@pytest.mark.parametrize("thread", [False, True])
def test_a_life_that_begins_anew_inherits_what_the_first_had(begins_anew, thread):
    def ignore_hangups():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    more = "os.environ['SETTING'] = 'own'\n"
    more += "t = threading.Thread(target=__import__, args=['networkx'])\nt.start(); t.join()\n"
    result, messages = begins_anew(
        textwrap.dedent(INHERITED) + textwrap.dedent(CHANGED) + (more if thread else ""), "", preexec_fn=ignore_hangups
    )
    assert "SETTING" in messages[1]["cold"]
    status, out, err = result
    assert (status, err) == (0, "")
    first, second = out.splitlines()
    assert first == second and "{1, " in first  # of signals: SIGHUP


@pytest.mark.parametrize(
    "before",
    [
        "sys.stdout = None",
        "sys.stdout = open(os.devnull, 'w'); sys.stdout.close()",
        "sys.stdout = type('Tee', (), {'write': lambda self, text: None})()",
        "os.closerange(3, 100)",
        "os.closerange(3, 100); files = [open(os.devnull) for _ in range(20)]",
    ],
)
def test_a_life_begins_anew_whatever_it_has_done_to_its_descriptors(begins_anew, before):
    result, _ = begins_anew(before + "\n", "sys.stdout = sys.__stdout__\nos.write(1, networkx.seen.encode())")
    assert result == (0, "own", "")
