"""Images and files: what stands where in them, and reading them again."""
