"""Prints how many seconds, and of a CPU, the tokenizers library takes on one thread, in batches: nothing around it.

python batch_rate.py INPUT TOKENIZER
"""

import json
import os
import sys
import time

BATCH = 256


def main():
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(sys.argv[2])
    with open(sys.argv[1]) as lines:
        texts = [json.loads(line)["text"] for line in lines]
    began, began_cpu = time.monotonic(), time.process_time()
    for start in range(0, len(texts), BATCH):
        tokenizer.encode_batch_fast(texts[start : start + BATCH])
    print(time.monotonic() - began, time.process_time() - began_cpu)


if __name__ == "__main__":
    main()
