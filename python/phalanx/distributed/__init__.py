"""`python -m phalanx.distributed.run`, for users of other elastic launchers."""
