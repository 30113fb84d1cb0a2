"""The launchers that are compared: how each is started and with which environment.

torchrun comes from the environment that runs the benchmark. dlrover-run is installed from PyPI into an environment of
its own under PHALANX_CACHE, which borrows torch from ours.
"""

import dataclasses
import os
import site
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BIN = Path(sys.executable).parent
DLROVER = "dlrover[k8s]==0.6.1"
PROTOBUF = "protobuf"  # its gRPC messages need it; the extra forgets it
WITH_TOKEN = "phalanx-run, with a token"
TRANSFORMERS = "transformers==5.23.0"
DEEPSPEED = "deepspeed==0.16.5"
DEEPSPEED_SHA256 = "29e007a2bdafb1431b7a021126dace0126ce53c57eb79db1ba85a1484c0b770e"


@dataclasses.dataclass(frozen=True)
class Launcher:
    """`single` and `several` are the flags of a job on one node and of one node among several. `service` is a command
    that runs beside the job; it and the environment may name {port}, a free one, {nodes}, {nnodes}, {host}, {name} and
    {folder}. Ranks have the Python that PYTHON_EXEC names, or, where `has_python`, the first word of the command."""

    name: str
    command: tuple
    single: tuple = ("--standalone",)
    several: tuple = ("--rdzv-backend=c10d",)
    environment: tuple = ()
    service: tuple = ()
    note: str = ""
    has_python: bool = False


def phalanx():
    command = os.environ.get("PHALANX_RUN") or str(BIN / "phalanx-run")
    if not os.access(command, os.X_OK):
        raise SystemExit(f"{command} is not there: ./run build makes it, or set PHALANX_RUN")
    return Launcher("phalanx-run", (command,))


def phalanx_with_master():
    """With a phalanx-master that stands alone, so that losing a node is not losing the master."""
    ours = phalanx()
    master = str(Path(ours.command[0]).parent / "phalanx-master")
    place = ("--host={host}", "--port={port}", "--job-id={name}", "--state-dir={folder}/master", "--nnodes={nnodes}")
    budget = "--max-restarts=100"  # its flags count, not the nodes'
    hosted = ("--rdzv-backend=c10d", "--rdzv-conf=is_host=0")
    return dataclasses.replace(ours, several=hosted, service=(master, *place, budget))


def phalanx_with_token():
    """All that agents and master say is encrypted, and both have proved themselves. Of one node that is so anyway."""
    return dataclasses.replace(phalanx(), name=WITH_TOKEN, environment=(("PHALANX_TOKEN", "the-token-of-a-benchmark"),))


def torchrun():
    return Launcher("torchrun", (str(BIN / "torchrun"),))


def torchrun_own_store():
    """torchrun with the work-around for restarts that read the dead attempt's keys (pytorch#135712)."""
    return Launcher(
        "torchrun, rank 0's store",
        (str(BIN / "torchrun"),),
        environment=(("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"),),
        note="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
    )


def dlrover():
    """dlrover-run --standalone starts its master by a call that newer torch refuses (SubprocessHandler without
    numa_options), so the same master is started here, at the same time, by the command it would have used."""
    folder = dlrover_environment() / "bin"
    words = "-u -m dlrover.python.master.main --port {port} --node_num {nodes} --job_name bench --platform local"
    return Launcher(
        "dlrover-run",
        (str(folder / "dlrover-run"),),
        single=("--nnodes=1",),
        several=(),
        environment=(("DLROVER_MASTER_ADDR", "127.0.0.1:{port}"),),
        service=(str(folder / "python"), *words.split()),
    )


def forked():
    """What is left when nothing but starting the ranks is done; see forked.py."""
    command = (sys.executable, str(Path(__file__).with_name("forked.py")))
    return Launcher("torch once, a fork each", command, single=(), has_python=True)


def deepspeed_elasticity():
    """A folder with DeepSpeed's elasticity modules, and nothing else of it: they need numpy and packaging alone."""
    folder = cache() / "peers" / DEEPSPEED.replace("==", "-") / DEEPSPEED_SHA256[:20]
    if (folder / "elasticity").is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as draft:
        wanted = Path(draft) / "wanted.txt"
        wanted.write_text(f"{DEEPSPEED} --hash=sha256:{DEEPSPEED_SHA256}\n")
        flags = ["--quiet", "--no-deps", "--no-build-isolation", "--no-binary=:all:", "--dest", draft]
        print(f"downloading {DEEPSPEED}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "pip", "download", *flags, "--requirement", wanted], check=True)
        name = DEEPSPEED.replace("==", "-")
        with tarfile.open(Path(draft) / f"{name}.tar.gz") as archive:
            inside = f"{name}/deepspeed/elasticity/"
            archive.extractall(draft, [member for member in archive.getmembers() if member.name.startswith(inside)])
        (Path(draft) / name / "deepspeed").rename(folder)
    return folder


def cache():
    return Path(os.environ.get("PHALANX_CACHE") or Path.home() / ".cache" / "phalanx")


def dlrover_environment():
    return environment(DLROVER.replace("[k8s]==", "-"), DLROVER, PROTOBUF)


def transformers_environment():
    return environment(TRANSFORMERS.replace("==", "-"), TRANSFORMERS)


def environment(name, *wanted):
    """Makes the environment with a peer where it is missing; returns its folder."""
    folder = cache() / "peers" / name
    ready = folder / ".ready"
    ours = site.getsitepackages()[0]
    made_of = f"{ours} {' '.join(wanted[1:])}"
    if not (ready.is_file() and ready.read_text() == made_of):
        print(f"installing {wanted[0]} into its own environment", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        (Path(site_packages(folder)) / "torch_of_phalanx.pth").write_text(ours + "\n")
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", *wanted], check=True)
        ready.write_text(made_of)
    return folder


def site_packages(environment):
    return next((environment / "lib").glob("python3*")) / "site-packages"


BY_NAME = {
    "phalanx": phalanx,
    "phalanx-token": phalanx_with_token,
    "torchrun": torchrun,
    "torchrun-own-store": torchrun_own_store,
    "dlrover": dlrover,
}
BOUNDS = {"forked": forked}  # not launchers: what none of them can be faster than
