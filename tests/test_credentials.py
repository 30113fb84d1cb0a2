"""Who may speak at a job's endpoint: holders of its token or of a certificate; of an open job, nodes in clear and no
more than that (docs/security.md, docs/formats/credentials.md)."""

import json
import os
import re
import secrets
import selectors
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from harness import PATIENCE_S, clean_environment, command_path, environment_of, read_proc, workload
from share import free_port

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
NO_BELIEF = "this node do not believe each other"
PROOF_S = 12  # FrontDoor::kProofMs, and some more


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text(secrets.token_hex(16) + "\n")
    path.chmod(0o600)
    return path


class Wire:
    """A relay that keeps what passes, between nodes and the master at 127.0.0.1:`port`. Ends with the test."""

    def __init__(self, port):
        self.to, self.bytes = port, bytearray()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        selector, other = selectors.DefaultSelector(), {}
        selector.register(self.listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is self.listener:
                    near, _ = self.listener.accept()
                    try:
                        far = socket.create_connection(("127.0.0.1", self.to))
                    except OSError:  # nobody is there any more
                        near.close()
                        continue
                    other[near], other[far] = far, near
                    for end in (near, far):
                        selector.register(end, selectors.EVENT_READ)
                    continue
                if key.fileobj in other:  # else its other end has ended in the same breath
                    self._pass_on(key.fileobj, other, selector)

    def _pass_on(self, end, other, selector):
        try:
            data = end.recv(1 << 16)
            self.bytes += data
            if data:
                return other[end].sendall(data)
        except OSError:
            pass
        for each in (end, other[end]):
            if each in other:
                selector.unregister(each)
        for each in (end, other.pop(end)):
            other.pop(each, None)
            each.close()


def test_a_job_with_a_token_takes_nobody_else(job, token, tmp_path):
    """Of three more nodes, without a token, with another one, with that of the job, the last alone trains."""
    closed = [f"--job-token-file={token}"]
    first = job.node(0, "light_steps.py", nnodes="1:2", flags=closed)
    life = job.wait_world(1)
    stranger = job.node(1, "light_steps.py", nnodes="1:2")
    assert stranger.wait() == 1, job.story()
    assert f"the job at 127.0.0.1:{job.port} is closed" in stranger.stderr, job.story()
    other = tmp_path / "other"
    other.write_text("another-token\n")
    liar = job.node(1, "light_steps.py", nnodes="1:2", flags=[f"--job-token-file={other}"])
    assert liar.wait() == 1, job.story()
    assert NO_BELIEF in liar.stderr, job.story()
    assert job.id not in stranger.stderr + liar.stderr  # nothing is learnt of the job
    third = job.node(1, "light_steps.py", nnodes="1:2", env={"PHALANX_TOKEN": token.read_text().strip()})
    job.wait_world(2, after=life)
    job.stop()
    assert (first.wait(), third.wait()) == (0, 0), job.story()


def test_a_token_in_a_shared_state_directory_closes_the_job(job, tmp_path):
    """Nodes that share it need no flag; one without it stays outside, and so does a file that others may read."""
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o700)
    secret = shared / "job-token"
    secret.write_text(secrets.token_hex(16) + "\n")
    secret.chmod(0o644)
    where = [f"--state-dir={shared}"]
    careless = job.node(0, "light_steps.py", nnodes="2", flags=where)
    assert careless.wait() == 2, job.story()
    assert f"{secret}: others may read it (mode 0644); chmod 600" in careless.stderr
    secret.chmod(0o600)
    nodes = [job.node(i, "light_steps.py", nnodes="2", flags=where) for i in range(2)]
    job.wait_world(2)
    assert f"the token in {secret} closes this job" in nodes[0].stderr
    assert "may join" not in nodes[0].stderr, job.story()
    stranger = job.node(2, "light_steps.py", nnodes="2")
    assert stranger.wait() == 1, job.story()
    assert f"the job at 127.0.0.1:{job.port} is closed" in stranger.stderr, job.story()
    master = f"--master=127.0.0.1:{job.port}"
    assert job.phalanx("status", master, check=False).returncode == 1
    assert "world 2" in job.phalanx("status", master, *where).stdout
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()


