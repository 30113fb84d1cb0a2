"""Who keeps memory and writes to disk for a rank: the agent behind its socket, or a child of its own."""
