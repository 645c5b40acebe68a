"""Checks that need two ranks: whether they can open each other's memory and resolve each other's host names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from unisono.doctor.facts import Facts
from unisono.doctor.gather import resolve_name

MAX_NAMES = 32
"""Most hosts that each node looks up; a name server that knows these knows the others."""


@contextmanager
def offer_memory(proof: bytes) -> Iterator[int]:
    """Context manager: a descriptor of memory that peers try to open, as with engine shm; -1 where the system has none (macOS)."""
    create = getattr(os, "memfd_create", None)
    if create is None:
        yield -1
        return
    fd = create("unisono-doctor")
    try:
        os.write(fd, proof)
        yield fd
    finally:
        os.close(fd)


def find_unreachable(own: Facts, ranks: Sequence[Facts], offers: Sequence[int], proofs: Sequence[bytes]) -> dict[str, str]:
    """Local: finds the ranks of this node whose memory cannot be opened, and why. `offers` and `proofs` are by rank."""
    neighbours = [facts for facts in ranks if facts.node == own.node and facts.rank != own.rank and offers[facts.rank] >= 0]
    reasons = {facts.rank: _why_not(facts.pid, offers[facts.rank], proofs[facts.rank]) for facts in neighbours}
    return {str(rank): reason for rank, reason in reasons.items() if reason}


def find_unresolved(own: Facts, ranks: Sequence[Facts]) -> Mapping[str, str]:
    """Local, blocking: finds the hosts of other nodes whose names cannot be resolved here. One rank of each node does it."""
    if own.rank != min(facts.rank for facts in ranks if facts.node == own.node):
        return {}
    hosts = dict.fromkeys(facts.host for facts in ranks if facts.node != own.node and facts.host != own.host)
    answers = {host: resolve_name(host)[1] for host in list(hosts)[:MAX_NAMES]}
    return {host: error for host, error in answers.items() if error}


def _why_not(pid: int, fd: int, proof: bytes) -> str:
    """Opens the memory that a peer offers; returns why that fails, or an empty text."""
    path = f"/proc/{pid}/fd/{fd}"
    try:
        with Path(path).open("r+b", buffering=0) as file:
            found = file.read(len(proof))
    except OSError as error:
        return f"{path}: {error.strerror}"
    return "" if found == proof else f"{path} belongs to another process: they are in different PID namespaces"
