"""Writes on both streams, last line without an end, and ends. `--fail` with exit code 5 in the first life, rank 1."""

import os
import sys

rank, life = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"out of rank {rank} in life {life}")
print(f"err of rank {rank} in life {life}", file=sys.stderr)
if "--long" in sys.argv:
    print("x" * 20_000)
sys.stdout.write(f"unfinished line of rank {rank}")
if "--fail" in sys.argv and (rank, life) == ("1", "0"):
    sys.exit(5)
