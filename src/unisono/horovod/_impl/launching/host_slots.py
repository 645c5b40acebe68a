"""Hosts and the number of processes on each."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from unisono.errors import UsageError

Hosts = tuple[tuple[str, int], ...]
HOST = re.compile(r"(?P<name>[^\s:=,-][^\s:=,]*)(?::(?P<slots>[0-9]+))?")
LINE = re.compile(r"(?P<name>[^\s:=,-][^\s:=,]*)(?:\s+slots\s*=\s*(?P<slots>[0-9]+)|:(?P<more>[0-9]+))?(?:\s.*)?")


def host_of(text: str) -> tuple[str, int | None] | None:
    """Returns the name and the slots of `host` or `host:slots`; None for a text that is neither. A name must not begin like an
    option, as it is passed to ssh. Pure."""
    match = HOST.fullmatch(text.strip())
    return None if match is None else (match["name"], int(match["slots"]) if match["slots"] else None)


def hosts_of(text: str) -> Hosts:
    """Returns the hosts of `host:slots,host:slots`; a host without a number has one slot. Pure."""
    found = []
    for part in text.split(","):
        host = host_of(part)
        if host is None or host[1] == 0:
            raise UsageError(f"-H must be host:slots,host:slots with 1 slot or more; received {part.strip()!r} in {text!r}")
        found.append((host[0], host[1] or 1))
    return _once(found, "-H")


def hosts_in(path: Path) -> Hosts:
    """Returns the hosts of a file with lines `host slots=N`. Local."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read (--hostfile): {error}; check the path") from error
    found = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        match = LINE.fullmatch(words)
        slots = None if match is None else match["slots"] or match["more"] or "1"
        if match is None or slots is None or int(slots) == 0:
            raise UsageError(f"{path}, line {number} must be `host slots=N` with N of 1 or more (--hostfile); received {words!r}")
        found.append((match["name"], int(slots)))
    if not found:
        raise UsageError(f"{path} names no host (--hostfile); write a line `host slots=N` for each")
    return _once(found, "--hostfile")


def first_slots(hosts: Hosts, num_proc: int | None) -> Hosts:
    """Returns the first slots, as many as there are processes; None: all of them. Pure."""
    total = sum(slots for _, slots in hosts)
    if num_proc is not None and num_proc > total:
        raise UsageError(
            f"-np {num_proc} needs {num_proc} slots, but the hosts have {total} ({hosts_text(hosts)}); use -np {total}, or give "
            "the hosts more slots"
        )
    left = total if num_proc is None else num_proc
    taken = []
    for name, slots in hosts:
        if left:
            taken.append((name, min(slots, left)))
            left -= min(slots, left)
    return tuple(taken)


def is_here(name: str) -> bool:
    """Whether a host is this machine, by its name or address; no name service is asked. Local."""
    own = socket.gethostname()
    if name in ("localhost", "127.0.0.1", "::1", own, own.partition(".")[0]):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return "." not in own and name.partition(".")[0] == own
    if address.is_loopback:
        return False  # another one of these stands for a second host, to try things out
    with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((name, 0))  # nobody may bind to an address of another machine
        except OSError:
            return False
    return True


def hosts_text(hosts: Sequence[tuple[str, int]]) -> str:
    """Returns the hosts as `host:slots,host:slots`. Pure."""
    return ",".join(f"{name}:{slots}" for name, slots in hosts)


def _once(hosts: Sequence[tuple[str, int]], place: str) -> Hosts:
    """Returns the hosts, each once: the slots of a host that is named twice belong together, as its ranks are neighbours."""
    slots: dict[str, int] = {}
    for name, count in hosts:
        slots[name] = slots.get(name, 0) + count
    if not slots:
        raise UsageError(f"{place} names no host")
    return tuple(slots.items())