def test_a_master_finds_the_shared_token(job):
    """It lies beside the folder of the job, however that is written; one without a word opens no job."""
    secret = job.folder / "job-token"
    secret.touch(mode=0o600)
    (job.folder / "master").mkdir(mode=0o700)
    refused = subprocess.run(
        [command_path("phalanx-master"), "--port=0", f"--state-dir={job.folder / 'master'}/"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert refused.returncode == 2 and f"{secret}: the file is empty" in refused.stderr
    secret.write_text(secrets.token_hex(16) + "\n")
    job.start_master("1")
    master = f"--master=127.0.0.1:{job.port}"
    assert job.phalanx("status", master, check=False).returncode == 1
    assert "gathering" in job.phalanx("status", master, f"--state-dir={job.folder}").stdout
    secret.chmod(0o644)
    assert "gathering" in job.phalanx("status", f"--state-dir={job.folder / 'master'}").stdout, "it needs no other"


def test_nodes_call_a_job_as_they_like_where_its_master_says_so(job, token):
    """As with Kubernetes' operator: dlrover-run names the job, phalanx-run need not. Its token closes it."""
    open_job = job.run("--any-job-id", "--port=0", command=[command_path("phalanx-master")], name="open")
    assert open_job.wait() == 2 and "--any-job-id: expected a token or certificates" in open_job.stderr
    job.start_master("2", f"--token-file={token}", "--any-job-id")
    closed = [f"--job-token-file={token}"]
    nodes = [job.node(0, "light_steps.py", nnodes="2", flags=[*closed, "--rdzv-id=fine-tuning"])]
    nodes.append(job.node(1, "light_steps.py", nnodes="2", flags=closed))
    job.wait_world(2)
    stranger = job.node(2, "light_steps.py", nnodes="2", flags=["--rdzv-id=fine-tuning"])
    assert stranger.wait() == 1 and "is closed" in stranger.stderr, job.story()
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()


def test_the_token_is_with_nobody_whom_the_job_starts(job, token):
    """But with the master, which needs it: neither in the environment nor in the command of a rank or of its zygote."""
    secret = token.read_text().strip()
    nodes = [job.node(0, "light_steps.py", nnodes="1", env={"PHALANX_TOKEN": secret})]
    job.wait_world(1)
    holders = set()
    for pid in job.processes():
        words = environment_of(pid)
        if any(secret.encode() in word for word in words):
            holders.add(read_proc(pid, "comm").decode().strip())
        assert secret.encode() not in read_proc(pid, "cmdline")
    assert holders - {""} == {"phalanx-run", "phalanx-master"}, job.story()
    job.stop()
    assert nodes[0].wait() == 0, job.story()


def test_nothing_is_said_in_clear(job, token):
    """What passes between two nodes' agents, a command and the master holds neither the token nor the job's id."""
    job.start_master("2", f"--token-file={token}")
    wire = Wire(job.port)
    job.port = wire.port
    nodes = [job.node(index, "light_steps.py", flags=[f"--job-token-file={token}"]) for index in (0, 1)]
    job.wait_world(2)
    env = {"PHALANX_TOKEN": token.read_text().strip()}
    assert "running" in job.phalanx("status", f"--master=127.0.0.1:{wire.port}", env=env).stdout
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()
    assert len(wire.bytes) > 4096
    for words in (token.read_text().strip(), job.id, "light_steps"):
        assert words.encode() not in wire.bytes


def test_status_is_for_those_who_prove_themselves(job, token):
    job.start_master("1", f"--token-file={token}")
    master = f"--master=127.0.0.1:{job.port}"
    right = {"PHALANX_TOKEN": token.read_text().strip()}
    assert '"phase": "gathering"' in job.phalanx("status", master, "--json", env=right).stdout
    nothing = job.phalanx("status", master, check=False)
    assert nothing.returncode == 1 and "the job is closed: give its token as PHALANX_TOKEN" in nothing.stderr
    wrong = job.phalanx("status", master, check=False, env={"PHALANX_TOKEN": "wrong-but-long-enough"})
    assert wrong.returncode == 1 and "do not believe each other" in wrong.stderr
    for call in ("status", "events"):
        assert job.phalanx(call, f"--state-dir={job.folder / 'master'}").returncode == 0, "whose files it has made"


def test_an_open_job_serves_membership_alone(job):
    """torchrun's line without a secret works; nobody learns of the job but by its files."""
    nodes = [job.node(index, "light_steps.py") for index in (0, 1)]
    job.wait_world(2)
    asked = job.phalanx("status", f"--master=127.0.0.1:{job.port}", check=False)
    assert asked.returncode == 1 and "the job is open, and tells of itself only by the files" in asked.stderr
    folder = next(job.folder.glob("state?/*/address")).parent  # of the node that was first to start the master
    assert stat.S_IMODE((folder / "token").stat().st_mode) == 0o600
    assert "running" in job.phalanx("status", f"--state-dir={folder}").stdout
    other = job.run(
        *("--nnodes=2", "--rdzv-id=guess", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{job.port}"),
        *(f"--state-dir={job.folder / 'other'}", "--rdzv-conf=is_host=0", workload("light_steps.py")),
    )
    assert other.wait() == 1, job.story()
    assert "serves another job than 'guess'" in other.stderr and job.id not in other.stderr
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()


def test_who_speaks_in_clear_is_sent_away_at_once(job, token):
    """And so is whatever else knocks; the job goes on."""
    node = job.node(0, "light_steps.py", nnodes="1", flags=[f"--job-token-file={token}"])
    job.wait_world(1)
    for words in (PREFACE + b"\0" * 4096, b"GET / HTTP/1.1\r\n\r\n", secrets.token_bytes(4096)):
        with socket.create_connection(("127.0.0.1", job.port), timeout=PATIENCE_S) as knocking:
            knocking.sendall(words)
            answer = b""
            try:
                while more := knocking.recv(4096):
                    answer += more
            except ConnectionResetError:
                pass
        assert len(answer) < 64 and job.id.encode() not in answer
    job.stop()
    assert node.wait() == 0, job.story()


def test_who_was_turned_away_is_counted(job, token, tmp_path):
    """For `phalanx status`; one with another token when it has had its time, as the master cannot see it try."""
    node = job.node(0, "light_steps.py", nnodes="1", flags=[f"--job-token-file={token}"])
    job.wait_world(1)
    with socket.create_connection(("127.0.0.1", job.port), timeout=PATIENCE_S) as knocking:
        knocking.sendall(PREFACE)
        while knocking.recv(4096):
            pass
    folder = job.folder / "state0" / job.id
    told = json.loads(job.phalanx("status", f"--state-dir={folder}", "--json").stdout)
    assert told["refused_callers"] == 1 and "it speaks in clear, and this job is closed" in told["last_refused"]
    wrong = job.phalanx(
        "status", f"--master=127.0.0.1:{job.port}", check=False, env={"PHALANX_TOKEN": "wrong-but-long-enough"}
    )
    assert wrong.returncode == 1
    deadline = time.monotonic() + PATIENCE_S
    while told["refused_callers"] == 1 and time.monotonic() < deadline:
        told = json.loads(job.phalanx("status", f"--state-dir={folder}", "--json").stdout)
    assert (
        told["refused_callers"] == 2
        and "it said nothing that proves that it belongs to the job" in told["last_refused"]
    )
    assert (
        "2 callers turned away; the last: the endpoint refused" in job.phalanx("status", f"--state-dir={folder}").stdout
    )
    job.stop()
    assert node.wait() == 0, job.story()


KNOCK = r"""
import os, socket, sys
"".encode("idna")  # imported while it may be read
os.setuid(int(sys.argv[1]))
with socket.create_connection((sys.argv[2], int(sys.argv[3])), timeout=60) as door:
    door.sendall(bytes.fromhex(sys.argv[4]))
    try:
        answer = door.recv(64)
        print("closed" if not answer or b"Phalanx: closed" in answer else "answered")
    except ConnectionResetError:
        print("closed")
"""
STORE_PING = b"\x00\xce\xf7\x85\x3c" + b"\x0d1234"


@pytest.mark.skipif(os.geteuid() != 0, reason="starting a process as another user needs root")
def test_another_user_of_the_machine_stays_outside(job):
    """Of an open job: at the store, at the endpoint as a client of the store, and there as a node."""
    node = job.node(0, "light_steps.py", nnodes="1")
    life = job.wait_world(1)
    variables = dict(word.split(b"=", 1) for word in environment_of(job.pid(0, life)) if b"=" in word)
    store = (variables[b"MASTER_ADDR"].decode(), variables[b"MASTER_PORT"].decode())
    endpoint = ("127.0.0.1", str(job.port))
    settings = b"\0\0\0\4\0\0\0\0\0"
    for (host, port), words in ((store, STORE_PING), (endpoint, STORE_PING), (endpoint, PREFACE + settings)):
        answers = []
        for user in ("0", "65534"):
            command = [sys.executable, "-c", KNOCK, user, host, port, words.hex()]
            done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=PATIENCE_S)
            assert done.returncode == 0, done.stderr
            answers.append(done.stdout.strip())
        assert answers == ["answered", "closed"], (host, port, words)
    events = job.phalanx("events", f"--state-dir={job.folder / 'state0' / job.id}").stdout
    assert "it is user 65534's, and this job is user 0's" in events
    asked = job.phalanx("status", f"--master=127.0.0.1:{job.port}", check=False)
    assert asked.returncode == 1, asked.stdout
    told = json.loads(job.phalanx("status", f"--state-dir={job.folder / 'state0' / job.id}", "--json").stdout)
    assert told["refused_store_clients"] == 1 and "user 65534" in told["last_refused_store_client"], told
    assert (told["refused_callers"], told["refused_admin"]) == (3, 1) and "the job is open" in told["last_refused"]
    job.stop()
    assert node.wait() == 0, job.story()


def test_an_open_job_takes_spares_only_from_its_own_machines(make_network, make_job):
    """A stranger has no place that --nnodes has not, and waits for none; who comes from a machine of the job does
    (test_more_nodes_than_max_are_spares)."""
    job = make_job(make_network(3))
    job.endpoint_host = job.network.address(0)
    nodes = [job.node(index, "light_steps.py", nnodes="1:2") for index in (0, 1)]
    job.wait_world(2)
    stranger = job.node(2, "light_steps.py", nnodes="1:2")
    assert stranger.wait() == 1
    assert f"all 2 places of job '{job.id}' are taken, and it is open" in stranger.stderr
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()
    told = job.phalanx("events", f"--state-dir={job.folder / 'state0' / job.id}", "--json").stdout
    (refused,) = [row for row in map(json.loads, told.splitlines()) if row["kind"] == "node-refused"]
    assert "it is open" in refused["reason"] and job.network.address(2) in json.dumps(refused), refused


def test_require_token_refuses_to_run_open(job, token):
    flags = ["--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-backend=c10d", "--require-token"]
    refused = job.run(*flags, "light_steps.py")
    assert refused.wait() == 2
    assert "--require-token: expected a token" in refused.stderr
    absent = job.run(*flags, "--job-token-file=/nowhere", "light_steps.py")
    assert absent.wait() == 2
    assert "--job-token-file=/nowhere" in absent.stderr
    halves = job.run(*flags, f"--tls-cert={token}", "light_steps.py")
    assert halves.wait() == 2
    assert "--tls-cert, --tls-key, --tls-ca: expected all three or none" in halves.stderr


class Authority:
    """Certificates as a site makes them, by openssl."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        folder.mkdir(exist_ok=True)
        self._openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-keyout", "ca.key", "-out", "ca.crt"),
        )

    def issue(self, who, names):
        """{who}.crt and {who}.key beside ca.crt."""
        self._openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
            *("-subj", f"/CN={who}", "-addext", f"subjectAltName={names}", "-addext", "basicConstraints=CA:FALSE"),
            *("-CA", "ca.crt", "-CAkey", "ca.key", "-keyout", f"{who}.key", "-out", f"{who}.crt"),
        )

    def flags(self, who):
        where = self.folder
        return [
            f"--tls-cert={where / f'{who}.crt'}",
            f"--tls-key={where / f'{who}.key'}",
            f"--tls-ca={where / 'ca.crt'}",
        ]

    def variables(self, who):
        return {
            "PHALANX_TLS_CERT": self.folder / f"{who}.crt",
            "PHALANX_TLS_KEY": self.folder / f"{who}.key",
            "PHALANX_TLS_CA": self.folder / "ca.crt",
        }

    def _openssl(self, *arguments):
        done = subprocess.run(
            ["openssl", *arguments], cwd=self.folder, env=clean_environment(), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_certificates_of_a_site_and_their_renewal(job, tmp_path):
    """Two nodes by certificates; all files are renewed, by another authority, while they train; a third node comes."""
    site = Authority(tmp_path / "tls", "site")
    site.issue("node", "IP:127.0.0.1")
    site.issue("viewer", "URI:phalanx:role/viewer")
    nodes = [job.node(index, "light_steps.py", nnodes="1:3", flags=site.flags("node")) for index in (0, 1)]
    life = job.wait_world(2)
    master = f"--master=127.0.0.1:{job.port}"
    assert "running" in job.phalanx("status", master, env=site.variables("viewer")).stdout
    spy = job.node(2, "light_steps.py", nnodes="1:3", flags=site.flags("viewer"))
    assert spy.wait() == 1, job.story()
    assert "a viewer's certificate serves no job" in spy.stderr  # the endpoint is at its host, too
    stranger = job.node(2, "light_steps.py", nnodes="1:3")
    assert stranger.wait() == 1, job.story()

    staged = Authority(tmp_path / "next", "next site")
    staged.issue("node", "IP:127.0.0.1")
    for name in ("ca.crt", "node.crt", "node.key"):
        os.replace(tmp_path / "next" / name, tmp_path / "tls" / name)
    nodes.append(job.node(2, "light_steps.py", nnodes="1:3", flags=site.flags("node")))
    job.wait_world(3, after=life)
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0, 0], job.story()


def test_a_master_at_all_addresses_knows_its_own(job, token):
    """The kernel writes IPv4 callers of such a master as IPv6 addresses; none of them is taken for a stranger."""
    job.endpoint_host = "0.0.0.0"
    job.start_master("1", f"--token-file={token}")
    job.endpoint_host = "127.0.0.1"
    node = job.node(0, "light_steps.py", nnodes="1", flags=[f"--job-token-file={token}"])
    job.wait_world(1)
    began = time.monotonic()
    while time.monotonic() - began < PROOF_S:  # by then who has proved nothing is counted
        told = json.loads(job.phalanx("status", f"--state-dir={job.folder / 'master'}", "--json").stdout)
        assert (told["refused_callers"], told["world_size"]) == (0, 1), told
    job.stop()
    assert node.wait() == 0, job.story()


def test_a_certificate_has_the_endpoints_name(job, tmp_path):
    """The name alone is enough, also for the node that hosts the master; without it that node ends at once."""
    site = Authority(tmp_path / "tls", "site")
    site.issue("node", "DNS:localhost")
    site.issue("other", "IP:127.0.0.2")
    job.endpoint_host = "localhost"
    nodes = [job.node(index, "light_steps.py", flags=site.flags("node")) for index in (0, 1)]
    job.wait_world(2)
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()
    unfit = job.node(0, "light_steps.py", nnodes="1", flags=[*site.flags("other"), "--rdzv-id=unfit"])
    assert unfit.wait() == 1, job.story()
    assert "other.crt: expected 'localhost', the endpoint's name" in unfit.stderr, job.story()


def test_the_lines_of_the_page_make_certificates_that_work(job, tmp_path):
    """Those of docs/security.md, but for the host's name."""
    page = (Path(__file__).resolve().parent.parent / "docs" / "security.md").read_text()
    block = re.search(r"\n((?:    (?:openssl req|    -addext).*\n)+)", page)[1]
    lines = block.replace("DNS:node1,IP:10.0.0.7", "DNS:localhost")
    assert lines.count("openssl req") == 3 and "DNS:localhost" in lines
    made = subprocess.run(
        ["bash", "-euc", lines],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert made.returncode == 0, made.stderr
    flags = [
        f"--tls-{name}={tmp_path / file}"
        for name, file in (("cert", "node.crt"), ("key", "node.key"), ("ca", "ca.crt"))
    ]
    job.endpoint_host = "localhost"
    nodes = [job.node(index, "light_steps.py", flags=flags) for index in (0, 1)]
    job.wait_world(2)
    env = {
        f"PHALANX_TLS_{name}": tmp_path / file
        for name, file in (("CERT", "me.crt"), ("KEY", "me.key"), ("CA", "ca.crt"))
    }
    assert "running" in job.phalanx("status", f"--master=localhost:{job.port}", env=env).stdout
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()


def test_a_certificate_of_another_authority_is_refused_with_a_sentence(job, tmp_path):
    site = Authority(tmp_path / "tls", "site")
    site.issue("node", "IP:127.0.0.1")
    alien = Authority(tmp_path / "alien", "another site")
    alien.issue("node", "IP:127.0.0.1")
    first = job.node(0, "light_steps.py", nnodes="1:2", flags=site.flags("node"))
    job.wait_world(1)
    flags = [*alien.flags("node")[:2], site.flags("node")[2]]  # it believes the master, and is not believed
    refused = job.node(1, "light_steps.py", nnodes="1:2", flags=flags)
    assert refused.wait() == 1, job.story()
    assert NO_BELIEF in refused.stderr, job.story()
    folder = job.folder / "state0" / job.id
    asked = job.phalanx("status", f"--state-dir={folder}", check=False, env=alien.variables("node"))
    assert asked.returncode == 1 and NO_BELIEF.replace("node", "command") in asked.stderr
    job.stop()
    assert first.wait() == 0, job.story()


def test_an_open_jobs_next_master_is_asked_with_the_same_token(job):
    """By who has read the token before the master was killed."""
    nodes = [job.node(index, "light_steps.py") for index in (0, 1)]
    job.wait_world(2)
    folder = next(job.folder.glob("state?/*/address")).parent
    before = (folder / "token").read_text()
    (pid,) = (pid for pid in job.processes() if read_proc(pid, "comm").startswith(b"phalanx-master"))
    os.kill(pid, signal.SIGKILL)
    env = {"PHALANX_TOKEN": before.strip()}
    deadline, answered = time.monotonic() + PATIENCE_S, False
    while not answered and time.monotonic() < deadline:
        done = job.phalanx("status", f"--master=127.0.0.1:{job.port}", check=False, env=env)
        assert "do not believe" not in done.stderr
        answered = done.returncode == 0
    assert answered and (folder / "token").read_text() == before
    job.stop()
    assert [node.wait() for node in nodes] == [0, 0], job.story()


def test_files_that_are_no_certificates_are_named(job, tmp_path):
    site = Authority(tmp_path / "tls", "site")
    site.issue("node", "IP:127.0.0.1")
    (tmp_path / "tls" / "node.key").write_text("no key\n")
    node = job.node(0, "light_steps.py", nnodes="1", flags=site.flags("node"))
    assert node.wait() != 0
    assert f"{tmp_path / 'tls' / 'node.key'}: no PEM private key" in node.stderr, job.story()
