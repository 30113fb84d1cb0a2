"""`python -m phalanx.run ...` is `phalanx-run ...`."""

import os
import shutil
import sys
import sysconfig


def find_command(name="phalanx-run"):
    """The command beside this interpreter, else where this Python installs scripts, else on PATH; None if nowhere."""
    folders = [os.path.dirname(sys.executable or ""), sysconfig.get_path("scripts")]
    for folder in folders:
        candidate = os.path.join(folder, name) if folder else ""
        if candidate and os.access(candidate, os.X_OK) and os.path.isfile(candidate):
            return candidate
    return shutil.which(name)


def main(args=None):
    """Becomes `phalanx-run` with `args` (default: those of this process). Returns only when it cannot: 2."""
    args = sys.argv[1:] if args is None else list(args)
    command = find_command()
    if command is None:
        sys.stderr.write(
            f"phalanx.run: there is no phalanx-run beside {sys.executable}, in {sysconfig.get_path('scripts')} "
            "or on PATH; is the wheel installed for this Python?\n"
        )
        return 2
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execv(command, [command, *args])
    except OSError as error:
        sys.stderr.write(f"phalanx.run: cannot start {command}: {error.strerror}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
