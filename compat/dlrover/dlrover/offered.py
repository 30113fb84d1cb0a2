"""What each name of DLRover is here. A module says it of its own names in OFFERED and REFUSED; the page docs/dlrover.md
is made of these (tools/dlrover_page.py), and what is refused raises with the same sentence."""

SAME, BETTER, DIFFERS = "same", "better", "differs"

# Modules of DLRover of which nothing is here, by the beginning of their names.
ABSENT = {
    "dlrover.brain": "no service plans resources: --nnodes=MIN:MAX and --elastic-config say what a job takes",
    "dlrover.dashboard": "phalanx status, phalanx events and phalanx ledger show a job",
    "dlrover.python.diagnosis": "failures are explained by phalanx events; --watch and --watch-ranks look at hardware "
    "and slow ranks",
    "dlrover.python.elastic_agent.tensorflow": "Phalanx trains with torch",
    "dlrover.python.elastic_agent.torch.ckpt_saver": "phalanx-run's agent stores what ranks save by phalanx.checkpoint",
    "dlrover.python.elastic_agent.torch.training": "phalanx.launcher has LaunchConfig and elastic_launch",
    "dlrover.python.preprocess": "python -m phalanx.preprocess prepares training data, also on Spark",
    "dlrover.python.scheduler": "phalanx-master starts no pods; dlrover-run is started on each node",
    "dlrover.python.training_event": "phalanx.step() and phalanx.saving() say what a rank does; phalanx events has it",
    "dlrover.python.unified": "jobs of several roles on Ray are not offered; start each role by its own phalanx-run",
    "dlrover.trainer.tensorflow": "Phalanx trains with torch",
}


def getter(module, refused, made=None):
    """The __getattr__ of `module`. `refused`: {name: what to use}; `made`: {name: function that makes it}, for what
    needs an import that not everybody has."""

    def find(name):
        if made is not None and name in made:
            return made[name]()
        if name in refused:
            raise ImportError(f"phalanx-dlrover does not offer {module}.{name}: {refused[name]}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}: phalanx-dlrover does not offer it")

    return find


class Refuser:
    """Of sys.meta_path: the sentence for modules of DLRover that nobody has found."""

    def find_spec(self, name, path=None, target=None):
        if not name.startswith("dlrover."):
            return None
        # Without `name=`: "from package import module" would take it for an attribute that is missing.
        raise ModuleNotFoundError(f"phalanx-dlrover does not offer the module {name}{_instead_of(name)}")


def _instead_of(name):
    beginning = max((known for known in ABSENT if f"{name}.".startswith(f"{known}.")), key=len, default=None)
    return "; docs/dlrover.md lists what there is" if beginning is None else f": {ABSENT[beginning]}"
