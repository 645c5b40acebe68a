"""Test hosts on this machine: network namespaces joined by a bridge of their own, each link limited to a rate.

Each host has its own loopback and one address, and no way out of this machine; processes, files and the host name are shared.
Names carry the number of the process that made them, so runs at the same time do not meet and what a killed run left is found.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.system.processes import is_running

INTERFACE = "eth0"
"""What a host calls its link."""


@dataclass(frozen=True)
class Host:
    """One test host."""

    namespace: str
    address: str

    def command(self, *arguments: str) -> list[str]:
        """The command that runs `arguments` on this host."""
        return ["ip", "netns", "exec", self.namespace, *arguments]


def why_not() -> str | None:
    """Why no test hosts can be made here, with the remedy; None where they can. Tries it."""
    if os.geteuid() != 0:
        return "network namespaces need root; run the tests as root"
    if not shutil.which("ip") or not shutil.which("tc"):
        return "ip and tc are not installed; run tests/system/install, or apt-get install iproute2"
    trial = f"unisono-{os.getpid()}-trial"
    made = subprocess.run(["ip", "netns", "add", trial], capture_output=True, text=True, timeout=30)
    subprocess.run(["ip", "netns", "delete", trial], capture_output=True, timeout=30)
    if made.returncode:
        return f"ip netns add fails ({made.stderr.strip()}); a container needs the capabilities NET_ADMIN and SYS_ADMIN"
    return None


@contextmanager
def network_hosts(num_hosts: int, rate: str = "1gbit") -> Iterator[list[Host]]:
    """Make hosts 10.99.x.1, 10.99.x.2, ... and take them away at the end."""
    _remove_what_dead_runs_left()
    stem = _unused_stem()
    # The hosts' bridge leads nowhere, so equal addresses would do no harm; different ones are easier on who reads them.
    subnet = f"10.99.{os.getpid() % 256}"
    with ExitStack() as stack:
        bridge = f"{stem}b"
        _ip("link", "add", bridge, "type", "bridge")
        stack.callback(_ip, "link", "delete", bridge)
        _ip("link", "set", bridge, "up")
        hosts = []
        for number in range(1, num_hosts + 1):
            host = Host(f"unisono-{stem}-h{number}", f"{subnet}.{number}")
            _ip("netns", "add", host.namespace)
            stack.callback(_ip, "netns", "delete", host.namespace)
            port = f"{stem}p{number}"
            _connect(host, bridge, port, rate)
            # It would go with the namespace, but some time later, and its name may be needed at once.
            stack.callback(_ip, "link", "delete", port)
            hosts.append(host)
        yield hosts


def _connect(host: Host, bridge: str, port: str, rate: str) -> None:
    """A cable from the host to the bridge, as fast as `rate` in either direction."""
    _ip("link", "add", port, "type", "veth", "peer", "name", INTERFACE, "netns", host.namespace)
    _ip("link", "set", port, "master", bridge, "up")
    inside = ("-n", host.namespace)
    _ip(*inside, "link", "set", "lo", "up")
    _ip(*inside, "address", "add", f"{host.address}/24", "dev", INTERFACE)
    _ip(*inside, "link", "set", INTERFACE, "up")
    limit = ("root", "tbf", "rate", rate, "burst", "256kb", "latency", "100ms")
    _run(["tc", *inside, "qdisc", "add", "dev", INTERFACE, *limit])
    _run(["tc", "qdisc", "add", "dev", port, *limit])


def _unused_stem() -> str:
    """How the names of one set of hosts begin: short, as an interface name has 15 characters and a process number up to 7."""
    present = _ip("link", "show")
    stems = (f"un{os.getpid()}x{number}" for number in itertools.count())
    return next(stem for stem in stems if f"{stem}b:" not in present)


def _remove_what_dead_runs_left() -> None:
    for namespace in re.findall(r"^(unisono-un\d+x\S+)", _ip("netns", "list"), re.MULTILINE):
        if _maker_is_dead(namespace):
            _ip("netns", "delete", namespace)
    for bridge in re.findall(r"^\d+: (un\d+x\d+b):", _ip("link", "show"), re.MULTILINE):
        if _maker_is_dead(bridge):
            _ip("link", "delete", bridge)


def _maker_is_dead(name: str) -> bool:
    found = re.search(r"\d+", name)
    return found is not None and not is_running(int(found.group()))


def _ip(*arguments: str) -> str:
    return _run(["ip", *arguments])


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with {done.returncode}: {done.stderr.strip()}")
    return done.stdout
