"""Runs real jobs for tests: launchers as "nodes" on loopback addresses, real workers, news by a datagram socket.

A test starts nodes, waits for what workers report (`Job.wait`), kills by pid, and reads exit codes and output. Nothing
here polls: workers' reports and launchers' output arrive in threads and wake whoever waits, ends of processes come by
pidfd. Everything that a job starts carries PHALANX_TEST_ID in its environment, so that `Job.close` finds what is left.
"""

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

from pidfd import pidfd_open, pidfd_send_signal
from share import free_port

ROOT = Path(__file__).resolve().parent.parent
WORKLOADS = Path(__file__).resolve().parent / "workloads"
PATIENCE_S = 300.0  # a busy machine may import torch for 30 s, and some jobs do so six times
EXEC_PATIENCE_S = 5.0  # an exec that reads its program from a busy disk
MARKER = "PHALANX_TEST_ID"
NODE_MARKER = "PHALANX_TEST_NODE"
RUN_MARKER = "PHALANX_TEST_RUN"  # of ./run test, which ends what a process of tests leaves as it dies
# Variables of an outer job or of the person's shell that would change what a test sees.
FOREIGN_PREFIXES = ("PHALANX_", "PET_", "TORCHELASTIC_", "DLROVER_", "MASTER_")
FOREIGN_NAMES = {
    "PYTEST_CURRENT_TEST",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTHONUNBUFFERED",  # makes several writes of one print(), and another rank's line may come between
    "PYTHON_EXEC",
    "POD_IP",
}


def command_path(name):
    """phalanx-run as built, or what PHALANX_RUN names; its siblings beside it."""
    launcher = os.environ.get("PHALANX_RUN") or str(ROOT / ".venv" / "bin" / "phalanx-run")
    path = Path(launcher) if name == "phalanx-run" else Path(launcher).parent / name
    if not os.access(path, os.X_OK):
        raise FileNotFoundError(f"{path} is not there: ./run build makes it, or set PHALANX_RUN")
    return str(path)


def ckpt(*arguments, expect=0):
    """What `phalanx ckpt .. --json` says; where that is no answer (2), what it says on stderr."""
    command = [command_path("phalanx"), "ckpt", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == expect, done.stdout + done.stderr
    return json.loads(done.stdout) if expect != 2 else done.stderr


def clean_environment():
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(FOREIGN_PREFIXES) and name not in FOREIGN_NAMES
    }


