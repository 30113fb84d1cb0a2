"""torch.distributed.launcher's Python interface on phalanx-run: LaunchConfig, elastic_launch, launch_agent.

    values = elastic_launch(LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2), train)("a", 1)

docs/python.md, "Calling it from Python", says what differs. torch is imported only to raise one of its exceptions.
"""

import dataclasses
import os
import signal
import sys
import tempfile
from typing import Any, Dict, List, Optional, Set, Union

from phalanx._launch import flags, functions, process

__all__ = ["LaunchConfig", "LogsSpecs", "elastic_launch", "launch_agent"]


class LogsSpecs:
    """Where output goes: torch's DefaultLogsSpecs. `redirects` and `tee`: 0 to 3, or {local rank: 0 to 3}."""

    def __init__(
        self,
        log_dir: Optional[str] = None,
        redirects: Union[int, Dict[int, int]] = 0,
        tee: Union[int, Dict[int, int]] = 0,
        local_ranks_filter: Optional[Set[int]] = None,
    ):
        self._root_log_dir = log_dir
        self._redirects = redirects
        self._tee = tee
        self._local_ranks_filter = local_ranks_filter


@dataclasses.dataclass
class LaunchConfig:
    """The fields of torch's LaunchConfig, whose instances are taken as well. The rendezvous is c10d where torch's is
    etcd, which is not supported."""

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: Optional[LogsSpecs] = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "c10d"
    rdzv_configs: Dict[str, Any] = dataclasses.field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: Optional[str] = None
    metrics_cfg: Dict[str, str] = dataclasses.field(default_factory=dict)
    local_addr: Optional[str] = None
    event_log_handler: str = "null"
    numa_options: Any = None
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    duplicate_stdout_filters: Optional[List[str]] = None
    duplicate_stderr_filters: Optional[List[str]] = None
    virtual_local_rank: bool = False
    shutdown_timeout: Optional[int] = None


class elastic_launch:
    """Launches `entrypoint`, a function or a command, on this node's workers; with `config` for more, on others'."""

    def __init__(self, config, entrypoint, health_check_server=None):
        if health_check_server is not None:
            raise ValueError("elastic_launch: health_check_server is not supported; expected None")
        self._config = config
        self._entrypoint = entrypoint

    def __call__(self, *args):
        """Returns {global rank: what the function returned} of this node's workers; None for each rank of a command."""
        return launch_agent(self._config, self._entrypoint, list(args))


def launch_agent(config, entrypoint, args, health_check_server=None):
    """elastic_launch(config, entrypoint)(*args)"""
    if health_check_server is not None:
        raise ValueError("launch_agent: health_check_server is not supported; expected None")
    if entrypoint is None:
        raise ValueError("launch_agent: entrypoint=None: expected a function or a command")
    for sentence in flags.notices(config):
        sys.stderr.write(f"phalanx: {sentence}\n")
    if callable(entrypoint):
        return _launch_function(config, entrypoint, args)
    pythons = flags.pythons_of(sys.executable, os.environ)
    words = flags.from_command(entrypoint, args, pythons)
    name = next((word for word in words[words.index("--") + 1 :] if not word.startswith("-")), entrypoint)
    told = _run(config, words, name)
    return {told.rank_base + local_rank: None for local_rank in range(told.workers)}


def _launch_function(config, function, args):
    functions.refuse_inside_import()
    call = functions.pickle_call(function, args)
    with tempfile.TemporaryDirectory(prefix="phalanx-call-") as folder:
        functions.write_private(os.path.join(folder, functions.CALL), call)
        name = getattr(function, "__name__", repr(function))
        preload = [] if "PHALANX_PRELOAD" in os.environ else functions.modules_used(function)
        told = _run(config, flags.from_function(name, preload, [functions.WORKER_FILE, folder]), name)
        return functions.read_results(folder, told)


def _run(config, words, name):
    arguments = [*flags.from_config(config, os.environ), *words]
    outcome = process.run_node(arguments, flags.without_pet(os.environ), _signals(config.signals_to_handle))
    process.raise_unless_succeeded(outcome, name)
    return process.told_of_success(outcome)


def _signals(text):
    """Numbers of those that exist; phalanx-run has a sentence for the others."""
    found = {getattr(signal, name.strip(), None) for name in text.split(",")}
    return {number for number in found if isinstance(number, signal.Signals)}
