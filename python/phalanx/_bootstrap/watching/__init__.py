"""What a library does while it is imported, and what it leaves behind, that no fork may inherit unseen."""
