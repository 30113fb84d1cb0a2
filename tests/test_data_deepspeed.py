"""Datasets of `--dataset-impl lazy` and `cached` against DeepSpeed's builder and readers, which come from Megatron-LM's
first ones as gpt-neox's do: equal byte for byte, and each reads the other's."""

import importlib.util
import random
import sys
from pathlib import Path

import pytest
import torch
from data_parts import write_parts
from phalanx.data import IndexedDataset, native
from test_data_megatron import files, random_documents

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools import deepspeeds

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CASES = [
    ([], 1),
    ([[], [[]]], 1),
    *((random_documents(random.Random(seed), 256_000), seed % 7 + 1) for seed in range(12)),
]


@pytest.fixture(scope="module")
def theirs():
    """Their module alone: DeepSpeed itself would be imported for many seconds."""
    modules = deepspeeds.modules(deepspeeds.prepare(deepspeeds.VERSIONS[-1]))
    path = modules / "runtime/data_pipeline/data_sampling/indexed_dataset.py"
    spec = importlib.util.spec_from_file_location("deepspeed_indexed_dataset", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(module, impl, prefix, documents):
    builder = module.make_builder(f"{prefix}.bin", impl, vocab_size=50257)
    for document in documents:
        for sequence in document:
            builder.add_item(torch.tensor(sequence, dtype=torch.int32))
        builder.end_document()
    builder.finalize(f"{prefix}.idx")


def read(module, impl, prefix):
    dataset = module.make_dataset(str(prefix), impl)
    if impl == "cached":
        dataset.prefetch(range(len(dataset)))
    ends = dataset.doc_idx.tolist()
    return [[dataset[i].tolist() for i in range(begin, end)] for begin, end in zip(ends, ends[1:])]


@pytest.mark.parametrize("impl", ["lazy", "cached"])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_both_files_are_equal_and_both_read_each_other(theirs, tmp_path, impl, case):
    documents, parts = CASES[case]
    with native.Join(tmp_path / "ours", write_parts(tmp_path / "parts", documents, "int32", parts), impl) as joined:
        joined.publish(b"{}")
    build(theirs, impl, tmp_path / "theirs", documents)
    assert files(tmp_path / "ours") == files(tmp_path / "theirs")
    assert theirs.infer_dataset_impl(str(tmp_path / "ours")) == "cached"  # their name for both
    assert read(theirs, impl, tmp_path / "ours") == documents
    with IndexedDataset(tmp_path / "theirs") as dataset:
        ends, sequences = dataset.document_indices.tolist(), [sequence.tolist() for sequence in dataset[:]]
    assert [sequences[begin:end] for begin, end in zip(ends, ends[1:])] == documents
