"""Checkpoints of frameworks through phalanx.checkpoint.files: saved to memory in their own files and names, stored
where they look for them. One module for each framework; none imports a framework that is not asked for."""
