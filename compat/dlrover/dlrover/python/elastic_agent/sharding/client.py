"""Nothing of DLRover's is here but the sentence for what is asked for."""

from dlrover.offered import getter

OFFERED = {}
_WHY = (
    "the master hands out no shards: dlrover.trainer.torch.elastic.sampler.ElasticDistributedSampler shares a dataset "
    "out, and its state_dict() in the checkpoint keeps the position when the world changes (without a sampler: "
    "phalanx.checkpoint.DataPosition)"
)
REFUSED = {"ShardingClient": _WHY, "IndexShardingClient": _WHY}
__getattr__ = getter(__name__, REFUSED)
