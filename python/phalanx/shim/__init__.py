"""Programs that launch through torch get Phalanx, unchanged: docs/python.md, "Programs that call torchrun
themselves".

`python -m phalanx.shim -- COMMAND ...` does it for a command and everything below it, `phalanx.shim.install()` for this
process alone.
"""

__all__ = ["install"]


def install():
    """From now on torch.distributed.run and torch.distributed.launcher.api of this process launch with Phalanx."""
    from phalanx.shim import hooks

    hooks.install()
