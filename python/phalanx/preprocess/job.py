"""What all workers of a run have in common: plain data, sent to each."""

import dataclasses
import hashlib
import json
import os
from typing import Dict, Optional, Tuple

from phalanx.preprocess.inputs import Input
from phalanx.preprocess.plan import Split
from phalanx.preprocess.tokenization import Recipe, token_type


@dataclasses.dataclass(frozen=True)
class Job:
    keys: Tuple[str, ...]
    output_prefix: str
    append_eod: bool
    ftfy: bool
    skip_errors: bool
    recipe: Recipe
    vocab_size: int
    eod: Optional[int]
    dataset_impl: str
    dtype: str
    # How large a piece of the input is.
    split_bytes: int
    inputs: Tuple[Input, ...]
    splits: Tuple[Split, ...]
    # For each key: SHA-256 of what the tokens depend on; and of that and how the input is cut, which parts carry.
    results: Dict[str, bytes]
    fingerprints: Dict[str, bytes]

    @property
    def parts(self):
        return len(self.splits)

    def prefix(self, key):
        """Of the dataset of one key: the name that Megatron's tools promise."""
        return f"{self.output_prefix}_{key}_document"


def digest(*told):
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).digest()


def make(options, recipe, tokenizer, inputs, splits, versions):
    """Not among what tokens depend on: --on-error. A part's notes tell whether a line was left out."""
    keys = tuple(options.jsonl_keys)
    files = [dataclasses.astuple(one) for one in inputs]
    dtype = token_type(tokenizer.vocab_size, options.dataset_impl)
    common = (recipe.fingerprint, options.append_eod, options.ftfy, options.dataset_impl, dtype, versions, files)
    results = {key: digest(key, *common) for key in keys}
    pieces = [dataclasses.astuple(split) for split in splits]
    return Job(
        keys=keys,
        output_prefix=os.path.abspath(options.output_prefix),
        append_eod=options.append_eod,
        ftfy=options.ftfy,
        skip_errors=options.on_error == "skip",
        recipe=recipe,
        vocab_size=tokenizer.vocab_size,
        eod=tokenizer.eod,
        dataset_impl=options.dataset_impl,
        dtype=dtype,
        split_bytes=options.split_bytes,
        inputs=tuple(inputs),
        splits=tuple(splits),
        results=results,
        fingerprints={key: digest(results[key].hex(), pieces) for key in keys},
    )
