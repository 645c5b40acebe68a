"""Ranks on test hosts: network namespaces of this machine with links of a given rate, one rank on each."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from bench.groups import GroupFailed, Launch, RankSlot
from tests.system.hosts import Host, network_hosts, why_not

RATE = "1gbit"
FIRST_PORT = 29400


def limits(rate: str = RATE) -> str:
    """Pure: what such hosts do not show."""
    shown = rate.replace("gbit", " Gbit/s").replace("mbit", " Mbit/s")
    return (
        f"Hosts are network namespaces of one machine: their links are limited to {shown} (a token bucket that lets 256 KB pass at "
        "once, so short messages see no limit), but their latency is that of the kernel, without card, cable or switch, and all "
        "ranks share the cores of this machine, which also move the packets."
    )


LIMITS = limits()


@contextmanager
def test_hosts(num_hosts: int, rate: str = RATE) -> Iterator[list[Host]]:
    """Hosts for the time of a benchmark. Raises `GroupFailed` where there cannot be any."""
    if reason := why_not():
        raise GroupFailed(f"no test hosts: {reason}")
    with network_hosts(num_hosts, rate) as hosts:
        yield hosts


class Across:
    """Starts groups with one rank on each host; every group meets at a port of its own."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = hosts
        self._ports = itertools.count(FIRST_PORT, 20)

    def commands(self, allreduce: str, *program: str) -> list[list[str]]:
        """Local: `unisono run` once on each host, for `python program`."""
        rendezvous = f"{self._hosts[0].address}:{next(self._ports)}"
        run = [sys.executable, "-m", "unisono", "run", "-n", "1", "--nodes", str(len(self._hosts)), "--rendezvous", rendezvous]
        run += ["--engine", "gloo", "--allreduce", allreduce, "--threads", "1"]
        return [host.command(*run, "--node-rank", str(node), *program) for node, host in enumerate(self._hosts)]

    def unisono(self, command: Sequence[str]) -> list[list[str]]:
        """Local: the commands of one training."""
        return self.commands("auto", "-m", "unisono", *command)

    def starter(self, allreduce: str, module: str, *arguments: str) -> Callable[[int, RankSlot], list[Launch]]:
        """Pure: starts one rank of a group on each host, `python -m bench.ranks.MODULE SOCKET GROUP arguments`."""

        def start(num_ranks: int, slot: RankSlot) -> list[Launch]:  # noqa: ARG001 -- as many as hosts
            return [Launch(command) for command in self.commands(allreduce, *slot.program(module, *arguments)[1:])]

        return start
