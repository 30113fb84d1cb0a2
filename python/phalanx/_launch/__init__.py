"""How programs in Python run phalanx-run and learn what came of it: phalanx.run, phalanx.launcher and phalanx.shim."""
