"""Network interfaces of this node with their kind, speed and addresses, as Linux shows them. Local; reads files."""

from __future__ import annotations

import fcntl
import ipaddress
import re
import socket
import struct
from pathlib import Path

from unisono.doctor.facts import Interface

NET = Path("/sys/class/net")
RDMA = Path("/sys/class/infiniband")
INET6 = Path("/proc/net/if_inet6")

GET_ADDRESS = 0x8915
LOOPBACK_TYPE, INFINIBAND_TYPE = "772", "32"
FLAG_UP = 0x1


def find_interfaces(net: Path = NET, rdma: Path = RDMA) -> tuple[Interface, ...]:
    """Returns all network interfaces and the active InfiniBand devices; none where the system does not list them (macOS)."""
    names = sorted(path.name for path in net.iterdir() if path.is_dir()) if net.is_dir() else []
    devices = sorted(rdma.glob("*/ports/*")) if rdma.is_dir() else []
    return (*(_interface(net / name) for name in names), *filter(None, map(_device, devices)))


def _interface(folder: Path) -> Interface:
    """Returns the interface that a folder of /sys/class/net describes."""
    name, kind = folder.name, _kind(folder)
    state, flags = _read(folder / "operstate"), int(_read(folder / "flags") or "0", 16)
    speed = _read(folder / "speed")
    return Interface(
        name=name,
        kind=kind,
        up=bool(flags & FLAG_UP) and state in ("up", "unknown"),
        speed_mbits=int(speed) if speed.isdigit() and speed != "0" else None,
        addresses=_addresses(name),
    )


def _kind(folder: Path) -> str:
    """Returns the kind of an interface: loopback, infiniband, ethernet or virtual."""
    number = _read(folder / "type")
    if number == LOOPBACK_TYPE:
        return "loopback"
    if number == INFINIBAND_TYPE or re.fullmatch(r"ib\d.*", folder.name):
        return "infiniband"
    vlan = "DEVTYPE=vlan" in _read(folder / "uevent").splitlines()
    # Bridges and the ends of containers have no hardware below them; their speed is made up.
    real = (folder / "device").exists() or (folder / "bonding").exists() or vlan
    return "ethernet" if real else "virtual"


def _device(port: Path) -> Interface | None:
    """The InfiniBand device of a port; None for Ethernet, which is listed as a network interface."""
    if "ACTIVE" not in _read(port / "state") or _read(port / "link_layer") == "Ethernet":
        return None
    rate = re.match(r"[0-9.]+", _read(port / "rate"))
    speed = int(float(rate.group()) * 1000) if rate else None
    return Interface(port.parent.parent.name, "rdma", True, speed)


def _addresses(name: str) -> tuple[str, ...]:
    """Returns the IPv4 address and the IPv6 addresses of an interface, without link-local ones."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock.fileno(), GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
            found.append(socket.inet_ntoa(answer[20:24]))
        except OSError:  # it has no IPv4 address
            pass
    for line in _read(INET6).splitlines():
        digits, *_, owner = line.split()
        address = ipaddress.IPv6Address(int(digits, 16))
        if owner == name and not address.is_link_local:
            found.append(str(address))
    return tuple(found)


def _read(file: Path) -> str:
    """Returns the text of a file, stripped; empty if it cannot be read."""
    try:
        return file.read_text().strip()
    except OSError:  # an interface without a link has no speed, and one may vanish
        return ""
