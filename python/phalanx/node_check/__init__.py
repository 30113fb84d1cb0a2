"""Checks of a node, alone or with others, before a job runs on it: `python -m phalanx.node_check`, started by an agent.

It speaks docs/formats/node-check.md. Standard library, and torch where it is installed.
"""
