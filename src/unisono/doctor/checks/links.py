"""Finds the interface in use and faster ones, for the check of the network. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from unisono.doctor.facts import Facts, Interface

REAL = ("ethernet", "infiniband", "rdma")


def interface_in_use(facts: Facts) -> Interface | None:
    """The interface through which the other ranks reach this one, and which gloo therefore uses."""
    return next((one for one in facts.interfaces if facts.address in one.addresses), None)


def faster_interface(facts: Facts, now: Interface) -> Interface | None:
    """The best interface that is up and faster than `now`; None if there is none.

    One with an address is preferred: without one only MPI and NCCL can use it.
    """
    if now.kind == "loopback":  # several nodes on one machine, as test clusters have
        return None
    better = [one for one in facts.interfaces if one.up and one.kind in REAL and _beats(one, now)]
    return max(better, key=lambda one: (bool(one.addresses), one.speed_mbits or 0), default=None)


def _beats(one: Interface, now: Interface) -> bool:
    """Whether one interface would be faster than that in use, as far as speeds or kinds tell."""
    if one.kind == "rdma" and now.kind == "infiniband":
        return False  # the same link, seen with and without addresses
    if not one.addresses and one.kind != "rdma":
        return False
    if one.speed_mbits and now.speed_mbits:
        return one.speed_mbits > now.speed_mbits
    return one.kind in ("infiniband", "rdma") and now.kind not in ("infiniband", "rdma")


def describe(one: Interface) -> str:
    """Returns name, address, kind and speed of an interface: 'eth0 (10.0.0.1, ethernet, 10 Gbit/s)'."""
    speed = f"{one.speed_mbits / 1000:g} Gbit/s" if one.speed_mbits else "speed unknown"
    kind = "InfiniBand" if one.kind in ("infiniband", "rdma") else one.kind
    return f"{one.name} ({', '.join([*one.addresses[:1], kind, speed])})"


def describe_all(interfaces: Sequence[Interface]) -> str:
    """Returns the interfaces that could carry messages, in words."""
    usable = [one for one in interfaces if one.up and one.kind != "loopback" and (one.addresses or one.kind == "rdma")]
    return "interfaces: " + ("; ".join(map(describe, usable)) or "none but loopback")
