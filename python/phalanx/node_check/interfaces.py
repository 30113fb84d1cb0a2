"""The network interface that an address belongs to."""

import fcntl
import ipaddress
import socket
import struct

from phalanx.node_check.results import Failed

_SIOCGIFADDR, _SIOCGIFNETMASK = 0x8915, 0x891B


def of_address(address):
    """Its name. The one that has just this address, else the one whose network it is in. Raises Failed."""
    wanted = ipaddress.ip_address(address.partition("%")[0])
    found = _of_version_6(wanted) if wanted.version == 6 else _of_version_4(wanted)
    if found is None:
        raise Failed(f"no network interface has the address {address}")
    return found


def _of_version_4(wanted):
    around = None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            own, mask = _ask(asked, name, _SIOCGIFADDR), _ask(asked, name, _SIOCGIFNETMASK)
            if own is None or mask is None:
                continue
            if own == wanted:
                return name
            if wanted in ipaddress.ip_network(f"{own}/{mask}", strict=False):
                around = around or name
    return around


def _ask(asked, name, what):
    try:
        answer = fcntl.ioctl(asked.fileno(), what, struct.pack("256s", name.encode()[:15]))
    except OSError:
        return None  # one without an address
    return ipaddress.IPv4Address(answer[20:24])


def _of_version_6(wanted):
    try:
        with open("/proc/net/if_inet6") as file:
            rows = [line.split() for line in file]
    except OSError:
        return None
    return next((row[-1] for row in rows if ipaddress.IPv6Address(bytes.fromhex(row[0])) == wanted), None)
