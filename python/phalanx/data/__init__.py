"""Token datasets of Megatron-LM and gpt-neox: `.bin` and `.idx` of one prefix (docs/formats/indexed-dataset.md).

from phalanx.data import IndexedDataset
dataset = IndexedDataset("out/result_text_document")
len(dataset), dataset[0], dataset.get(7, offset=100, length=50), dataset.document_indices

And shards of any dataset, which the job's master hands out to its ranks (docs/shards.md).

from phalanx.data import Shards
for shard in Shards("train", size=1_000_000, shard_size=1_000, shuffle=True):
    train_on(shard.records())
"""

from phalanx.data.indexed import DatasetError, IndexedDataset
from phalanx.data.shards import Shard, Shards, ShardsError

__all__ = ["DatasetError", "IndexedDataset", "Shard", "Shards", "ShardsError"]
