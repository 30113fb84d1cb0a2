"""One benchmarked job: nodes on loopback addresses, events of its workers, its processes, its end.

Everything that a job starts carries BENCH_SOCKET in its environment, so that nothing outlives `close`.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

WORKLOADS = Path(__file__).resolve().parent.parent / "workloads"
FOREIGN = ("PHALANX_", "PET_", "TORCHELASTIC_", "DLROVER_", "MASTER_", "OMP_NUM_THREADS")


class TimedOut(Exception):
    """What was waited for did not come within the limit."""


class Job:
    """`named` gives a job of one node an id and an endpoint (--standalone invents both). `nnodes` is --nnodes where it
    is not `nodes`, `spares` are nodes started beyond those. `places` are where nodes run: their addresses, the first of
    which is the endpoint's, and what stands before their commands (a network namespace). `arguments` are the
    workload's."""

    def __init__(
        self,
        launcher,
        nodes=1,
        nproc=2,
        flags=(),
        state=None,
        workload="ddp_steps.py",
        named=False,
        nnodes=None,
        spares=0,
        places=(),
        environment=(),
        on_start=None,
        arguments=(),
    ):
        self.launcher, self.world, self.named = launcher, nodes * nproc, named
        self.nnodes, self.environment = nnodes or nodes, dict(environment)
        self.places = places or [(f"127.0.0.{index + 1}", []) for index in range(nodes + spares)]
        self.folder = Path(tempfile.mkdtemp(prefix="phalanx-bench-"))
        self.name = f"bench-{uuid.uuid4().hex[:12]}"
        self.stop_file = self.folder / "STOP"
        self.events, self.news = [], threading.Condition()
        self.memories = set()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(f"\0{self.name}")
        threading.Thread(target=self._listen, daemon=True).start()
        self.listening = True
        if on_start:
            on_start(self)
        self.state = Path(state) if state else self.folder / "state"
        self.port = free_port()
        self.started_at = time.monotonic()
        self.service = self._start_service(nodes)
        script = [str(WORKLOADS / workload), *map(str, arguments)]
        self.nodes = [self._start(index, nodes, nproc, [*flags], script) for index in range(nodes + spares)]

    def _start(self, index, nodes, nproc, flags, script):
        own = [f"--state-dir={self.state}{index}"] if self.launcher.name == "phalanx-run" else []
        if nodes == 1 and not self.named:
            place = list(self.launcher.single)
        else:
            endpoint = f"{self.places[0][0]}:{self.port}"
            place = [*self.launcher.several, f"--rdzv-endpoint={endpoint}", f"--rdzv-id={self.name}"]
            place += [f"--nnodes={self.nnodes}", f"--local-addr={self.places[index][0]}"]
        command = [
            *self.places[index][1],
            *self.launcher.command,
            *place,
            f"--nproc-per-node={nproc}",
            *own,
            *flags,
            *script,
        ]
        return self._spawn(command, f"node{index}.log", nodes, {"NODE_RANK": str(index)} if self.service else {})

    def add_node(self, index, script, nproc=1):
        """A node that joins later, or another one, at `places[index]`."""
        self.world += nproc
        return self._start(index, 2, nproc, [], [script])

    def _start_service(self, nodes):
        if not self.launcher.service:
            return None
        return self.start_service(nodes, self.launcher.service)

    def start_service(self, nodes, words):
        return self._spawn([self._fill(word, nodes) for word in words], "service.log", nodes, {})

    def _fill(self, text, nodes):
        values = {"port": self.port, "nodes": nodes, "nnodes": self.nnodes, "name": self.name, "folder": self.folder}
        values["host"] = self.places[0][0]
        for name, value in values.items():
            text = text.replace(f"{{{name}}}", str(value))
        return text

    def _spawn(self, command, log_name, nodes, extra):
        environment = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        environment.update({name: self._fill(value, nodes) for name, value in self.launcher.environment})
        environment.update(self.environment)
        environment.update(BENCH_SOCKET=self.name, BENCH_STOP=str(self.stop_file), TMPDIR=str(self.folder), **extra)
        folders = [Path(self.launcher.command[0]).parent, Path(sys.executable).parent, environment["PATH"]]
        environment["PATH"] = ":".join(map(str, folders))
        with open(self.folder / log_name, "ab") as log:
            return subprocess.Popen(
                command,
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _listen(self):
        while True:
            data = self.socket.recv(1 << 16)
            if data == b"close":
                return
            with self.news:
                self.events.append(json.loads(data))
                self.news.notify_all()

    def wait(self, find, what, limit_s):
        """Waits until `find()` is true and returns what it returned."""
        deadline = time.monotonic() + limit_s
        with self.news:
            while True:
                found = find()
                if found:
                    return found
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise TimedOut(f"{self.launcher.name}: {what} took more than {limit_s} s")
                self.news.wait(left_s)

    def whole_life(self, after=-1):
        """The first life later than `after` whose every rank has stepped: (life, {rank: event of its first step})."""
        lives = {}
        for event in list(self.events):
            if event["ev"] == "step" and event["n"] == 1 and event["life"] > after:
                lives.setdefault(event["life"], {})[event["rank"]] = event
        return next(((life, ranks) for life, ranks in sorted(lives.items()) if len(ranks) == self.world), None)

    def wait_whole_life(self, after=-1, limit_s=120):
        return self.wait(lambda: self.whole_life(after), f"the first step of all ranks after life {after}", limit_s)

    def settle(self, life, seconds, limit_s=60):
        """Waits until this life has trained for so long."""

        def find():
            steps = [event["t"] for event in self.events if event["ev"] == "step" and event["life"] == life]
            return steps and max(steps) - min(steps) >= seconds

        self.wait(find, f"{seconds} s of training", limit_s)

    def stay(self, seconds):
        """Lets the job run for so long; raises where a node ends meanwhile."""
        try:
            code = self.nodes[0].wait(seconds)
        except subprocess.TimeoutExpired:
            return
        raise RuntimeError(f"{self.launcher.name} ended with {code}:\n{self.logs()[-2000:]}")

    def pid(self, rank, life):
        return next(e["pid"] for e in self.events if e["ev"] == "main" and (e["rank"], e["life"]) == (rank, life))

    def processes(self):
        """Pids of everything alive that belongs to this job."""
        marker = f"BENCH_SOCKET={self.name}".encode()
        found = []
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if entry.isdigit() and marker in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    found.append(int(entry))
        return found

    def node_of(self, pid):
        """Index of the node that the process belongs to."""
        pids = [node.pid for node in self.nodes]
        while pid not in pids:
            pid = parent_of(pid)
        return pids.index(pid)

    def kill_node(self, index):
        """SIGKILL to all of a node, its agent first; returns when that was."""
        top = self.nodes[index].pid
        pids = [pid for pid in self.processes() if top in ancestry(pid)]
        self.memories |= memories_of(pids)
        began = time.monotonic()
        for pid in sorted(pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return began

    def wait_first_steps(self, since, world, limit_s=120):
        """The time of the last rank's first step in a world of this size that began after `since`."""

        def find():
            lives = {}
            for event in list(self.events):
                if event["ev"] == "step" and event["n"] == 1 and event["t"] > since and event["world"] == world:
                    lives.setdefault(event["life"], {})[event["rank"]] = event["t"]
            return next((max(ranks.values()) for ranks in lives.values() if len(ranks) == world), None)

        return self.wait(find, f"the first step in a world of {world}", limit_s)

    def logs(self):
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))

    def close(self, limit_s=60):
        """Asks the training to end, kills what does not within the limit; returns the nodes' exit codes."""
        self.memories |= memories_of(self.processes())
        self.stop_file.touch()
        codes = []
        for node in self.nodes:
            try:
                codes.append(node.wait(limit_s))
            except subprocess.TimeoutExpired:
                codes.append(None)
        self.kill()
        return codes

    def kill(self):
        self.memories |= memories_of(self.processes())
        for _ in range(5):
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in filter(None, [*self.nodes, self.service]):
                process.wait()
            if not self.processes():
                break
        self.listening = False
        shutil.rmtree(self.folder, ignore_errors=True)
        for memory in self.memories:
            shutil.rmtree(memory, ignore_errors=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, contextlib.suppress(ConnectionRefusedError):
            sender.sendto(b"close", f"\0{self.name}")


def memories_of(pids):
    """The folders in /dev/shm of agents among them: a killed one leaves what its ranks have saved."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    found.add(Path(os.readlink(entry.path)))
    return {path.parent for path in found if path.match("/dev/shm/phx-*/node.json")}


def parent_of(pid):
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text[text.rindex(")") + 2 :].split()[1])


def ancestry(pid):
    """The process and all above it; empty where it has ended meanwhile."""
    found = []
    with contextlib.suppress(OSError):
        while pid > 0:
            found.append(pid)
            pid = parent_of(pid)
    return found


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def measured(job, results, what, who=None, note=None):
    """Kills the job in the end. One that is too slow has a row without a figure, and its last words are printed."""
    try:
        yield
    except (TimedOut, subprocess.TimeoutExpired) as error:
        results.add(what, who or job.launcher.name, None, note)
        print(f"   {error}\n{job.logs()[-2000:]}", file=sys.stderr)
    finally:
        job.kill()


@contextlib.contextmanager
def to_its_end(job):
    """Kills the job in the end. One that is too slow ends the benchmark, with its last words."""
    try:
        yield
    except TimedOut as error:
        raise SystemExit(f"{error}\n{job.logs()[-3000:]}") from None
    finally:
        job.kill()
