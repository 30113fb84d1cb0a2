"""Nothing of DLRover's is here but the sentence for what is asked for."""

from dlrover.offered import getter

OFFERED = {}
_WHY = (
    "no code of the user's runs in the agent: --max-restarts, --restart-window and --retry-same-error say when a job "
    "goes on, --check-program lets a program of yours leave a node out"
)
REFUSED = {"DynamicAgentFailoverExtension": _WHY, "AgentFailureInfo": _WHY}
__getattr__ = getter(__name__, REFUSED)
