"""Ends as told: `endings.py RANK:SECONDS:CODE ...`, the others after 0 s with 0. Later lives end with 0. No torch."""

import os
import sys
import time

from report import report

report("main")
plan = {fields[0]: fields[1:] for fields in (word.split(":") for word in sys.argv[1:])}
seconds, code = plan.get(os.environ["RANK"], ("0", "0"))
time.sleep(float(seconds))
report("end")
sys.exit(int(code) if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 0)
