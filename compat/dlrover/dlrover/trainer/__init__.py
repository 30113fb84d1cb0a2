"""As of DLRover: dlrover.trainer.torch."""
