"""As of DLRover: the command dlrover-run, elastic training and flash checkpoints."""
