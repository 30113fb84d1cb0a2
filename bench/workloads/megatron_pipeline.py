"""Data preparation as Megatron-LM's tools/preprocess_data.py has it with HuggingFaceTokenizer: a pool tokenizes line by
line with transformers, one process hands all documents to megatron-core's builder.

python megatron_pipeline.py INPUT TOKENIZER PREFIX WORKERS
"""

import json
import multiprocessing
import sys
import time

BEGAN = time.monotonic()
EOD = "<|endoftext|>"


def make(path):
    """As AutoTokenizer makes it of a folder with this file."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_file=path, eos_token=EOD)


def load(path):
    global tokenizer
    tokenizer = make(path)


def encode(line):
    ids = tokenizer(json.loads(line)["text"]).input_ids
    return [*ids, tokenizer.eos_token_id] if ids else []


def main():
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    source, path, prefix, workers = sys.argv[1:]
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=DType.optimal_dtype(len(make(path))))
    pool = multiprocessing.Pool(int(workers), load, (path,))
    first = None
    with pool, open(source) as lines:
        for ids in pool.imap(encode, lines, 32):
            first = first or time.monotonic()
            builder.add_document(ids, [len(ids)] if ids else [])
        builder.finalize(f"{prefix}.idx")
    print(f"start-up {first - BEGAN:.1f} s, at work {time.monotonic() - first:.2f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
