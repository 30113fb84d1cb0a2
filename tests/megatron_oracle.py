"""What megatron-core makes of documents and reads of datasets: `python tests/megatron_oracle.py FILE`.

FILE is JSON: {"build": [{"prefix", "vocab_size", "documents"}], "merge": {prefix: [prefix]}, "read": [prefix]},
documents being lists of sequences, which are lists of tokens. The answer, on stdout, is {"dtypes": [name],
"documents": [documents]}. A process of its own: the import alone takes many seconds.
"""

import json
import sys

import numpy
import torch
from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder


def build(prefix, vocab_size, documents):
    """As Megatron's preprocess_data.py does it. The name of the type that it chose."""
    dtype = DType.optimal_dtype(vocab_size)
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for document in documents:
        tokens = [token for sequence in document for token in sequence]
        builder.add_document(tokens, [len(sequence) for sequence in document])
    builder.finalize(f"{prefix}.idx")
    return numpy.dtype(dtype).name


def build_by_item(prefix, vocab_size, documents):
    """As gpt-neox does it, with the same builder's other way."""
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=DType.optimal_dtype(vocab_size))
    for document in documents:
        for sequence in document:
            builder.add_item(torch.tensor(sequence, dtype=torch.int64))
        builder.end_document()
    builder.finalize(f"{prefix}.idx")


def read(prefix):
    dataset = IndexedDataset(prefix)
    ends = dataset.document_indices.tolist()
    return [[dataset[i].tolist() for i in range(begin, end)] for begin, end in zip(ends, ends[1:])]


def merge(prefix, sources):
    """As Megatron's merge_datasets.py does it."""
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=IndexedDataset(sources[0]).index.dtype)
    for source in sources:
        builder.add_index(source)
    builder.finalize(f"{prefix}.idx")


def main():
    with open(sys.argv[1]) as file:
        asked = json.load(file)
    dtypes = [build(**dataset) for dataset in asked["build"]]
    for dataset in asked["build"]:
        build_by_item(dataset["prefix"] + ".by_item", dataset["vocab_size"], dataset["documents"])
    for prefix, sources in asked["merge"].items():
        merge(prefix, sources)
    print(json.dumps({"dtypes": dtypes, "documents": [read(prefix) for prefix in asked["read"]]}))


if __name__ == "__main__":
    main()
