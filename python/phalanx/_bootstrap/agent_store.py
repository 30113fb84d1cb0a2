"""Tells torch that the job's endpoint serves the ranks' store, too: a script that says tcp://HOST:PORT with the port of
--master-port or --rdzv-endpoint is a client there on all ranks, as it is under torchrun.

Since 2.15 torch takes only MASTER_ADDR:MASTER_PORT for a store of its launcher, and has rank 0 listen at any other
address. Under torchrun both are one address; here MASTER_PORT is a fresh one for each round.
"""

import os
import socket

_ENDPOINT = "PHALANX_ENDPOINT"


def hooks():
    """For load_watch."""
    return {"torch.distributed.rendezvous": _teach} if os.environ.get(_ENDPOINT) else {}


def is_endpoint(endpoint, hostname, port):
    """Whether `hostname`:`port` is "HOST:PORT" of `endpoint`, by the same or another name of the same machine."""
    host, _, number = endpoint.rpartition(":")
    if number != str(port):
        return False
    host = host[1:-1] if host.startswith("[") else host
    return host == hostname or bool(_addresses(host) & _addresses(hostname))


def _addresses(host):
    try:
        return {entry[4][0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return set()


def _teach(module):
    theirs = getattr(module, "_agent_store_serves", None)
    if theirs is None:  # before 2.15 ranks are clients whatever the address
        return

    def serves(hostname, port):
        if theirs(hostname, port):
            return True
        endpoint = os.environ.get(_ENDPOINT, "")
        return module._torchelastic_use_agent_store() and is_endpoint(endpoint, hostname, port)

    module._agent_store_serves = serves
