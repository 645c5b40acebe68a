"""Who am I: the answer every resolver gives, and the reasons it may give instead."""

from __future__ import annotations

from dataclasses import dataclass

from unisono.errors import UsageError


@dataclass(frozen=True)
class Topology:
    """Where this process stands among all processes of the job. `global_rank` and `world_size` exist only in this room."""

    launcher: str
    """Who started us: unisono, torchrun, openmpi, pmi, slurm, tf_config or local."""
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
    """Names the job: a peer that cannot answer for it belongs to another job."""
    job: str = "job"
    """Readable name of the job, for messages."""
    gpus: tuple[str, ...] = ()
    """GPUs of this node that the job may use, as CUDA_VISIBLE_DEVICES would name them."""
    our_gpus: tuple[str, ...] = ()
    """Those of them that belong to this process."""
    engine: str = "auto"
    """Engine asked for by the one who started us."""
    allreduce: str = "auto"
    """All-reduce algorithm asked for likewise."""
    time_limit_s: float = 600.0
    """How long a collective waits for a missing member."""

    def __post_init__(self) -> None:
        for name, value, size in (
            ("global_rank", self.global_rank, self.world_size),
            ("local_rank", self.local_rank, self.local_size),
        ):
            if not 0 <= value < size:
                raise UsageError(f"{name} {value} does not lie in 0..{size - 1} (from {self.launcher}); check the launcher's variables")
        if self.local_size > self.world_size:
            raise UsageError(
                f"local_size {self.local_size} exceeds world_size {self.world_size} (from {self.launcher}); check the launcher's variables"
            )

    @property
    def one_node(self) -> bool:
        """Whether all processes of the job run on this node."""
        return self.local_size == self.world_size


@dataclass(frozen=True)
class WhyNot:
    """A resolver's refusal: this launcher did not start us, and how it knows."""

    reason: str
