"""./run demo: a real DDP job on two local "nodes"; a worker is killed, a node joins, a node leaves, training goes on.

Each node is a phalanx-run of its own on a loopback address. What it needs lies in a temporary directory, and what it
starts ends with it.
"""

import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.path.dirname(sys.executable)
PATIENCE_S = 120
# The line an agent prints when training goes on: "<reason>: restarted from a warm spare in 92 ms, world 4, step 118".
RECOVERED = re.compile(
    r"^(?P<reason>.*?): (?P<how>restarted.*) in (?P<ms>\d+) ms, world (?P<world>\d+), step (?P<step>\d+)$"
)
BEGUN = re.compile(r"^(?P<reason>.*): training, world (?P<world>\d+), step (?P<step>\d+)$")


class Demo:
    def __init__(self, folder):
        self.folder = folder
        self.checkpoint = os.path.join(folder, "model.pt")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.lines = queue.Queue()
        self.nodes = {}
        self.started = time.monotonic()
        self.summary = []

    def say(self, who, text):
        print(f"{time.monotonic() - self.started:7.2f} s  {who:<7} {text}", flush=True)

    def start_node(self, name, address):
        command = [
            os.path.join(BIN, "phalanx-run"),
            "--nnodes=2:3",
            "--nproc-per-node=2",
            "--max-restarts=3",
            "--rdzv-id=demo",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{self.port}",
            f"--local-addr={address}",
            f"--state-dir={os.path.join(self.folder, 'state')}",
            os.path.join(HERE, "train.py"),
            self.checkpoint,
        ]
        self.say(
            "you", f"start {name}: phalanx-run --nnodes=2:3 --nproc-per-node=2 --local-addr={address} ... train.py"
        )
        node = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.nodes[name] = node
        threading.Thread(target=self.follow, args=(name, node), daemon=True).start()

    def follow(self, name, node):
        for line in node.stderr:
            self.lines.put((name, line.rstrip()))
        self.lines.put((name, None))

    def next_line(self, waited_for):
        try:
            return self.lines.get(timeout=PATIENCE_S)
        except queue.Empty:
            raise SystemExit(f"demo: nothing happened for {PATIENCE_S} s; waited for {sorted(waited_for)}") from None

    def wait_for_training(self, what, world, nodes):
        """Shows the nodes' lines until each of `nodes` has said that it trains in a world of this size."""
        waiting = set(nodes)
        slowest_ms, latest_step = None, 0
        while waiting:
            name, line = self.next_line(waiting)
            if line is None:
                if name in waiting:
                    raise SystemExit(f"demo: {name} ended with {self.nodes[name].wait()} while it was waited for")
                continue
            text = line.removeprefix("phalanx-run: ")
            self.say(name, text)
            found = RECOVERED.match(text) or BEGUN.match(text)
            if found and int(found["world"]) == world and name in waiting:
                waiting.discard(name)
                latest_step = max(latest_step, int(found["step"]))  # a node that is new counts its own
                if "ms" in found.groupdict():
                    slowest_ms = max(slowest_ms or 0, int(found["ms"]))
        self.summary.append((what, world, latest_step, slowest_ms))

    def watch(self, seconds):
        """Shows what the nodes say for so long: the job trains, and saves its steps."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                name, line = self.lines.get(timeout=left)
            except queue.Empty:
                return
            if line is not None:
                self.say(name, line.removeprefix("phalanx-run: "))

    def kill_rank(self, rank):
        with open(f"{self.checkpoint}.rank{rank}.pid") as file:
            pid = int(file.read())
        self.say("you", f"kill -9 rank {rank} (pid {pid})")
        os.kill(pid, signal.SIGKILL)

    def stop_node(self, name):
        self.say("you", f"SIGTERM to {name}")
        self.nodes.pop(name).terminate()

    def finish(self):
        self.say("you", "that is enough: the script stops by itself")
        with open(self.checkpoint + ".stop", "w"):
            pass
        return {name: node.wait(timeout=PATIENCE_S) for name, node in self.nodes.items()}

    def clean(self):
        for node in self.nodes.values():
            if node.poll() is None:
                node.kill()
                node.wait()


def story(demo):
    demo.start_node("node-a", "127.0.0.1")
    demo.start_node("node-b", "127.0.0.2")
    demo.wait_for_training("start", 4, ["node-a", "node-b"])
    demo.watch(1.0)
    demo.kill_rank(3)
    demo.wait_for_training("kill -9 of rank 3", 4, ["node-a", "node-b"])
    demo.start_node("node-c", "127.0.0.3")
    demo.wait_for_training("a third node joins", 6, ["node-a", "node-b", "node-c"])
    demo.stop_node("node-b")
    demo.wait_for_training("node-b leaves", 4, ["node-a", "node-c"])
    return demo.finish()


def main():
    with tempfile.TemporaryDirectory(prefix="phalanx-demo-") as folder:
        demo = Demo(folder)
        try:
            codes = story(demo)
        finally:
            demo.clean()
    print(f"\n{'what happened':<22}{'world':>6}{'step':>8}   training again after")
    for what, world, step, ms in demo.summary:
        print(f"{what:<22}{world:>6}{step:>8}   {'-' if ms is None else f'{ms} ms'}")
    print(f"\nexit codes: {', '.join(f'{name} {code}' for name, code in sorted(codes.items()))}")
    return 0 if set(codes.values()) == {0} else 1


if __name__ == "__main__":
    sys.exit(main())
