"""What is known about a rank, its node and its links: plain values, so that checks are pure functions of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

MPI_LAUNCHERS = ("openmpi", "pmi")


@dataclass(frozen=True)
class Interface:
    """A network interface, or an InfiniBand device as such (kind "rdma", which has no address of its own)."""

    name: str
    kind: str
    """loopback, ethernet, infiniband, rdma or virtual."""
    up: bool
    speed_mbits: int | None = None
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Torch:
    """PyTorch as this process finds it."""

    version: str = ""
    """Its version; empty if it is not installed or cannot be imported: `error` says why."""
    error: str = ""
    threads: int | None = None
    cuda: str = ""
    """Version of CUDA that it was built for; empty for a build without."""
    num_gpus: int = 0
    """Number of GPUs that it can use."""
    gpu_error: str = ""
    """The error of CUDA when it can use none."""
    gpu_ids: tuple[str, ...] = ()
    """The hardware ids of the GPUs that it can use, in its order; no launcher renumbers them."""


@dataclass(frozen=True)
class Mpi:
    """MPI as this process finds it. `rank` and `size` are MPI's own answer, known only after a trial."""

    launcher: str = ""
    """The MPI whose mpirun started us; empty if none did."""
    mpi4py: str = ""
    """Its version; empty if it is not installed."""
    library: str = ""
    """The name and version of the library behind mpi4py, as it gives them."""
    error: str = ""
    rank: int | None = None
    size: int | None = None


@dataclass(frozen=True)
class Facts:
    """What is known about one rank and its node."""

    rank: int
    size: int
    launcher: str
    node: str
    """The node by the launcher's name or number; never the host name."""
    host: str
    pid: int = 0
    engine: str = "auto"
    """The engine that was requested."""
    address: str = "127.0.0.1"
    """The interface through which the other ranks reach this one."""
    host_addresses: tuple[str, ...] = ()
    """The addresses to which the own host name resolves on this node."""
    host_error: str = ""
    cpus: tuple[int, ...] = ()
    """The affinity mask."""
    parent_cpus: tuple[int, ...] = ()
    """The mask of the process that started us."""
    cpu_quota: float | None = None
    """Number of CPUs whose time the control group may use."""
    cpus_per_task: int | None = None
    """CPUs that SLURM was asked for."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """The environment variables for threads and networks that are set."""
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    memory_bytes: int | None = None
    """Bytes of memory that are still available to this node's ranks together."""
    gpus: tuple[str, ...] = ()
    our_gpus: tuple[str, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    open_files: int | None = None
    """Soft limits; None is unlimited."""
    open_files_hard: int | None = None
    locked_bytes: int | None = None
    python: str = ""
    executable: str = ""
    unisono: str = ""
    torch: Torch = Torch()
    mpi: Mpi = Mpi()
    unreachable: Mapping[str, str] = field(default_factory=dict)
    """Ranks of this node whose memory we cannot open -> why."""
    unresolved: Mapping[str, str] = field(default_factory=dict)
    """Hosts of other nodes whose names we cannot resolve -> why."""

    @property
    def our_gpu_ids(self) -> tuple[str, ...]:
        """Our GPUs by the hardware's names; by the launcher's where torch cannot say and they are not renumbered."""
        if self.torch.gpu_ids:
            places = [self.gpus.index(gpu) for gpu in self.our_gpus if gpu in self.gpus]
            return tuple(self.torch.gpu_ids[place] for place in places if place < len(self.torch.gpu_ids))
        # A scheduler may show each task its one GPU as "0".
        return self.our_gpus if len(self.gpus) > 1 or self.launcher == "unisono" else ()

    def plain(self) -> dict[str, Any]:
        """The facts as plain data, for other processes."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Facts:
        """Makes facts from what `plain` gave, also after conversion to JSON and back."""
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
        values["interfaces"] = tuple(
            Interface(**{**one, "addresses": tuple(one["addresses"])}) for one in values.get("interfaces", ())
        )
        values["torch"] = Torch(**{**values["torch"], "gpu_ids": tuple(values["torch"]["gpu_ids"])})
        values["mpi"] = Mpi(**values["mpi"])
        return cls(**values)


@dataclass(frozen=True)
class Measurement:
    """Speed and latency between two ranks through one engine, or why they could not be measured."""

    engine: str
    ranks: tuple[int, int]
    chosen: bool
    """Whether the job itself would use this engine."""
    gb_per_s: float = 0.0
    latency_us: float = 0.0
    error: str = ""

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Measurement:
        """Makes a measurement from plain data, e.g. from JSON."""
        return cls(**{**plain, "ranks": tuple(plain["ranks"])})


@dataclass(frozen=True)
class Job:
    """Everything that the checks can use: the ranks of a job and the measurements between them."""

    ranks: tuple[Facts, ...]
    """The ranks that answered, in order."""
    launcher: str
    size: int
    """Number of processes, as the launcher says."""
    note: str = ""
    num_expected: int | None = None
    """Number of processes that the user expects (-n); None where they did not say."""
    started: int = 0
    """Number of local ranks that were started only for this examination; then `ranks` are those."""
    origin: str = ""
    """How the engine of the job was chosen, as the communicator says it."""
    measurements: tuple[Measurement, ...] = ()

    @property
    def nodes(self) -> dict[str, tuple[Facts, ...]]:
        """The ranks of each node, nodes in the order of their first rank."""
        names = dict.fromkeys(facts.node for facts in self.ranks)
        return {name: tuple(facts for facts in self.ranks if facts.node == name) for name in names}


def describe_ranks(ranks: Sequence[int]) -> str:
    """Returns the ranks in words: 'rank 3' or 'ranks 0-3, 7'."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return f"rank{'s' if len(ranks) != 1 else ''} " + ", ".join("-".join(map(str, run)) for run in runs)


def with_unit(number: int, what: str) -> str:
    """Returns a number with its unit in the singular or plural: '1 rank' or '2 ranks'."""
    return f"{number} {what}{'' if number == 1 else 's' if not what.endswith('s') else 'es'}"
