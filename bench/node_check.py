#!/usr/bin/env python3
"""What a check of nodes takes beyond the checks' own work: 64 and more simulated agents over sockets, and real ones.

    python bench/node_check.py [--rounds 3] [--agents 64] [--many 2000] [--real 8] [--who phalanx,dlrover] [--json F]

Simulated agents have a stream each to a real phalanx-master, and answer each order at once: "checked" is the time from
the last node's welcome until all good ones have their world. Real agents are phalanx-run, one rank each, whose script
begins with `import torch`, on loopback addresses of this machine, which they share. "own work" is what the slowest node
of each part has measured; "beyond it" is the rest of the check, in which the nodes' zygotes also import torch, one
beside the other: a launch without a check waits for that as well. So what a check "adds to the launch" is told, too,
beyond its own work. dlrover-run launches the same script on as many nodes with its --network-check, and makes a node
bad by the variable of its own tests, MOCK_ERR_RANK; its master is started before, and is not timed.
"""

import argparse
import json
import os
import random
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from support import peers
from support.arguments import count, names
from support.results import Results, finish

PROGRAMS = Path(__file__).resolve().parent.parent / "build" / "release" / "bin"
RUN = Path(__file__).resolve().parent.parent / ".venv" / "bin"
PATIENCE_S = 900
ENDS_WITHIN_S = 20
WHO = ("phalanx", "dlrover")
TRAIN = "import sys\nimport torch\nprint('began', flush=True)\nsys.stdin.read()\n"


def simulate(results, agents, bad):
    programs = [PROGRAMS / "phalanx-scale-bench", PROGRAMS / "phalanx-master"]
    command = [*programs, str(agents), "open", "0", "1", str(bad)]
    said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    what = f"{agents:,} simulated agents, {bad} of them bad: checked"
    results.add(what, "phalanx-master", said["check_ms"] / 1000)


def own_work(check):
    """Seconds: each part takes as long as its slowest node. A node's results come in the order of parts."""
    parts = {}
    for node in check["nodes"]:
        part, seen = 0, set()
        for result in node["results"]:
            if result["check"] in ("tcp",) or (result["check"] in seen and "tcp" not in seen):
                part, seen = part + 1, set()
            seen.add(result["check"])
            parts.setdefault(part, {}).setdefault(node["node"], 0)
            parts[part][node["node"]] += result["took_us"]
    return sum(max(nodes.values()) for nodes in parts.values()) / 1e6


def start_job(folder, agents, bad, checked=True):
    port = random.randrange(20_000, 28_000)
    script, broken = folder / "train.py", folder / "broken"
    script.write_text(TRAIN)
    broken.write_text('#!/bin/sh\necho \'{"passed": false, "sentence": "planted"}\'\n')
    broken.chmod(0o755)
    began = time.monotonic()
    nodes = []
    for index in range(agents):
        command = [RUN / "phalanx-run", f"--nnodes={agents - bad}:{agents}", "--rdzv-backend=c10d"]
        command += ["--network-check"] if checked else []
        command += [f"--rdzv-endpoint=127.0.0.1:{port}", f"--local-addr=127.0.0.{index + 1}", "--rdzv-id=bench"]
        command += [f"--state-dir={folder / f'state{index}'}", "--rdzv-conf=last_call_timeout=60"]
        command += [f"--check-program={broken}"] if index < bad else []
        log = (folder / f"log{index}").open("w")
        ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
        nodes.append(subprocess.Popen([*command, script], start_new_session=True, **ends))
    return began, nodes


def await_ranks(nodes, wanted):
    """Until so many ranks have begun."""
    with selectors.DefaultSelector() as selector:
        for node in nodes:
            selector.register(node.stdout, selectors.EVENT_READ)
        deadline = time.monotonic() + PATIENCE_S
        while wanted > 0:
            ready = selector.select(deadline - time.monotonic())
            assert ready, "the world has not come"
            for key, _ in ready:
                line = key.fileobj.readline()
                if not line:  # a node that has failed its check ends with dlrover-run
                    selector.unregister(key.fileobj)
                assert selector.get_map(), "all nodes have ended"
                wanted -= line == b"began\n"


def end(nodes):
    for node in nodes:
        node.terminate()
    deadline = time.monotonic() + ENDS_WITHIN_S
    for node in nodes:
        try:
            node.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:  # an agent of DLRover's may wait for its ranks for ever
            os.killpg(node.pid, signal.SIGKILL)
            node.wait()


