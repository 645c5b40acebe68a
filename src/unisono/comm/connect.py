"""Opens the communicator of the whole job: the processes find each other, choose the engine, and print the choice and its
reason."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import torch

from unisono.cluster.rendezvous import ports
from unisono.cluster.resolve import current_topology
from unisono.cluster.topology import ALLREDUCES, ENGINES, Topology
from unisono.comm.allreduce.install import AllreduceInstaller
from unisono.comm.base import Communicator, Group
from unisono.comm.choose import (
    ProcessInfo,
    check_engine,
    choose_engine,
    describe_process,
    gpu_index,
    node_indices,
)
from unisono.comm.control_plane.control import Control
from unisono.errors import UsageError, join_ranks
from unisono.launch.excepthook import install_excepthook


def connect(
    engine: str | None = None,
    allreduce: str | None = None,
    time_limit_s: float | None = None,
    topology: Topology | None = None,
    quiet: bool = False,
    attend: Callable[[], None] | None = None,
) -> Communicator:
    """Connects all processes of the job and returns their communicator.

    Every process calls it once. It finds out who started the processes (srun, mpirun, torchrun, `unisono run`, or
    TF_CONFIG), lets them meet, chooses the engine that suits the machines, and prints one line about the choice on rank 0.
    A program that was started as one process gets a communicator of size 1, so that the same code runs alone.

    Use it in a `with` statement: if one process raises inside it, the others raise `PeerLost` with the text of that
    exception instead of waiting. An engine that cannot work here raises `UsageError`; a process that does not appear within
    the time limit raises `CollectiveTimeout`.

    Collective over all processes of the job, blocking.

    Example:
        import torch
        import unisono as un

        with un.connect() as comm:
            total = torch.ones(3)
            comm.allreduce(total)
            total.tolist() == [comm.size] * 3  # -> True

    Args:
        engine: How the processes talk: "auto", "single", "shm", "mpi", "gloo" or "nccl". Left out, it is what the launcher
            was told with --engine, else "auto": nccl with a GPU for each process, shm on one machine, else mpi or gloo.
        allreduce: How values are added up: "auto", "ring", "recursive_doubling", "rabenseifner", "node_aware", or "engine"
            for the engine's own way. Left out, it is what the launcher was told with --allreduce, else "auto".
        time_limit_s: Seconds that a call waits for a missing process before it raises; 600 unless the launcher says
            otherwise.
        topology: The place of this process among all, for programs that find it out themselves; left out, the launcher's
            variables say it.
        quiet: True prints no line about the choice.
        attend: A function that is called several times a second while the processes meet; what it raises ends the wait.
    """
    install_excepthook()
    at = topology or current_topology()
    asked = _checked_choice(ENGINES, engine or at.engine, "engine")
    algorithm = _checked_choice(ALLREDUCES, allreduce or at.allreduce, "allreduce")
    job = _meet(at, _checked_seconds(at.time_limit_s if time_limit_s is None else time_limit_s), attend)
    try:
        comm, reason = _open_chosen(job, asked)
    except BaseException as error:
        job.control.give_up(f"could not open its communicator: {error}")
        job.control.close()
        raise
    comm.own_control()
    try:
        comm.origin = f"{job}, engine {comm.engine} ({reason})"
        _allreduce_installer(job, algorithm).install(comm)
    except BaseException as error:
        comm.abort(f"could not open its communicator: {error}")
        comm.close()
        raise
    if comm.rank == 0 and not quiet:
        print(f"unisono: {comm.origin}", file=sys.stderr, flush=True)
    return comm


@dataclass(frozen=True)
class ConnectedJob:
    """The processes of a job after they have connected to each other."""

    at: Topology
    control: Control
    host: str
    """Address of this process on the interface through which the processes are connected."""
    members: list[ProcessInfo]
    nodes: list[int]
    """The node of each process, numbered by first appearance."""
    limit_s: float

    def __str__(self) -> str:
        size, num_nodes = len(self.members), len(set(self.nodes))
        many = f"{size} process{'es' if size > 1 else ''} on {num_nodes} node{'s' if num_nodes > 1 else ''}"
        return f"{many}, started by {self.at.launcher}{f', met at {self.host}' if size > 1 else ''}"


def _checked_choice(choices: tuple[str, ...], name: str, option: str) -> str:
    """Returns the name; raises `UsageError` unless it is one of `choices`."""
    if name not in choices:
        raise UsageError(f"{option} must be one of {', '.join(choices)}; received {name!r} (connect({option}=...))")
    return name


def _checked_seconds(time_limit_s: object) -> float:
    """Returns the time limit as a float; raises `UsageError` unless it is a number of seconds above 0."""
    if isinstance(time_limit_s, (int, float)) and not isinstance(time_limit_s, bool) and 0 < time_limit_s < math.inf:
        return float(time_limit_s)
    raise UsageError(f"time_limit_s must be a number of seconds above 0; received {time_limit_s!r} (connect(time_limit_s=...))")


def _meet(at: Topology, limit_s: float, attend: Callable[[], None] | None) -> ConnectedJob:
    """Collective: connects the processes, exchanges their facts and returns the connected job."""
    me = describe_process(at)
    if at.world_size == 1:
        from unisono.comm.engines.single import SoloControl

        return ConnectedJob(at, SoloControl(), "127.0.0.1", [me], [0], limit_s)
    from unisono.comm.control_plane.tcp_control import TcpControl

    if at.address is None:
        from unisono.comm.engines.mpi import complete_topology

        at = complete_topology(at)
    assert at.address is not None
    control = TcpControl.connect(
        rank=at.global_rank,
        size=at.world_size,
        address=at.address,
        ports=ports(at.port, at.token),
        token=at.secret,
        timeout_s=limit_s,
        info=asdict(me),
        job=at.job,
        attend=attend,
        name=at.token,
        no_secret=at.no_secret,
    )
    if control.known_by_name:
        print(
            f"unisono: {join_ranks(control.known_by_name)} joined by the public name of this job, as its processes have no common "
            f"secret: {at.no_secret or 'the topology has none'}. Another user could take such a place, so Python objects are not "
            "unpickled (hvd.broadcast_object); export UNISONO_TOKEN, the same random text of 32 characters for all, to mend it",
            file=sys.stderr,
            flush=True,
        )
    members = [ProcessInfo(**{**info, "cpus": tuple(info["cpus"])}) for info in control.peers_info]
    return ConnectedJob(at, control, control.local_address, members, node_indices(members), limit_s)


def _open_chosen(job: ConnectedJob, requested: str) -> tuple[Communicator, str]:
    """Collective: opens the communicator; returns it with the reason for its engine."""
    rank, everybody = job.at.global_rank, tuple(range(len(job.members)))
    name, reason = choose_engine(requested, job.at.launcher, job.members)
    check_engine(name, job.members[rank], job.nodes)
    try:
        return _open_engine(job, name, Group("world", rank, everybody, everybody)), reason
    except UsageError as error:
        if requested != "auto" or name != "shm":
            raise
        # Processes that cannot open each other's memory find out together, so all come here.
        return _open_engine(job, "gloo", Group("world", rank, everybody, everybody)), str(error)


def _open_engine(job: ConnectedJob, name: str, group: Group) -> Communicator:
    """Collective over the group: opens the communicator of the engine `name` and returns it."""
    if name == "single":
        from unisono.comm.engines.single import SingleCommunicator

        return SingleCommunicator(group, job.control, torch.device("cpu"), job.limit_s)
    if name == "shm":
        from unisono.comm.engines.shm import open_shm

        return open_shm(group, job.control, job.limit_s, _num_cpus(job, group))
    if name == "mpi":
        from unisono.comm.engines.mpi import open_mpi

        return open_mpi(group, job.control, job.limit_s)
    from unisono.comm.engines.torch_dist import open_torch

    device = torch.device("cuda", gpu_index(job.at) or 0) if name == "nccl" else torch.device("cpu")
    return open_torch(group, job.control, device, job.limit_s, name, job.host)


def _num_cpus(job: ConnectedJob, group: Group) -> int:
    """Returns the number of CPUs on which a group of one node may spin: 0 unless every process of the node can have its own."""
    node = job.nodes[group.members[0]]
    together = [job.members[r] for r, other in enumerate(job.nodes) if other == node]
    cpus = {cpu for member in together for cpu in member.cpus}
    return len(cpus) if len(together) <= len(cpus) else 0


def _allreduce_installer(job: ConnectedJob, requested: str) -> AllreduceInstaller:
    """Returns the installer of the requested all-reduce algorithm."""
    mpi_settings = ", ".join(f"{name}={value}" for name, value in job.at.mpi_selection)
    return AllreduceInstaller(requested, job.nodes, partial(_open_node, job), mpi_settings)


def _open_node(job: ConnectedJob, comm: Communicator) -> Communicator:
    """Collective: opens a communicator of the members of this node, through shared memory where all of them can use it, on every
    node."""
    mine = job.nodes[comm.members[comm.rank]]
    if comm.engine == "shm":  # a split: it knows the same memory, and a rank that waits in it moves all messages on
        same = comm.split(mine, comm.rank)
        assert same is not None
        return same
    ranks = tuple(r for r, member in enumerate(comm.members) if job.nodes[member] == mine)
    members = tuple(comm.members[r] for r in ranks)
    shared, problem = None, next((job.members[m].no_shm for m in comm.members if job.members[m].no_shm), "")
    if not problem:
        try:
            shared = _open_engine(job, "shm", Group(f"{comm.name}/node{mine}", ranks.index(comm.rank), members, ranks))
        except UsageError as error:
            problem = str(error)
    if not any(comm.allgather_object(problem)):
        assert shared is not None
        return shared
    if shared is not None:
        shared.close()
    local = comm.split(mine, comm.rank)
    assert local is not None
    return local
