"""accelerate's own start of several processes on the CPU: by mpirun, where a host file is named. It needs of mpirun no
more than so many processes with a rank each; so where all of them belong on this machine, phalanx-run starts them.

What needs MPI itself, or another machine, is left to mpirun, and notice.py says why."""

import argparse
import ast
import os
import socket
import subprocess
import sys

from phalanx._launch import process
from phalanx.shim import notice

_NEED_MPI = ("mpi4py", "horovod")


def patch(module):
    """`module`: accelerate.commands.launch, just imported."""
    original = getattr(module, "simple_launcher", None)
    prepare = getattr(module, "prepare_simple_launcher_cmd_env", None)
    if original is None or prepare is None:
        return  # a version that launches otherwise: it is told of at the end

    def simple_launcher(args):
        hostfile = getattr(args, "mpirun_hostfile", None)
        if hostfile is None or (getattr(args, "num_processes", None) or 0) < 2:
            return original(args)
        why = why_mpirun(args, hostfile)
        if why is None:
            return _launch(args, prepare)
        notice.left_to_mpirun(os.environ, why)
        return original(args)

    module.simple_launcher = simple_launcher


def why_mpirun(args, hostfile):
    """Why only mpirun can start this; None: phalanx-run can as well."""
    if (getattr(args, "num_machines", None) or 1) > 1:
        return f"--num_machines={args.num_machines}: mpirun starts the ranks on several machines"
    elsewhere = [name for name in hosts_of(hostfile) if not is_here(name)]
    if elsewhere:
        return f"{hostfile} names {elsewhere[0]}, which is not this machine"
    if args.no_python:
        return f"--no_python: {args.training_script} may need MPI itself"
    wanted = None if args.module else needs_mpi(args.training_script)
    if wanted is not None:
        return f"{args.training_script} imports {wanted}, which needs MPI itself"
    import torch.distributed

    if torch.distributed.is_mpi_available():
        return "this torch is built with MPI, and accelerate takes that for its backend"
    return None


def hosts_of(hostfile):
    """As Open MPI ("a slots=4") and Intel's ("a:4") write them. Of a file that cannot be read mpirun says so."""
    try:
        with open(hostfile, encoding="utf-8") as file:
            lines = [line.partition("#")[0].split() for line in file]
    except (OSError, UnicodeDecodeError):
        return [f"what cannot be read ({hostfile})"]
    return [words[0] if words[0].count(":") != 1 else words[0].partition(":")[0] for words in lines if words]


def is_here(name):
    """Whether all addresses of that host are this machine's: those that a socket can be bound to."""
    try:
        found = socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as bound:
                bound.bind(address)
    except (OSError, UnicodeError):
        return False
    return True


def needs_mpi(script):
    """The module of MPI that the script's own text imports; None: it imports none."""
    try:
        with open(script, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return None  # whoever runs it says what is wrong
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module]
        for name in names:
            if name.partition(".")[0] in _NEED_MPI:
                return name.partition(".")[0]
    return None


def _launch(args, prepare):
    """As accelerate's own: returns where all processes ended with 0."""
    command, environment = prepare(argparse.Namespace(**{**vars(args), "mpirun_hostfile": None}))
    flags = ["--standalone", f"--nproc-per-node={args.num_processes}", *(["--module"] if args.module else [])]
    arguments = [*flags, "--", args.training_script, *args.training_script_args]
    code = process.run_node(arguments, environment).code
    if code == 0:
        return
    if args.quiet:
        sys.exit(1)
    raise subprocess.CalledProcessError(returncode=code, cmd=command)
