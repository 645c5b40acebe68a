"""The rendezvous of the processes of a job: a token that identifies the job, and ports derived from it. Local, pure.

Rank 0 listens on the first free port of `ports(topology.port, topology.token)`; the others try the same ports in the same order and
stay only with a server that answers for the token. So two jobs on one node may share ports and never meet.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

from unisono.cluster.topology import MAX_PORT
from unisono.errors import UsageError

NUM_PORTS = 64
"""Candidates of a job. They lie together, so that a site can open them in a firewall."""

LOWEST_PORT, HIGHEST_PORT = 15000, 29999
"""Derived ports lie above the registered services and below the ports that Linux gives to clients (from 32768) and
Kubernetes to services (from 30000). The range is fixed: nodes may be configured differently, and all must agree."""


def job_token(*parts: str) -> str:
    """Returns a token: the same on all processes of a job, another for every other job, if `parts` are. It does not reveal the
    parts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def derived_port(token: str) -> int:
    """Returns the first port of a job whose user gave none."""
    number = int.from_bytes(hashlib.sha256(f"port of {token}".encode()).digest()[:8], "big")
    return LOWEST_PORT + number % (HIGHEST_PORT - NUM_PORTS - LOWEST_PORT + 2)


def ports(first: int, token: str) -> Sequence[int]:
    """Returns the ports to try, in order: `first`, then its neighbours in an order of the job's own.

    Jobs that were given the same `first` thereby do not follow each other from one taken port to the next.
    """
    lowest = min(first, MAX_PORT - NUM_PORTS + 1)
    neighbours = (port for port in range(lowest, lowest + NUM_PORTS) if port != first)
    # By a hash, as generators of random numbers may differ between the versions of Python on two nodes.
    return (first, *sorted(neighbours, key=lambda port: job_token(token, str(port))))


def chosen_rendezvous(env: Mapping[str, str]) -> str | None:
    """Pure: returns the rendezvous that the user chose; None where there is none. A rank that starts a job of its own has the
    variable of the job it is in, which does not count."""
    return None if env.get("UNISONO_RANK") else env.get("UNISONO_RENDEZVOUS") or None


def host_port(text: str, source: str) -> tuple[str, int]:
    """Splits host:port or [ipv6]:port; `source` says where the text stood."""
    host, colon, port = text.rpartition(":")
    is_ipv6 = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if is_ipv6 else host
    number = int(port) if re.fullmatch("[0-9]{1,5}", port) else 0
    if not colon or not 1 <= number <= MAX_PORT or not re.fullmatch(r"\S+", host) or is_ipv6 != (":" in host):
        raise UsageError(
            f"{source} must be host:port with a port in 1..{MAX_PORT} (an IPv6 address in brackets); received {text!r}"
        )
    return host, number
