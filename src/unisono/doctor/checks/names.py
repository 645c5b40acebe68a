"""Checks whether host names resolve to addresses that other nodes can reach."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from unisono.doctor.facts import Job
from unisono.doctor.finding import OK, WARN, Finding


def check(job: Job) -> Iterator[Finding]:
    """Yields for each node whether its host name resolves on itself to an address that others reach, and the names that it cannot
    resolve."""
    several = len(job.nodes) > 1
    for node, ranks in job.nodes.items():
        first = ranks[0]
        shown = ", ".join(first.host_addresses)
        if first.host_error:
            fact = f"host name {first.host} does not resolve on itself: {first.host_error}"
            remedy = f"add a line to /etc/hosts ({_own_address(first.address)} {first.host}); MPI and other tools look it up"
            yield Finding(WARN, "names", fact, remedy, node)
        elif several and first.host_addresses and all(map(_is_loopback, first.host_addresses)):
            fact = f"host name {first.host} resolves to {shown} on itself, where no other node reaches it"
            remedy = (
                f"let it resolve to a network address in /etc/hosts ({_own_address(first.address)} {first.host}); Unisono uses "
                "IP addresses, but MPI, torchrun and other tools may listen where no other node reaches them"
            )
            yield Finding(WARN, "names", fact, remedy, node)
        else:
            yield Finding(OK, "names", f"host name {first.host} resolves to {shown}", node=node)
        for facts in ranks:
            if facts.unresolved:
                hosts = ", ".join(f"{host} ({why})" for host, why in facts.unresolved.items())
                fact = f"host names of other nodes do not resolve on {facts.host}: {hosts}"
                remedy = (
                    "ask for a name server or an /etc/hosts with all nodes, or give an IP address (UNISONO_RENDEZVOUS=ADDRESS:PORT)"
                )
                yield Finding(WARN, "names", fact, remedy, node)


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _own_address(address: str) -> str:
    """Returns the address for a remedy; the placeholder 'ADDRESS' if it is a loopback address."""
    return "ADDRESS" if _is_loopback(address) else address
