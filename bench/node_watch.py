#!/usr/bin/env python3
"""What watching a node's hardware costs while a job trains: CPU of the agent, and of the helper that asks NVML.

    python bench/node_watch.py [--seconds 60] [--rounds 3] [--json F]

The machine is a tree like /sys, of eight GPUs (tests/fake_nvml.c answers at once), eight InfiniBand ports, eight NVMe
disks, 16 memory controllers and two CPU packages. CPU is as in idle.py, without the start; the agent's with --watch=off
is what it costs anyway; the two ranks have no torch and do nothing. "a reading" is what --watch=0.1 adds, by the number
of its readings. Beside the files of this tree a reading asks this machine's own /proc/vmstat and /proc/interrupts.
"""

import argparse
import os
import subprocess
import tempfile
from pathlib import Path

from idle import cpu_percent
from support.arguments import amount, count
from support.job import Job
from support.peers import BY_NAME
from support.results import Results, finish

ROOT = Path(__file__).resolve().parent.parent
GPUS, PORTS, DISKS, CONTROLLERS, PACKAGES = 8, 8, 8, 16, 2
PORT_COUNTERS = (
    "link_downed symbol_error link_error_recovery port_rcv_errors local_link_integrity_errors "
    "excessive_buffer_overrun_errors"
).split()
HARDWARE_COUNTERS = "out_of_sequence packet_seq_err local_ack_timeout_err req_cqe_error".split()


def make_machine(folder):
    """A tree like /sys and a folder of GPUs; the variables that name them."""

    def write(name, text):
        path = folder / "sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    for index in range(PORTS):
        port = f"class/infiniband/mlx5_{index}/ports/1"
        write(f"{port}/state", "4: ACTIVE")
        for name in PORT_COUNTERS:
            write(f"{port}/counters/{name}", 0)
        for name in HARDWARE_COUNTERS:
            write(f"{port}/hw_counters/{name}", 0)
        write(f"class/net/ib{index}/carrier_changes", 2)
        write(f"class/net/ib{index}/device/vendor", "0x15b3")
    for index in range(DISKS):
        write(f"class/nvme/nvme{index}/state", "live")
    for index in range(CONTROLLERS):
        write(f"devices/system/edac/mc/mc{index}/ce_count", 0)
        write(f"devices/system/edac/mc/mc{index}/ue_count", 0)
    for index in range(PACKAGES):
        write(f"devices/system/cpu/cpu{index}/thermal_throttle/package_throttle_count", 0)
        write(f"devices/system/cpu/cpu{index}/topology/physical_package_id", index)
    (folder / "sys/module/nvidia").mkdir(parents=True)
    (folder / "gpus").write_text(f"{GPUS}")
    for index in range(GPUS):
        for name in ("ecc", "remap_failed", "slowed"):
            (folder / f"{index}.{name}").write_text("0")
    os.mkfifo(folder / "events")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, ROOT / "tests/fake_nvml.c"], check=True)
    return {"PHALANX_SYSFS_ROOT": f"{folder / 'sys'}", "FAKE_NVML": f"{folder}", "LD_LIBRARY_PATH": f"{folder}"}


def processes(job):
    """The agent and, where there is one, the helper."""
    found = {"agent": [node.pid for node in job.nodes]}
    for pid in job.processes():
        if b"phalanx.node_watch" in Path(f"/proc/{pid}/cmdline").read_bytes():
            found.setdefault("helper", []).append(pid)
    return found


def measure(flag, environment, seconds):
    """{process: % of a core}."""
    job = Job(BY_NAME["phalanx"](), 1, 2, flags=[flag], workload="trivial.py", environment=environment)
    try:
        job.wait(lambda: len(job.events) == 2, "both ranks", 60)
        job.stay(10)  # spares are there, and the helper's imports are over
        return cpu_percent(job, processes(job), seconds)
    finally:
        job.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=amount, default=60.0)
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--json")
    options = parser.parse_args()
    shares, readings = Results("% of a core"), Results("us")
    with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder:
        environment = make_machine(Path(folder))
        for _ in range(options.rounds):
            off = measure("--watch=off", environment, options.seconds)
            on = measure("--watch=on", environment, options.seconds)
            often = measure("--watch=0.1", environment, options.seconds)
            shares.add("agent, --watch=off", "phalanx-run", off["agent"])
            shares.add("agent, --watch=on", "phalanx-run", on["agent"])
            shares.add("helper, --watch=on", "phalanx-run", on["helper"])
            for name in ("agent", "helper"):
                # % of a core, ten readings a second
                readings.add(f"a reading: {name}", "phalanx-run", (often[name] - off.get(name, 0)) / 100 / 10 * 1e6)
    finish(options.json, "node_watch", shares, readings)


if __name__ == "__main__":
    main()
