#!/usr/bin/env python3
"""`phalanx-preprocess` as a file that spark-submit takes: `spark-submit .. pyspark_preprocess.py ..`."""

import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))

if __name__ == "__main__":
    # Python has put this folder first, where our modules' names would hide those of others; the package's is wanted.
    sys.path[:1] = [os.path.dirname(os.path.dirname(FOLDER))]
    from phalanx.preprocess.run import main

    sys.exit(main(prog="pyspark_preprocess.py"))
