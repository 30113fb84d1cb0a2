"""Data preparation as gpt-neox's tool does it: a pool tokenizes line by line, one process writes all tokens.

python one_writer.py INPUT TOKENIZER PREFIX WORKERS
"""

import array
import itertools
import json
import multiprocessing
import resource
import struct
import sys
import time

from tokenizers import Tokenizer

EOD = "<|endoftext|>"


def load(path):
    global tokenizer, eod
    tokenizer = Tokenizer.from_file(path)
    eod = tokenizer.token_to_id(EOD)


def encode(line):
    ids = tokenizer.encode(json.loads(line)["text"]).ids
    return [*ids, eod] if ids else []


def main():
    source, tokenizer_path, prefix, workers = sys.argv[1:]
    lengths, boundaries, first = [], [0], None
    pool = multiprocessing.Pool(int(workers), load, (tokenizer_path,))
    with pool, open(source) as lines, open(f"{prefix}.bin", "wb") as file:
        for ids in pool.imap(encode, lines, 32):
            first = first or time.monotonic()
            if ids:
                file.write(array.array("H", ids))
                lengths.append(len(ids))
            boundaries.append(len(lengths))
    pointers = [0, *itertools.accumulate(2 * length for length in lengths)][: len(lengths)]
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(boundaries)))
        for typecode, values in (("i", lengths), ("q", pointers), ("q", boundaries)):
            array.array(typecode, values).tofile(file)
    print(f"at work {time.monotonic() - first:.2f} s", file=sys.stderr)
    pool.join()
    print(
        f"largest process {max(own_peak_kib(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024:.0f} MiB",
        file=sys.stderr,
    )


def own_peak_kib():
    """getrusage would count what the process was before exec, too."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))


if __name__ == "__main__":
    main()