def launched(agents, bad):
    return (
        f"{agents} real agents{f', {bad} of them bad' if bad else ''}: launch to {agents - bad} ranks in their script"
    )


def run_unchecked(results, agents):
    """How long the launch takes."""
    with tempfile.TemporaryDirectory() as name:
        began, nodes = start_job(Path(name), agents, 0, checked=False)
        try:
            await_ranks(nodes, agents)
            took = time.monotonic() - began
        finally:
            end(nodes)
    results.add(f"not checked: {launched(agents, 0)}", "phalanx-run", took)
    return took


def start_dlrover(folder, agents, bad, checked):
    """Its master first: (when the nodes were started, they, the master)."""
    peer = peers.dlrover()
    port = random.randrange(20_000, 28_000)
    script = folder / "train.py"
    script.write_text(TRAIN)
    service = [word.format(port=port, nodes=agents) for word in peer.service]
    log = (folder / "master").open("w")
    master = subprocess.Popen(service, stdout=log, stderr=log, cwd=folder, start_new_session=True)
    await_port(port)
    began = time.monotonic()
    nodes = []
    for index in range(agents):
        place = folder / f"node{index}"  # a check leaves its times in the folder that it runs in
        place.mkdir()
        environment = {**os.environ, "DLROVER_MASTER_ADDR": f"127.0.0.1:{port}", "NODE_RANK": f"{index}"}
        environment |= {"NODE_ID": f"{index}", "NODE_NUM": f"{agents}"}
        environment |= {"MOCK_ERR_RANK": "0"} if index < bad else {}
        flags = [f"--nnodes={agents - bad}:{agents}", "--nproc-per-node=1", *(["--network-check"] if checked else [])]
        log = (folder / f"log{index}").open("w")
        ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
        command = [*peer.command, *flags, script]
        nodes.append(subprocess.Popen(command, env=environment, cwd=place, start_new_session=True, **ends))
    return began, nodes, master


def await_port(port):
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline, "the master of dlrover-run has not come"
            time.sleep(0.1)


def run_dlrover(results, agents, bad, checked):
    with tempfile.TemporaryDirectory() as name:
        began, nodes, master = start_dlrover(Path(name), agents, bad, checked)
        try:
            await_ranks(nodes, agents - bad)
            took = time.monotonic() - began
        finally:
            end([*nodes, master])
    results.add(f"{'' if checked else 'not checked: '}{launched(agents, bad)}", "dlrover-run", took)


def run_real(results, agents, bad, unchecked):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began, nodes = start_job(folder, agents, bad)
        try:
            await_ranks(nodes, agents - bad)
            took = time.monotonic() - began
            (hosts,) = {record.parent.parent for record in folder.glob("state*/*/events.db")}
            ask = [RUN / "phalanx", "status", f"--state-dir={hosts}", "--check", "--json", "bench"]
            check = json.loads(subprocess.run(ask, check=True, capture_output=True, text=True).stdout)["check"]
        finally:
            end(nodes)
        own = own_work(check)
        what = f"{agents} real agents{f', {bad} of them bad' if bad else ''}"
        results.add(f"{what}: the check", "phalanx-run", check["took_ms"] / 1000)
        results.add(f"{what}: of that own work", "phalanx-run", own)
        results.add(f"{what}: beyond it", "phalanx-run", check["took_ms"] / 1000 - own)
        results.add(launched(agents, bad), "phalanx-run", took)
        results.add(f"{what}: added to the launch, beyond own work", "phalanx-run", took - unchecked - own)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--agents", type=count, default=64)
    parser.add_argument("--many", type=count, default=2_000)
    parser.add_argument("--real", type=count, default=8)
    parser.add_argument("--who", type=names(WHO), default=",".join(WHO))
    parser.add_argument("--json")
    options = parser.parse_args()
    os.environ.pop("PHALANX_TOKEN", None)
    results = Results("s")
    for _ in range(options.rounds):
        if "phalanx" in options.who:
            simulate(results, options.agents, 0)
            simulate(results, options.agents, options.agents // 8)
            simulate(results, options.many, options.many // 8)
            unchecked = run_unchecked(results, options.real)
            run_real(results, options.real, 0, unchecked)
            run_real(results, options.real, 1, unchecked)
        if "dlrover" in options.who:
            run_dlrover(results, options.real, 0, checked=False)
            run_dlrover(results, options.real, 0, checked=True)
            run_dlrover(results, options.real, 1, checked=True)
    finish(options.json, "node_check", results)


if __name__ == "__main__":
    main()
