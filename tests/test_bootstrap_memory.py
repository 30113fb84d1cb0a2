"""The checkpoint socket's way into a rank: the fourth descriptor of `run`, in warm, cold and restarted workers."""

import json
import os
import socket
import textwrap

import pytest
from zygote_agent import TIMEOUT_S, Agent

SCRIPT = """
    import json, os, socket
    from phalanx._bootstrap import memory

    def describe():
        fd = memory.socket_fd()
        return {"fd": fd, "inheritable": fd >= 0 and os.get_inheritable(fd)}

    found = describe()
    if found["fd"] >= 0:
        socket.socket(fileno=os.dup(found["fd"])).send(b"from the rank")
    pid = os.fork()
    if pid == 0:
        print(json.dumps(describe()), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    if found["fd"] >= 0:
        os.close(found["fd"])
    print(json.dumps([found, describe()]), flush=True)
    os._exit(0)
"""
NONE = {"fd": -1, "inheritable": False}


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    script = tmp_path_factory.mktemp("zygote") / "any.py"
    script.write_text("import logging\n")
    with Agent() as agent:
        assert agent.start_zygote(script)["type"] == "ready"
        yield agent


# The last is a spare that must become a fresh interpreter, because Python reads that variable when it starts.
@pytest.fixture(params=["warm", "cold", "restarted"])
def run(agent, request, tmp_path):
    def run(sockets):
        worker = agent.cold() if request.param == "cold" else agent.fork()
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(SCRIPT))
        env = {"PYTHONHASHSEED": "7"} if request.param == "restarted" else {}
        with open(os.devnull) as null:
            stdio = [null.fileno(), worker.out.fileno(), worker.err.fileno(), *sockets]
            worker.run(script, cwd=tmp_path, stdio=stdio, env=env)
        status, out, err = worker.result()
        assert (status, err) == (0, "")
        return [json.loads(line) for line in out.splitlines()]

    return run


def test_the_rank_has_the_socket_and_its_children_have_not(run):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(TIMEOUT_S)
    child, (found, after_close) = run([theirs.fileno()])
    theirs.close()
    assert found["fd"] > 2 and not found["inheritable"]
    assert child == NONE
    assert after_close == NONE, "a descriptor that the script has closed is nobody's socket"
    assert ours.recv(100) == b"from the rank"
    assert ours.recv(100) == b"", "nothing of the rank holds the socket open"
    ours.close()


def test_an_agent_that_sends_none(run):
    assert run([]) == [NONE, [NONE, NONE]]
