"""Network interfaces (NICs) and their addresses."""

import errno
import fcntl
import ipaddress
import socket
import struct

from phalanx.node_check.results import Failed

_SIOCGIFFLAGS, _SIOCGIFADDR, _SIOCGIFNETMASK = 0x8913, 0x8915, 0x891B
_IFF_UP, _IFF_RUNNING = 0x1, 0x40
_SCOPE_GLOBAL = "00"


def of_address(address):
    """Its name. The one that has just this address, else the one whose network it is in. Raises Failed."""
    wanted = ipaddress.ip_address(address.partition("%")[0])
    found = _of_version_6(wanted) if wanted.version == 6 else _of_version_4(wanted)
    if found is None:
        raise Failed(f"no network interface has the address {address}")
    return found


def check(names):
    """Those that are to be checked with others: are they there and up?"""
    return ", ".join(f"{name} has {address_on(name)}" for name in names), []


def address_on(name):
    """The first address of that interface, of version 4 where it has one. Raises Failed where it has none, or is down,
    or is not there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            flags = _answer(asked, name, _SIOCGIFFLAGS)[16:18]
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
            there = ", ".join(found for _, found in socket.if_nameindex())
            raise Failed(f"there is no network interface {name}, but {there}") from None
        if ~struct.unpack("H", flags)[0] & (_IFF_UP | _IFF_RUNNING):
            raise Failed(f"the network interface {name} is down")
        own = _ask(asked, name, _SIOCGIFADDR)
    if own is None:
        rows = [row for row in _rows_of_version_6() if row[-1] == name and row[3] == _SCOPE_GLOBAL]
        own = ipaddress.IPv6Address(bytes.fromhex(rows[0][0])) if rows else None
    if own is None:
        raise Failed(f"the network interface {name} has no address")
    return str(own)


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
        return ipaddress.IPv4Address(_answer(asked, name, what)[20:24])
    except OSError:
        return None  # one without an address


def _answer(asked, name, what):
    return fcntl.ioctl(asked.fileno(), what, struct.pack("256s", name.encode()[:15]))


def _of_version_6(wanted):
    rows = _rows_of_version_6()
    return next((row[-1] for row in rows if ipaddress.IPv6Address(bytes.fromhex(row[0])) == wanted), None)


def _rows_of_version_6():
    """Of each address: in hex, number of its interface, length of its prefix, scope, flags, interface."""
    try:
        with open("/proc/net/if_inet6") as file:
            return [line.split() for line in file]
    except OSError:
        return []
