"""Converts a step of DeepSpeed's to a universal checkpoint, or checks one."""

import argparse
import os
import sys

from phalanx.checkpoint import universal
from phalanx.checkpoint.universal import whole


def main():
    parser = argparse.ArgumentParser(prog="python -m phalanx.checkpoint.universal", description=__doc__)
    parser.add_argument("step", help="the folder of a step, out/global_step100; with --check a universal checkpoint")
    parser.add_argument("target", nargs="?", help="where to; <step>_universal beside it where it is not given")
    parser.add_argument("--check", action="store_true", help="read each byte of a universal checkpoint that is there")
    options = parser.parse_args()
    step = os.path.abspath(options.step)
    if options.check:
        why = whole.damaged(step)
        print(why or f"{step} is whole")
        return 1 if why else 0
    target = options.target or f"{step}_universal"
    try:
        is_new = universal.convert(step, target)
    except (universal.Refused, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{target} is {'written' if is_new else 'there already'}, and {universal.TRACKER} names it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
