"""Hosts of a test: network namespaces, each on a cable of its own to one router that can cut it, in either direction.

Names are random, so that tests may run beside each other; what is made is removed by `close`, also where a part of it
could not be made. Needs root.
"""

import contextlib
import os
import subprocess
import uuid
from pathlib import Path

# What the kernel says where it does not let us, or has no such thing. Any other failure is one of these tests.
REFUSALS = (
    "Function not implemented",
    "Operation not permitted",
    "Operation not supported",
    "Permission denied",
    "Read-only file system",
    "Unknown device type",
)


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")


def why_not():
    """Why there can be no network here; empty where there can. Asks the kernel for each of its parts once."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"phx{uuid.uuid4().hex[:8]}"
    try:
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "add", "veth0", "type", "veth", "peer", "name", "veth1")
        run("ip", "-n", name, "rule", "add", "to", "10.77.0.2", "blackhole")
    except OSError as error:
        if not any(refusal in str(error) for refusal in REFUSALS):
            raise
        return str(error)
    finally:
        if Path("/run/netns", name).exists():
            with contextlib.suppress(OSError):
                run("ip", "netns", "delete", name)
    return ""


class Network:
    """`count` hosts, 0 and up; host i has the address 10.77.<i>.2."""

    def __init__(self, count):
        self.tag = uuid.uuid4().hex[:8]
        self.count = count
        self.names = None  # a file that processes there find in the place of /etc/hosts
        self.router = f"phx{self.tag}r"
        try:
            self._make()
        except OSError:
            self.close()
            raise

    def _make(self):
        run("ip", "netns", "add", self.router)
        run(*self.inside(self.router), "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for index in range(self.count):
            host = self.host(index)
            run("ip", "netns", "add", host)
            run("ip", "-n", host, "link", "set", "lo", "up")
            self._lay(self.cable(index), host, "eth0", f"10.77.{index}", "10.77.0.0/16")

    def _lay(self, cable, host, device, network, others):
        """A cable from the router, where it is called `cable`, to `device` of a host, whose address is `network`.2."""
        run("ip", "-n", self.router, "link", "add", cable, "type", "veth", "peer", "name", device, "netns", host)
        run("ip", "-n", self.router, "addr", "add", f"{network}.1/24", "dev", cable)
        run("ip", "-n", self.router, "link", "set", cable, "up")
        run("ip", "-n", host, "addr", "add", f"{network}.2/24", "dev", device)
        run("ip", "-n", host, "link", "set", device, "up")
        # No default route: the question for a host's name, which torch asks, fails at once instead of after 5 s.
        run("ip", "-n", host, "route", "add", others, "via", f"{network}.1")

    def host(self, index):
        return f"phx{self.tag}{index}"

    def cable(self, index):
        """The router's end of it."""
        return f"veth{index}"

    def address(self, index):
        return f"10.77.{index}.2"

    def inside(self, namespace):
        """The words before a command that is to run there."""
        return ["nsenter", f"--net=/run/netns/{namespace}"]

    def on(self, index):
        inside = self.inside(self.host(index))
        if self.names is None:
            return inside
        with_names = 'mount --bind "$0" /etc/hosts && exec "$@"'
        return [*inside, "unshare", "--mount", "sh", "-c", with_names, str(self.names)]

    def name_all(self, name, path):
        """Gives all hosts one name, in a file at `path`, host 0's address first."""
        path.write_text("127.0.0.1 localhost\n" + "".join(f"{self.address(i)} {name}\n" for i in range(self.count)))
        self.names = path

    def rail(self, index):
        return f"rail{index}"

    def lay_rails(self):
        """A second cable to each host, eth1 there, with a network of its own."""
        for index in range(self.count):
            self._lay(self.rail(index), self.host(index), "eth1", f"10.78.{index}", "10.78.0.0/16")

    # --- what breaks

    def pull(self, index):
        """The cable of a host is out: its own interface loses the carrier."""
        run("ip", "-n", self.router, "link", "set", self.cable(index), "down")

    def plug(self, index):
        run("ip", "-n", self.router, "link", "set", self.cable(index), "up")

    def _rules(self, verb, index, directions):
        """Packets that come from a host, or are for it, vanish in the router without a word."""
        for direction in directions:
            what = ["iif", self.cable(index)] if direction == "from" else ["to", self.address(index)]
            run("ip", "-n", self.router, "rule", verb, *what, "blackhole")

    def cut(self, index, *directions):
        self._rules("add", index, directions)

    def heal(self, index, *directions):
        self._rules("del", index, directions)

    def cut_link(self, index, other):
        """Of two hosts that reach all others: what one sends the other vanishes, both ways."""
        for sender, receiver in ((index, other), (other, index)):
            what = ["iif", self.cable(sender), "to", self.address(receiver)]
            run("ip", "-n", self.router, "rule", "add", *what, "blackhole")

    def throttle(self, index, mbit_per_s, rail=False):
        """The cable of a host, or its second one, carries no more, either way."""
        bucket = ["rate", f"{mbit_per_s}mbit", "burst", "64kb", "latency", "100ms"]
        cable, device = (self.rail(index), "eth1") if rail else (self.cable(index), "eth0")
        ends = ((self.router, cable), (self.host(index), device))
        for namespace, device in ends:
            run(*self.inside(namespace), "tc", "qdisc", "add", "dev", device, "root", "tbf", *bucket)

    def close(self):
        """Removes the namespaces; their cables go with them when the last process in them has ended."""
        for namespace in (self.router, *map(self.host, range(self.count))):
            if Path("/run/netns", namespace).exists():
                with contextlib.suppress(OSError):
                    run("ip", "netns", "delete", namespace)
