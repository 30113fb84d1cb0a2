"""Token datasets of Megatron-LM and gpt-neox: `.bin` and `.idx` of one prefix (docs/formats/indexed-dataset.md).

from phalanx.data import IndexedDataset
dataset = IndexedDataset("out/result_text_document")
len(dataset), dataset[0], dataset.get(7, offset=100, length=50), dataset.document_indices
"""

from phalanx.data.indexed import DatasetError, IndexedDataset

__all__ = ["DatasetError", "IndexedDataset"]
