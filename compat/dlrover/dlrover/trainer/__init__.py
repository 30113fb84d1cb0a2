"""Names of DLRover that are offered on phalanx.checkpoint: dlrover.trainer.torch.flash_checkpoint."""
