"""As of DLRover."""
