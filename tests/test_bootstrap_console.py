"""A rank that writes to a console whose reader has gone: what it writes counts as written."""

import os
import socket
import textwrap

import pytest
from zygote_agent import Agent


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    script = tmp_path_factory.mktemp("zygote") / "any.py"
    script.write_text("")
    with Agent() as agent:
        assert agent.start_zygote(script, env={**agent.env, "PHALANX_PRELOAD": "logging"})["type"] == "ready"
        yield agent


@pytest.fixture(params=["warm", "cold"])
def worker(agent, request):
    worker = agent.fork() if request.param == "warm" else agent.cold()
    yield worker
    worker.end()


def ends_of(kind):
    """(who reads, who writes), as descriptors."""
    if kind == "pipe":
        return os.pipe()
    if kind == "terminal":
        return os.openpty()
    return [end.detach() for end in socket.socketpair()]


WRITES = """
    import io, logging, sys
    open("ready", "w").close()
    open("go").close()
    print("lost")
    assert sys.stdout.buffer.write(b"lost") == 4
    sys.stdout.writelines(["a\\n", "b\\n"])
    sys.stdout.flush()
    logging.warning("lost")
    raw = sys.stdout.buffer
    print(type(raw).__name__, isinstance(raw, io.FileIO), repr(raw), file=open("told", "w"))
    """


@pytest.mark.parametrize("kind", ["pipe", "socket", "terminal"])
def test_words_that_nobody_reads_end_nothing(worker, tmp_path, kind):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(WRITES))
    for meeting in ("ready", "go"):
        os.mkfifo(tmp_path / meeting)
    reader, writer = ends_of(kind)
    with open(os.devnull) as null:
        worker.run(script, cwd=tmp_path, stdio=[null.fileno(), writer, writer])
        (tmp_path / "ready").open().close()
        os.close(writer)
        os.close(reader)
        (tmp_path / "go").open("w").close()
        assert worker.wait() == 0
    assert (tmp_path / "told").read_text() == "FileIO True <_io.FileIO name='<stdout>' mode='wb' closefd=False>\n"


def test_what_is_no_console_fails_as_ever(worker, tmp_path):
    """A pipe of the script's own, and a full device."""
    script = tmp_path / "script.py"
    body = """
        import os
        reader, writer = os.pipe()
        os.close(reader)
        for write in (lambda: open(writer, "wb", buffering=0).write(b"x"), lambda: print("x")):
            try:
                write()
                os._exit(1)
            except OSError as error:
                os.write(2, f"{error.strerror}\\n".encode())
        """
    script.write_text(textwrap.dedent(body))
    with open(os.devnull) as null, open("/dev/full", "wb") as full, open(str(tmp_path / "err"), "wb") as err:
        worker.run(script, cwd=tmp_path, stdio=[null.fileno(), full.fileno(), err.fileno()])
        status = worker.wait()
    assert (status, (tmp_path / "err").read_text()) == (0, "Broken pipe\nNo space left on device\n")
