"""Arguments of phalanx-run from what torch's Python interfaces hold: a parsed Namespace, a LaunchConfig. Pure, but for
`torch_defaults`."""

import os
import uuid

# phalanx-run reads what follows as torch.distributed.launch does.
AS_TORCH_LAUNCH = "--as-torch-launch"
# Where these are not given, Slurm's variables count. torch knows no Slurm: 1 of a Namespace is 1.
_ALWAYS_SAID = ("nnodes", "nproc_per_node")


def torch_defaults():
    """{destination: default} of torchrun's own parser, as the installed torch and PET_* variables have it."""
    from torch.distributed.run import get_args_parser

    return {action.dest: action.default for action in get_args_parser()._actions if action.dest != "help"}


def from_namespace(values, defaults):
    """`values`: of a Namespace; `defaults`: of the parser that made it. What stands at its default is left out, and so
    means what it means to phalanx-run, but for _ALWAYS_SAID; what the parser does not know, torch does not look at
    either."""
    flags = []
    for name, default in defaults.items():
        value = values.get(name)
        if name.startswith("training_script") or value is None or value is False:
            continue
        if str(value) == str(default) and name not in _ALWAYS_SAID:
            continue
        flags.append(_flag(name, value))
    arguments = list(values.get("training_script_args") or [])
    if values.get("use_env") is False:  # torch.distributed.launch without --use-env
        arguments.insert(0, "--local-rank=${local_rank}")
    return [*flags, "--", values["training_script"], *map(str, arguments)]


def _flag(name, value):
    flag = "--" + name.replace("_", "-")
    if value is True:
        return flag
    return f"{flag}={_comma_list(value) if isinstance(value, (list, tuple)) else value}"


def _comma_list(texts):
    return ",".join(str(text).replace(",", ",,") for text in texts)


def from_config(config, environment):
    """The flags for a LaunchConfig, torch's or ours; the script's part follows. `environment`: that of this process.

    ValueError names a field whose value nobody can carry out here."""
    flags = [
        f"--nnodes={config.min_nodes}:{config.max_nodes}",
        f"--nproc-per-node={config.nproc_per_node}",
        f"--role={config.role}",
        f"--max-restarts={config.max_restarts}",
        f"--signals-to-handle={config.signals_to_handle}",
        *_rendezvous_flags(config),
        *_logs_flags(config.logs_specs),
    ]
    usual = {"monitor_interval": 0.1, "start_method": "spawn", "event_log_handler": "null"}
    usual["shutdown_timeout"] = int(environment.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT") or 30)  # torch fills it in
    names = ("log_line_prefix_template", "local_addr", "duplicate_stdout_filters", "duplicate_stderr_filters")
    for name in (*names, "virtual_local_rank", *usual):
        value = getattr(config, name, None)  # an older torch has fewer fields
        if not any(value is nothing or value == [] for nothing in (None, False)) and value != usual.get(name, ""):
            flags.append(_flag(name, value))
    numa = getattr(config, "numa_options", None)
    if numa is not None:
        flags.append(f"--numa-binding={getattr(numa.affinity_mode, 'value', numa.affinity_mode)}")
    return flags


def notices(config):
    """Sentences about fields that have no effect here."""
    if getattr(config, "metrics_cfg", None):
        yield "LaunchConfig.metrics_cfg has no effect: what happened is in the job's record, see phalanx events"


def _rendezvous_flags(config):
    endpoint = config.rdzv_endpoint
    if config.rdzv_backend == "c10d" and config.max_nodes == 1 and not endpoint:
        endpoint = "localhost:0"  # nobody else will come
    pairs = dict(config.rdzv_configs)
    flags = [f"--rdzv-backend={config.rdzv_backend}", f"--rdzv-id={config.run_id or uuid.uuid4().hex}"]
    if endpoint:
        flags.append(f"--rdzv-endpoint={endpoint}")
    if config.rdzv_backend == "static" and "rank" in pairs:
        flags.append(f"--node-rank={pairs.pop('rank')}")
    if getattr(config, "rdzv_timeout", -1) != -1:
        pairs.setdefault("timeout", config.rdzv_timeout)
    for name, value in pairs.items():
        if any(character in f"{name}{value}" for character in ",="):
            raise ValueError(f"LaunchConfig.rdzv_configs[{name!r}] = {value!r}: expected no ',' and no '='")
    if pairs:
        flags.append("--rdzv-conf=" + ",".join(f"{name}={value}" for name, value in pairs.items()))
    return flags


def _logs_flags(specs):
    if specs is None:
        return []
    if type(specs).__name__ not in ("DefaultLogsSpecs", "LogsSpecs"):
        raise ValueError(
            f"LaunchConfig.logs_specs = {type(specs).__name__}: plug-ins for logs are not supported; expected "
            "DefaultLogsSpecs, or None"
        )
    flags = []
    if specs._root_log_dir:
        flags.append(f"--log-dir={specs._root_log_dir}")
    for name in ("redirects", "tee"):
        streams = getattr(specs, "_" + name)
        text = (
            ",".join(f"{rank}:{int(bits)}" for rank, bits in streams.items())
            if isinstance(streams, dict)
            else str(int(streams))
        )
        if text not in ("", "0"):
            flags.append(f"--{name}={text}")
    if specs._local_ranks_filter:
        flags.append("--local-ranks-filter=" + ",".join(str(rank) for rank in sorted(specs._local_ranks_filter)))
    return flags


def from_command(entrypoint, arguments, pythons):
    """The script's part for a command. `pythons`: names of this interpreter; what torchrun would start by it as
    `python -u [-m] script ...` is a script here, too, and can start warm."""
    words = [str(argument) for argument in arguments]
    if entrypoint in pythons and words[:1] == ["-u"]:
        module = words[1:2] == ["-m"]
        rest = words[2 if module else 1 :]
        if rest and not rest[0].startswith("-"):
            return [*(["--module"] if module else []), "--", *rest]
    return ["--no-python", "--", entrypoint, *words]


def from_function(name, preload, words):
    """The script's part for a function. `preload`: modules that it uses; `words`: the file that calls it, and more."""
    visible = "".join(character if character.isprintable() else "?" for character in name)[:60]
    named = [f"--script-name={visible}"] if visible else []
    return [*named, *([f"--preload={','.join(preload)}"] if preload else []), "--", *words]


def without_pet(environment):
    """torch's Python interface does not look at PET_*; a phalanx-run that is told by flags must not either."""
    return {name: value for name, value in environment.items() if not name.startswith("PET_")}


def pythons_of(executable, environment):
    return {executable, environment.get("PYTHON_EXEC") or executable, os.path.realpath(executable)}
