"""Names of variables and files."""

from dlrover.offered import DIFFERS, SAME, getter

OFFERED = {
    "NodeEnv": (SAME, "names of variables: those that dlrover-run and workers look at here"),
    "ConfigPath": (SAME, "where ElasticDataLoader reads batch sizes, and ElasticTrainer leaves its last step"),
    "CheckpointConstant": (DIFFERS, "names of files; a save has no done files and no stage folder"),
}
__getattr__ = getter(__name__, {})

# {name: what it is here} of the variables that dlrover-run reads, and of those that its workers have beside
# phalanx-run's.
READ = {
    "DLROVER_MASTER_ADDR": "the job's master, a phalanx-master; counts more than --standalone where somebody answers",
    "ELASTIC_JOB_NAME": "the job's id",
    "NODE_NUM": "with --auto_config the number of nodes",
    "POD_IP": "this node's address, where --local-addr is not given",
    "PET_<FLAG>": "as the flag, where docs/flags.md has the variable",
    "PYTHON_EXEC": "the interpreter of the workers",
    "DLROVER_MASTER_SERVICE_TYPE": "grpc; http and ray are refused",
    "DLROVER_EXTENSION_DYNAMIC_FAILOVER": "a notice: no code of the user's runs in the agent",
    "NODE_RANK": "a notice: nodes have their places by phalanx-master, those of the last round again the same",
    "FAILURE_NODE_ERRORS": "a notice: --watch finds what explains a failure, --check-program leaves a node out",
    "DLROVER_TRAINING_ELASTIC_MODE": "not needed: universal checkpoints are made behind each save",
    "MONITOR_ENABLED": "not needed: steps are seen as they are made",
}
GIVEN = {
    "ROLE_NAME": "dlrover-trainer, unless --role says another",
    "NODE_NUM": "the MAX of --nnodes, where it is not set",
    "WORKER_NUM": "the same",
    "DLROVER_PARAL_CONFIG_PATH": "./dlrover/auto_paral_config.json, where it is not set: ElasticDataLoader reads it",
    "RUNTIME_METRICS_PATH": "./dlrover/runtime_metrics.json, where it is not set: ElasticTrainer writes it",
}


class NodeEnv:
    DLROVER_MASTER_ADDR = "DLROVER_MASTER_ADDR"
    DLROVER_MASTER_SERVICE_TYPE = "DLROVER_MASTER_SERVICE_TYPE"
    JOB_NAME = "ELASTIC_JOB_NAME"
    NODE_ID = "NODE_ID"
    NODE_NUM = "NODE_NUM"
    NODE_RANK = "NODE_RANK"
    NODE_TYPE = "NODE_TYPE"
    POD_NAME = "POD_NAME"
    TORCHELASTIC_RUN_ID = "TORCHELASTIC_RUN_ID"
    WORKER_NUM = "WORKER_NUM"
    WORKER_RANK = "WORKER_RANK"


class ConfigPath:
    ENV_PARAL_CONFIG = "DLROVER_PARAL_CONFIG_PATH"
    PARAL_CONFIG = "./dlrover/auto_paral_config.json"
    ENV_RUNTIME_METRICS = "RUNTIME_METRICS_PATH"
    RUNTIME_METRICS = "./dlrover/runtime_metrics.json"


class CheckpointConstant:
    TRACER_FILE_NAME = "dlrover_latest.txt"
    MODEL_STATES_NAME = "model_states"
    OPTIM_STATES_NAME = "optim_states"
    SAVE_TIMEOUT = 600
