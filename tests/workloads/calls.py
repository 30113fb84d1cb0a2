"""Starts the command that its arguments are, and ends as that does."""

import subprocess
import sys

sys.exit(subprocess.run(sys.argv[1:]).returncode)
