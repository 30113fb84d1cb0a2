"""Takes shards of a dataset from the job's master until there are none, and says which. Without torch."""

import argparse
import json
import os
import time

from phalanx.data import Shards
from report import report

parser = argparse.ArgumentParser()
parser.add_argument("--size", type=int, default=100)
parser.add_argument("--shard-size", type=int, default=1)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--shuffle", choices=["shards", "records"])
parser.add_argument("--work-ms", type=float, default=5)
parser.add_argument("--differ", action="store_true", help="each rank says another size")
parser.add_argument("--state", help="the state to begin with, as JSON")
options = parser.parse_args()

report("main")
shards = Shards(
    "data",
    options.size + (int(os.environ["RANK"]) if options.differ else 0),
    options.shard_size,
    options.epochs,
    shuffle={None: False, "shards": True, "records": "records"}[options.shuffle],
)
if options.state:
    shards.load_state_dict(json.loads(options.state))
while True:
    shard = shards.fetch()
    if shard is None:
        break
    report("given", number=shard.number, epoch=shard.epoch, records=list(shard.records()))
    time.sleep(options.work_ms / 1000)
    report("reporting", number=shard.number)
    shards.done(shard)
    report("done", number=shard.number)
report("end", state=shards.state_dict())
