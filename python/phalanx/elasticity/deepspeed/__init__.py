"""Elasticity for a DeepSpeed that has it no more (0.19.8 and later), as the last one had it (0.19.7).

`import phalanx.elasticity.deepspeed`, before or after DeepSpeed, puts it in place; below phalanx-run nobody has to. A
DeepSpeed with elasticity of its own keeps that.
"""

from phalanx import elasticity
from phalanx._bootstrap import elasticity as hooks

LAST_VERSION = "0.19.7"


def compute_elastic_config(ds_config, target_deepspeed_version, world_size=0, return_microbatch=False):
    """phalanx.elasticity's, with the behaviour of DeepSpeed 0.19.7."""
    return elasticity.compute_elastic_config(
        ds_config, target_deepspeed_version, world_size, return_microbatch, deepspeed_version=LAST_VERSION
    )


hooks.install()
