"""The topology that a resolver returns (rank, world size, node), the reason why it has none, and overrides by the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from unisono.errors import UsageError

MAX_PORT = 65535

ENGINES = ("auto", "single", "shm", "mpi", "gloo", "nccl")
"""Values of `--engine`. (The engine `threads` is for tests: `testing/thread_communicator.py` makes its ranks.)"""
ALLREDUCES = ("auto", "ring", "recursive_doubling", "rabenseifner", "node_aware", "engine")
"""Values of `--allreduce`: `engine` is the engine's own, the others are files in `comm/allreduce/`."""


@dataclass(frozen=True)
class Topology:
    """Position of this process among all processes of the job. `global_rank` and `world_size` exist only in this package."""

    launcher: str
    """Launcher of this process: unisono, torchrun, openmpi, pmi, slurm, tf_config or local."""
    global_rank: int
    world_size: int
    local_rank: int
    """Position among the processes of this node."""
    local_size: int
    node_rank: int | None
    """Index of this node; None where the launcher does not say (Open MPI, PMI across nodes) and the processes find out together."""
    num_nodes: int | None
    address: str | None
    """Host that rank 0 listens on; None where the launcher does not say and MPI itself must be asked."""
    port: int
    """First port of the sequence that rank 0 tries."""
    token: str
    """Name that tells the job from others. Most launchers' variables are public, and so is a token made of them. Empty where the
    launcher does not say (MPICH across nodes) and rank 0 must hand one out through MPI, as with `address`."""
    secret: str = ""
    """Known to processes of this user alone, which prove it to each other (`job_secret.py`); empty where none can be had, or MPI
    hands it out."""
    no_secret: str = ""
    """Why processes on other hosts cannot know `secret`; empty where they can."""
    node_name: str = ""
    """The launcher's name of this node, where it does not number the nodes."""
    mpi_selection: tuple[tuple[str, str], ...] = ()
    """The MPI library's own variables that choose its all-reduce, as they are set."""
    job: str = ""
    """Readable name of the job, for messages; empty where it has none."""
    gpus: tuple[str, ...] = ()
    """GPUs of this node that the job may use, as CUDA_VISIBLE_DEVICES would name them."""
    own_gpus: tuple[str, ...] = ()
    """Those of `gpus` that belong to this process, by the scheduler or by local rank."""
    engine: str = "auto"
    """Engine that the launcher requests."""
    allreduce: str = "auto"
    """All-reduce algorithm that the launcher requests."""
    time_limit_s: float = 600.0
    """Time that a collective waits for a missing member."""
    task_type: str | None = None
    """Kind of this process where kinds were named (`jobs` of the overrides, TF_CONFIG), e.g. "worker" or "chief"."""
    task_index: int | None = None
    """Position among the processes of that kind."""
    note: str = ""
    """A hint for users, e.g. that a batch script is not a rank. No code depends on it."""

    def __post_init__(self) -> None:
        places = [
            ("global_rank", self.global_rank, "world_size", self.world_size),
            ("local_rank", self.local_rank, "local_size", self.local_size),
        ]
        if self.node_rank is not None and self.num_nodes is not None:
            places.append(("node_rank", self.node_rank, "num_nodes", self.num_nodes))
        for name, value, size_name, size in places:
            if not 0 <= value < size:
                raise UsageError(
                    f"{name} {value} does not fit {size_name} {size} (from {self.launcher}); check the launcher's variables"
                )
        if self.local_size > self.world_size:
            raise UsageError(
                f"local_size {self.local_size} exceeds world_size {self.world_size} (from {self.launcher}); "
                "check the launcher's variables"
            )

    @property
    def one_node(self) -> bool:
        """Whether all processes of the job run on this node."""
        return self.local_size == self.world_size


@dataclass(frozen=True)
class NotThisLauncher:
    """The answer of a resolver whose launcher did not start this process, with the reason."""

    reason: str


@dataclass(frozen=True)
class Overrides:
    """Values of a user that override the launcher's variables; None leaves a value to them."""

    world_size: int | None = None
    """Number of processes that the user asked for: checked against the environment, never used instead of it."""
    port: int | None = None
    """First port that rank 0 tries."""
    tasks_per_node: int | tuple[int, ...] | None = None
    """Processes on each node (SLURM only)."""
    gpus_per_node: int | None = None
    gpus_per_task: int | None = None
    jobs: Mapping[str, int] | None = None
    """Kinds of processes in the order of ranks with the number of each, e.g. {"worker": 3, "ps": 1}."""

    def __post_init__(self) -> None:
        tasks = self.tasks_per_node if isinstance(self.tasks_per_node, tuple) else (self.tasks_per_node,)
        named = [
            ("world_size", self.world_size, 1),
            ("port", self.port, 1),
            ("gpus_per_node", self.gpus_per_node, 0),
            ("gpus_per_task", self.gpus_per_task, 0),
            *(("tasks_per_node", value, 1) for value in tasks),
            *((f"jobs[{name!r}]", value, 0) for name, value in (self.jobs or {}).items()),
        ]
        for name, value, least in named:
            if value is not None and value < least:
                raise UsageError(f"{name} must be at least {least}; received {value}")
        if self.port is not None and self.port > MAX_PORT:
            raise UsageError(f"port must lie in 1..{MAX_PORT}; received {self.port}")


Resolver = Callable[[Mapping[str, str], Overrides], Topology | NotThisLauncher]
"""A pure function of the environment that recognises one launcher. Variables that are half set or malformed raise `UsageError`."""
