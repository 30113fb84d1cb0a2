"""The flags of dlrover-run: its help, and what each one is here. phalanx-run reads the command line."""

import argparse

# Of phalanx-run's other flags, which work here, too: those without a value, and those with one.
PHALANX_SWITCHES = frozenset(
    """--check-only --explain --no-warm --require-token --rescale-signal --retry-same-error --version
    --virtual-local-rank --warm --watch-ranks""".split()
)
PHALANX_VALUED = frozenset(
    """--check-directory --check-nics --check-program --check-timeout --debug-rank --duplicate-stderr-filters
    --duplicate-stdout-filters --elastic-config --event-log-handler --hang-timeout --job-token-file --log-format
    --log-line-prefix-template --membind-policy --numa-binding --older-save-after --parent-pid --port-range
    --print-completion --replay-log --report-file --rescale-grace --restart-grace --restart-window --shutdown-timeout
    --signals-to-handle --spares --state-dir --stop-timeout --store-relay --straggler-rule --switchbox-source --tls-ca
    --tls-cert --tls-key --watch""".split()
)
_STORE = {"action": "store_true"}

# (names, arguments of add_argument, the flag of phalanx-run or None, what it is here). In the order of --help.
ROWS = (
    (("--nnodes",), {}, "--nnodes", "number of nodes, or MIN:MAX of an elastic job"),
    (("--nproc-per-node",), {}, "--nproc-per-node", "workers of a node: a number, cpu, gpu or auto"),
    (("--rdzv-backend",), {}, "--rdzv-backend", "c10d, and not needed: nodes meet at DLROVER_MASTER_ADDR"),
    (
        ("--rdzv-endpoint",),
        {},
        "--rdzv-endpoint",
        "HOST:PORT where nodes meet, in place of DLROVER_MASTER_ADDR; a node there hosts the master",
    ),
    (("--rdzv-id",), {}, "--rdzv-id", "the job's id; ELASTIC_JOB_NAME counts more"),
    (("--rdzv-conf",), {}, "--rdzv-conf", "join_timeout, lastcall_timeout, node_unit: seconds, seconds, nodes"),
    (("--standalone",), _STORE, "--standalone", "one node by itself; DLROVER_MASTER_ADDR counts more if it answers"),
    (("--max-restarts",), {}, "--max-restarts", "failures of workers that the job survives"),
    (("--monitor-interval",), {}, "--monitor-interval", "no effect: nothing is polled"),
    (
        ("--start-method",),
        {"choices": ("spawn", "fork", "forkserver")},
        "--start-method",
        "no effect: scripts are never started by multiprocessing",
    ),
    (("--role",), {}, "--role", "name of the workers in logs and ROLE_NAME (default: dlrover-trainer)"),
    (("-m", "--module"), _STORE, "--module", "run the script as a module, as python -m does"),
    (("--no-python",), _STORE, "--no-python", "the script is a program of its own"),
    (("--run-path",), _STORE, "--run-path", "run the script as __main__: always so"),
    (("--log-dir",), {}, "--log-dir", "directory of log files"),
    (("-r", "--redirects"), {}, "--redirects", "streams that go to files: 1 stdout, 2 stderr, 3 both"),
    (("-t", "--tee"), {}, "--tee", "streams that go to files and to the console"),
    (("--local-ranks-filter",), {}, "--local-ranks-filter", "local ranks whose output the console shows"),
    (("--node-rank",), {}, "--node-rank", "rank of this node, with --rdzv-backend=static alone"),
    (("--master-addr",), {}, "--master-addr", "with --rdzv-backend=static alone"),
    (("--master-port",), {}, "--master-port", "with --rdzv-backend=static alone"),
    (("--local-addr",), {}, "--local-addr", "address that other nodes reach this one by"),
    (("--logs-specs",), {}, "--logs-specs", "refused: use --log-dir, --redirects and --tee"),
    (("--precheck",), {"choices": ("0", "1", "2")}, "--precheck", "check nodes before they train: 1 pairs, 2 also all"),
    (("--node_unit",), {}, "--node-unit", "train with a multiple of so many nodes"),
    (("--auto_config",), _STORE, "--auto-config", "--nnodes is NODE_NUM, --nproc-per-node what the node has"),
    (("--auto_tunning",), _STORE, "--auto-tunning", "refused: give the batch size in the script"),
    (("--exclude-straggler",), _STORE, "--exclude-straggler", "leave slow nodes out (--network-check, --watch-ranks)"),
    (("--save_at_breakpoint",), _STORE, "--save-at-breakpoint", "what is only in memory is stored at a failure"),
    (
        ("--accelerator",),
        {"choices": ("nvidia.com/gpu", "ascend-npu")},
        "--accelerator",
        "nvidia.com/gpu alone; the launcher itself needs none",
    ),
    (("--training_port",), {}, "--training-port", "refused: set HCCL_IF_BASE_PORT"),
    (("--switchbox-check",), _STORE, "--switchbox-check", "with --network-check, measure a node's GPUs in pairs"),
    (("--box-pairs",), {"nargs": "+", "metavar": "PAIR"}, "--box-pairs", "the pairs (default: 0:1 2:4 3:5 6:7)"),
    (("--min-bandwidth",), {}, "--min-bandwidth", "MB/s below which a pair has failed (default: 10000)"),
    (("--min-channels",), {}, "--min-channels", "pairs that must not have failed (default: 2)"),
    (("--numa-affinity",), _STORE, "--numa-affinity", "bind each worker to the CPUs near its GPU"),
    (("--network-check",), _STORE, "--network-check", "the same as --precheck=1"),
    (("--comm-perf-test",), _STORE, "--comm-perf-test", "the same as --precheck=2"),
    (("--ucp_device_type",), {}, None, "cpu alone: universal checkpoints are converted there"),
)


