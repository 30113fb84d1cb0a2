"""A training that takes shards as DLRover's documentation shows it."""

import argparse
import time

from dlrover.python.elastic_agent.sharding.client import IndexShardingClient, ShardingClient
from report import report

parser = argparse.ArgumentParser()
parser.add_argument("--kind", choices=["shards", "index", "loader"], required=True)
parser.add_argument("--storage", default="table")
parser.add_argument("--shuffle", action="store_true")
parser.add_argument("--fail", action="store_true", help="the first shard of rank 0 is reported with an error")
parser.add_argument("--state", default="", help="what get_shard_checkpoint() has given")
options = parser.parse_args()

BATCH, SIZE = 4, 150
ARGUMENTS = {
    "dataset_name": "train",
    "batch_size": BATCH,
    "num_epochs": 1,
    "dataset_size": SIZE,
    "shuffle": options.shuffle,
    "num_minibatches_per_shard": 2,
    "storage_type": options.storage,
}


def train(client, records):
    report("trained", records=list(records))
    time.sleep(0.005)
    client.report_batch_done(len(records))


def by_shards():
    client = ShardingClient(**ARGUMENTS)
    client.restore_shard_from_checkpoint(options.state)
    fails = options.fail
    while True:
        shard = client.fetch_shard()
        if not shard:
            break
        if fails:
            fails = False
            client.report_batch_done(shard.end - shard.start, err_msg="it could not be read")
            continue
        records = shard.indices or range(shard.start, shard.end)
        for first in range(0, len(records), BATCH):
            train(client, records[first : first + BATCH])
    report("end", state=client.get_shard_checkpoint(), epoch=client.get_current_epoch())


def by_index():
    client = IndexShardingClient(**ARGUMENTS)
    client.restore_shard_from_checkpoint(options.state)
    batch = []
    while True:
        try:
            batch.append(client.fetch_sample_index())
        except StopIteration:
            break
        if len(batch) == BATCH:
            train(client, batch)
            batch = []
    if batch:
        train(client, batch)
    report("end", state=client.get_shard_checkpoint(), epoch=client.get_current_epoch())


def by_loader():
    from torch.utils.data import DataLoader, IterableDataset

    class Samples(IterableDataset):
        def __init__(self):
            self.client = IndexShardingClient(**ARGUMENTS, num_workers=2)

        def __iter__(self):
            while True:
                try:
                    yield self.client.fetch_sample_index()
                except StopIteration:
                    return

    samples = Samples()
    for batch in DataLoader(samples, batch_size=BATCH, num_workers=2):
        train(samples.client, batch.tolist())
    report("end", state=samples.client.get_shard_checkpoint(), epoch=samples.client.get_current_epoch())


report("main")
{"shards": by_shards, "index": by_index, "loader": by_loader}[options.kind]()
