"""python -m phalanx.shim -- COMMAND [ARGUMENTS...]"""

import os
import sys

from phalanx._launch import process, surroundings

USAGE = "usage: python -m phalanx.shim -- COMMAND [ARGUMENTS...]"


def main(words):
    """Becomes the command. Returns only where it cannot: an exit status, as a shell's."""
    command = words[1:] if words[:1] == ["--"] else words
    if not command or command[0].startswith("-"):
        sys.stderr.write(f"phalanx.shim: no command is given\n{USAGE}\n")
        return 2
    if process.find_command() is None:
        sys.stderr.write(f"phalanx.shim: {process.missing_command()}\n")
        return 2
    environment = surroundings.with_shim(os.environ, sys.executable)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        sys.stderr.write(f"phalanx.shim: cannot start {command[0]}: {error.strerror}\n")
    return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
