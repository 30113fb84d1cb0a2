"""What an agent asks NVIDIA's driver by, in a process of its own: docs/formats/node-watch.md."""