def read_proc(pid, name):
    """A file of /proc/<pid>, b"" where the process or its memory is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def stat_fields(pid):
    """Fields of /proc/<pid>/stat after the name: [state, ppid, pgrp, session, ...]; empty where it is gone."""
    text = read_proc(pid, "stat").decode(errors="replace")
    return text[text.rindex(")") + 2 :].split() if ")" in text else []


# Places in what stat_fields returns.
VSIZE, ENV_END = 20, 48


def environment_of(pid):
    """The entries of a process's environment; none of what has ended, has no memory, or is not ours to look at.

    In the midst of exec a process shows none: the kernel has not placed the new one yet. That is waited for."""
    deadline = time.monotonic() + EXEC_PATIENCE_S
    text = read_proc(pid, "environ")
    placed = False
    while not text and not placed and time.monotonic() < deadline:
        placed = environment_is_placed(pid)
        if not placed:
            os.sched_yield()  # the kernel tells nobody; the exec may need this processor
        text = read_proc(pid, "environ")
    return set(text.split(b"\0"))


def environment_is_placed(pid):
    """False in the midst of exec. True also where there will be none."""
    fields = stat_fields(pid)
    if not fields or fields[0] in ("Z", "X") or fields[VSIZE] == "0" or fields[ENV_END] != "0":
        return True
    try:
        open(f"/proc/{pid}/environ", "rb").close()
    except OSError:
        return True  # not ours to look at: then the kernel hides the place, too
    return False


def is_running(pid):
    """Whether the process exists and is more than a zombie."""
    fields = stat_fields(pid)
    return bool(fields) and fields[0] not in ("Z", "X")


def descends_from(pid, ancestor):
    """Whether `ancestor` is `pid` or above it."""
    while pid > 1 and pid != ancestor:
        pid = int((stat_fields(pid) or ["", "1"])[1])
    return pid == ancestor


def kill_each(pids):
    """By SIGKILL. The agent of the first may have ended and reaped the others by then."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def name_of(pid):
    command = read_proc(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    return f"{pid} {command[:150] or read_proc(pid, 'comm').decode(errors='replace').strip()}"


def wait_ends(pids, timeout_s):
    """Waits until all of `pids` have ended or the time is over; returns those that still run."""
    deadline = time.monotonic() + timeout_s
    poller, handles = select.poll(), {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            handle = pidfd_open(pid)
            handles[handle] = pid
            poller.register(handle, select.POLLIN)
    try:
        while handles:
            left_ms = max(0, int((deadline - time.monotonic()) * 1000))
            ready = poller.poll(left_ms)
            for handle, _ in ready:
                poller.unregister(handle)
                os.close(handle)
                del handles[handle]
            if not ready:
                break
        return [pid for pid in handles.values() if is_running(pid)]
    finally:
        for handle in handles:
            os.close(handle)


class Node:
    """One running launcher."""

    def __init__(self, job, name, command, environment, cwd, popen):
        self.job, self.name, self.command = job, name, command
        self.lines = {"stdout": [], "stderr": []}
        self.started_at = time.monotonic()
        self.process = subprocess.Popen(
            command,
            env=environment,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            **popen,
        )
        self.pid = self.process.pid
        self.handle = pidfd_open(self.pid)
        self.readers = [
            threading.Thread(target=self._read, args=(stream, pipe), daemon=True)
            for stream, pipe in (("stdout", self.process.stdout), ("stderr", self.process.stderr))
        ]
        for reader in self.readers:
            reader.start()

    def _read(self, stream, pipe):
        for line in pipe:
            with self.job.news:
                self.lines[stream].append(line.decode(errors="replace"))
                self.job.news.notify_all()
        pipe.close()

    @property
    def stdout(self):
        return "".join(self.lines["stdout"])

    @property
    def stderr(self):
        return "".join(self.lines["stderr"])

    def signal(self, number):
        pidfd_send_signal(self.handle, number)

    def wait(self, timeout_s=PATIENCE_S):
        """The exit code, as subprocess gives it. When this returns all output is read, and all reports are heard."""
        ready, _, _ = select.select([self.handle], [], [], timeout_s)
        if not ready:
            raise AssertionError(f"{self.name} still runs after {timeout_s} s\n{self.job.story()}")
        code = self.process.wait()
        for reader in self.readers:
            reader.join(5)  # a process that outlived the launcher may hold the pipe; what it writes does not count
        self.job.hear_reports()
        return code

    def wait_line(self, pattern, stream="stderr", timeout_s=PATIENCE_S):
        """The first line, past or to come, that matches."""
        matcher = re.compile(pattern)

        def find(_):
            return next((line for line in self.lines[stream] if matcher.search(line)), None)

        return self.job.wait(find, f"a line of {self.name} like {pattern!r}", timeout_s)


class Job:
    """The nodes and the workers of one job."""

    def __init__(self, folder, launcher="phalanx-run", network=None):
        self.folder = Path(folder)
        self.launcher = launcher
        self.network = network  # netns.Network: node i runs on its host i
        self.id = f"test-{uuid.uuid4().hex[:12]}"
        self.endpoint_host = "127.0.0.1"
        self.port = free_port()
        self.master = None  # where a test has started one of its own
        # Its nodes are believed for 15 s where they say nothing, as on a busy machine they may. Not in tests of that.
        self.patient = False
        self.stop_file = self.folder / "STOP"
        self.nodes = []
        self.events = []
        self.news = threading.Condition()
        self._marks_sent = self._marks_heard = 0
        self.expected_strays = []
        self.variables = {}  # of the environment of all that is started
        self.prefix = []  # words before a launcher's command
        self.popen = {}  # further arguments of subprocess.Popen for launchers: another user, say
        self.killed_by_test = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        # Names without a file are each network namespace's own.
        self.address_of_news = str(self.folder / "news") if network else f"\0{self.id}"
        self._socket.bind(self.address_of_news)
        threading.Thread(target=self._listen, daemon=True).start()

    # --- starting

    def environment(self, extra=None):
        own = {
            MARKER: self.id,
            **({RUN_MARKER: os.environ[RUN_MARKER]} if RUN_MARKER in os.environ else {}),
            "PHALANX_TEST_SOCKET": self.address_of_news.lstrip("\0"),
            "PHALANX_TEST_STOP": str(self.stop_file),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "XDG_STATE_HOME": str(self.folder / "xdg-state"),
            "TMPDIR": str(self.folder),
            **({"GLOO_SOCKET_IFNAME": "eth0"} if self.network else {}),
            **self.variables,
        }
        return {**clean_environment(), **own, **{name: str(value) for name, value in (extra or {}).items()}}

    def command(self):
        if self.launcher == "torchrun":
            torchrun = Path(sys.executable).parent / "torchrun"
            # An environment that lies over another one has the torch of that, and not its commands.
            return [str(torchrun)] if torchrun.exists() else [sys.executable, "-m", "torch.distributed.run"]
        return [*self.prefix, command_path("phalanx-run")]

    def run(self, *arguments, env=None, cwd=None, name=None, command=None):
        """Starts a launcher with exactly these arguments. All that it starts carries its name (NODE_MARKER)."""
        name = name or f"node{len(self.nodes)}"
        environment = {NODE_MARKER: name, **self.environment(env)}
        if self.launcher == "torchrun":
            # Its agent's store keeps the keys of dead attempts, and restarts hang on them (pytorch#135712).
            environment.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
        line = [*(command or self.command()), *(str(argument) for argument in arguments)]
        node = Node(self, name, line, environment, cwd or self.folder, self.popen)
        self.nodes.append(node)
        return node

    def standalone(self, script, *script_arguments, nproc=2, flags=(), env=None, cwd=None):
        """A job of one node."""
        own = [] if self.launcher == "torchrun" else [f"--state-dir={self.folder / 'state'}"]
        flags = ["--standalone", f"--nproc-per-node={nproc}", *own, *flags]
        return self.run(*flags, workload(script), *script_arguments, env=env, cwd=cwd)

    def node(self, index, script, *script_arguments, nnodes="2", nproc=1, flags=(), env=None):
        """One node of a job, at 127.0.0.<index + 1> or on its host of the network; the first hosts the rendezvous."""
        address = self.network.address(index) if self.network else f"127.0.0.{index + 1}"
        flags = [
            f"--nnodes={nnodes}",
            f"--nproc-per-node={nproc}",
            f"--rdzv-id={self.id}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={self.endpoint_host}:{self.port}",
            f"--local-addr={address}",
            f"--log-dir={self.folder / f'logs{index}'}",
            *([] if self.launcher == "torchrun" else [f"--state-dir={self.folder / f'state{index}'}"]),
            *([] if self.master is None else ["--rdzv-conf=is_host=0"]),
            *flags,
        ]
        if self.patient and nnodes != "1":
            conf = [flag.partition("=")[2] for flag in flags if flag.startswith("--rdzv-conf=")][-1:]
            flags.append(f"--rdzv-conf={','.join([*conf, 'keep_alive_interval=5'])}")  # the last one counts
        command = [*(self.network.on(index) if self.network else []), *self.command()]
        return self.run(*flags, workload(script), *script_arguments, env=env, name=f"node{index}", command=command)

    def start_master(self, nnodes, *flags, host=None, port=0):
        """A master that belongs to no node (`host`: of the network). Its decisions are lines of its stderr."""
        if host is not None:
            self.endpoint_host = self.network.address(host)
        where = [f"--host={self.endpoint_host}", f"--port={port}", f"--state-dir={self.folder / 'master'}"]
        what = [f"--job-id={self.id}", f"--nnodes={nnodes}", "--ready-fd=1", *(["--lease=15"] if self.patient else [])]
        command = [*(self.network.on(host) if self.network else []), command_path("phalanx-master")]
        self.master = self.run(*where, *what, *flags, command=command, name="master")
        self.port = int(self.master.wait_line("^ready ", stream="stdout").split()[1])
        return self.master

    def phalanx(self, *arguments, check=True, env=None):
        """Runs the `phalanx` command to its end."""
        command = [command_path("phalanx"), *(str(argument) for argument in arguments)]
        done = subprocess.run(
            command, env=self.environment(env), cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert not check or done.returncode == 0, (
            f"{command} ended with {done.returncode}: {done.stderr}\n{done.stdout}"
        )
        return done

    # --- following

    def _listen(self):
        while True:
            data = self._socket.recv(1 << 20)
            if data == b"close":
                return
            with self.news:
                if data == b"mark":
                    self._marks_heard += 1
                else:
                    self.events.append(json.loads(data))
                self.news.notify_all()

    def _send(self, data):
        """To `_listen`, which reads it behind all that workers have reported before."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(data, self.address_of_news)

    def hear_reports(self):
        """Returns when all that was reported before this call stands in `events`."""
        with self.news:
            self._marks_sent += 1
            mark = self._marks_sent
        self._send(b"mark")  # without the lock: where the queue is full, it waits for `_listen`
        self.wait(lambda _: self._marks_heard >= mark, "what was reported to be heard")

    def wait(self, find, what, timeout_s=PATIENCE_S):
        """Waits until `find(events)` is true and returns what it returned."""
        deadline = time.monotonic() + timeout_s
        with self.news:
            while True:
                found = find(self.events)
                if found:
                    return found
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise AssertionError(f"waited {timeout_s} s in vain for {what}\n{self.story()}")
                self.news.wait(left_s)

    def found(self, name, **fields):
        """All events so far with this name and these fields."""
        wanted = {"ev": name, **fields}
        return [event for event in list(self.events) if all(event.get(key) == value for key, value in wanted.items())]

    def wait_events(self, name, count=1, timeout_s=PATIENCE_S, **fields):
        """The first `count` events with this name and these fields."""
        return self.wait(
            lambda _: len(self.found(name, **fields)) >= count and self.found(name, **fields)[:count],
            f"{count} x {name} {fields or ''}",
            timeout_s,
        )

    def wait_stepping(self, life, world, timeout_s=PATIENCE_S):
        """Waits for the first step of every rank of a life; returns these events by rank."""

        def all_ranks(_):
            steps = {event["rank"]: event for event in self.found("step", life=life, world=world, n=1)}
            return steps if len(steps) == world else None

        return self.wait(all_ranks, f"the first step of life {life} in a world of {world}", timeout_s)

    def wait_world(self, world, after=-1, timeout_s=PATIENCE_S):
        """Waits until all ranks of a world have stepped in a life later than `after`; returns that life."""

        def stepping(_):
            ranks = {}
            for event in self.found("step", world=world, n=1):
                ranks.setdefault(event["life"], set()).add(event["rank"])
            return [life for life, found in sorted(ranks.items()) if life > after and len(found) == world]

        return self.wait(stepping, f"a world of {world} that steps behind life {after}", timeout_s)[0]

    def node_of(self, rank, life):
        """The node that has started a rank which still runs."""
        pid = self.pid(rank, life)
        return next(node for node in self.nodes if descends_from(pid, node.pid))

    def pid(self, rank, life):
        return self.wait_events("main", rank=rank, life=life)[0]["pid"]

    def lives(self):
        """{life: {rank: pid}} of all workers that ran their script's first line."""
        lives = {}
        for event in self.found("main"):
            lives.setdefault(event["life"], {})[event["rank"]] = event["pid"]
        return lives

    def stop(self):
        """Tells step workloads to end, all after the same step."""
        self.stop_file.touch()

    def processes(self, node=None):
        """Pids of everything alive that was started by this job, launchers included; of one node alone, with its guard,
        which has no environment."""
        markers = {f"{MARKER}={self.id}".encode()} | ({f"{NODE_MARKER}={node.name}".encode()} if node else set())
        pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
        own = [pid for pid in pids if markers <= environment_of(pid) and is_running(pid)]
        parent = str(node.pid) if node else None
        return own + [pid for pid in pids if pid not in own and stat_fields(pid)[1:2] == [parent] and is_running(pid)]

    def guards(self):
        """Pids of the guards of its nodes, orphans included: they have no environment, but their node's arguments."""
        marker = f"{self.folder}/".encode()
        pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
        of_guards = [pid for pid in pids if read_proc(pid, "comm").startswith(b"phalanx-guard")]
        return [pid for pid in of_guards if marker in read_proc(pid, "cmdline") and is_running(pid)]

    def story(self):
        """What has happened, for the message of a failed assertion."""
        events = "\n".join(f"  {json.dumps(event)}" for event in self.events[-30:])
        texts = [f"events, the last of {len(self.events)}:\n{events}"]
        for node in self.nodes:
            state = node.process.poll()
            texts.append(
                f"--- {node.name}, {'running' if state is None else f'exit code {state}'}: {' '.join(node.command)}\n"
                f"stdout:\n{''.join(node.lines['stdout'][-30:])}stderr:\n{''.join(node.lines['stderr'][-60:])}"
            )
        for log in sorted(self.folder.glob("**/master.log")):
            texts.append(f"--- {log.relative_to(self.folder)}:\n{''.join(log.read_text().splitlines(True)[-20:])}")
        return "\n".join(texts)

    # --- ending

    def signal_node(self, node, number):
        """To everything of a node at once, launcher, guard, spares and ranks, as when its machine stops."""
        pids = self.processes(node)
        # Stopped before they are killed, none sees another's end and tells of it.
        for each in (signal.SIGSTOP, number) if number == signal.SIGKILL else (number,):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, each)

    def kill_all(self):
        """SIGKILL to all that is left of the job, launchers first."""
        for node in self.nodes:
            with contextlib.suppress(ProcessLookupError):
                node.signal(signal.SIGKILL)
        for _ in range(10):
            pids = self.processes() + self.guards()
            if not pids:
                return
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            wait_ends(pids, 5)

    def leftovers(self, timeout_s):
        """Names of processes of an ended job that are still there when the time is over."""
        left = wait_ends({*self.processes(), *self.guards()} - set(self.expected_strays), timeout_s)
        return [name_of(pid) for pid in left]

    def close(self):
        """Ends the job whatever its state. Returns names of processes that a job which ended by itself left behind."""
        ended = bool(self.nodes) and all(node.process.poll() is not None for node in self.nodes)
        left = self.leftovers(15) if ended and not self.killed_by_test else []
        self.kill_all()
        for node in self.nodes:
            node.process.wait()
            os.close(node.handle)
        self._send(b"close")
        return left


def workload(script):
    """Path of a script in tests/workloads; other words (modules, programs, absolute paths) stay as they are."""
    return str(WORKLOADS / script) if (WORKLOADS / str(script)).is_file() else str(script)