def parser():
    """For its help: phalanx-run parses."""
    found = argparse.ArgumentParser(
        prog="dlrover-run",
        description="Trains by phalanx-run, whose other flags work here, too (phalanx-run --help).",
        allow_abbrev=False,
    )
    for names, how, _, text in ROWS:
        found.add_argument(*names, help=text, **how)
    found.add_argument("training_script", help="the script, with its arguments behind it")
    found.add_argument("training_script_args", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return found


def _arities():
    """{--flag, with dashes: 0, 1 or "+" values}."""
    arities = {"--help": 0, **dict.fromkeys(PHALANX_SWITCHES, 0), **dict.fromkeys(PHALANX_VALUED, 1)}
    for names, how, _, _ in ROWS:
        arities[names[-1].replace("_", "-")] = 0 if how is _STORE else how.get("nargs", 1)
    return arities


_ARITIES = _arities()
_SHORT = {"-m": "--module", "-r": "--redirects", "-t": "--tee", "-h": "--help"}


class Line:
    """A command line, as far as it is known. `flags`: [(--name with dashes, [values], words)] up to the script, or up
    to a word that this does not know; `rest`: that and all words behind it."""

    def __init__(self, words):
        self.flags, self.rest = [], list(words)
        while self.rest and self._take_flag():
            pass

    def given(self, name):
        return any(found == name for found, _, _ in self.flags)

    def value(self, name, default=None):
        """The last one counts, as in argparse."""
        return next((values[-1] for found, values, _ in reversed(self.flags) if found == name and values), default)

    def words(self, without=()):
        kept = [word for name, _, words in self.flags if name not in without for word in words]
        return [*kept, *self.rest]

    def _take_flag(self):
        name, value = _split(self.rest[0])
        arity = _ARITIES.get(name)
        if arity is None or (arity == 0 and value is not None):
            return False
        values = self._following(arity) if value is None else [value]
        count = 1 + (len(values) if value is None else 0)
        self.flags.append((name, values, self.rest[:count]))
        del self.rest[:count]
        return True

    def _following(self, arity):
        if arity == 1:
            return self.rest[1:2]
        values = []
        for word in self.rest[1:] if arity == "+" else ():
            if word.startswith("-"):
                break
            values.append(word)
        return values


def _split(word):
    """(--name with dashes, its value or None) of a word."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return name.replace("_", "-"), value if equals else None
    return _SHORT.get(word[:2]), word[2:] or None
