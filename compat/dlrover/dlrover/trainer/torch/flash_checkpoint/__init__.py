"""DLRover's flash checkpoint on phalanx.checkpoint, under the names that ms-swift and scripts import."""
