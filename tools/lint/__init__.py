"""The project's rules as code. `python -m tools.lint` checks all of them; docs/lint.md explains each."""
