"""What runs inside a worker before, and quietly beside, the user's script. Standard library only.

zygote.py and worker.py are the two doors, run as plain files by the agent; what they
speak is docs/formats/worker-socket.md.
"""
