"""Which processes work and which serve, and which samples each of them reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from unisono.errors import UsageError
from unisono.task.train_config import WITH_SERVER

NO_CLOCK: Mapping[str, Any] = MappingProxyType({})


class LayoutOptions(NamedTuple):
    """Options of the command line about the processes of a training; None where an option is not given."""

    group: int | None = None
    """Processes that form one worker."""
    servers: int | None = None
    simulate: int | None = None
    """Virtual workers in one process."""
    elastic: int | None = None
    """Number of workers that divide the batch, where workers may join and leave."""
    replays: bool = False
    """Whether a recorded order of calls is repeated."""
    clock: Mapping[str, Any] = NO_CLOCK
    """Settings of the virtual clock (`--set simulate.NAME=VALUE`)."""

    def check_clock(self) -> None:
        """Pure: refuses settings of a virtual clock where there is none."""
        if self.clock and self.simulate is None:
            raise UsageError(f"--set simulate.{next(iter(self.clock))} has no effect without --simulate; leave it out")


DEFAULT_LAYOUT = LayoutOptions()


@dataclass(frozen=True)
class Roles(ABC):
    """The processes of a training, and how the samples of a batch are divided among them."""

    size: int
    group: int = 1
    """Processes that form one worker."""

    @property
    @abstractmethod
    def num_workers(self) -> int:
        """Number of workers; a group of processes counts once."""

    @property
    def num_learning(self) -> int:
        """Number of processes, or virtual workers, that learn from samples of their own."""
        return self.num_workers * self.group

    @property
    @abstractmethod
    def num_parts(self) -> int:
        """Number of parts into which the global batch is divided."""

    @abstractmethod
    def batch(self, global_batch: int) -> int:
        """Pure: number of samples of one step."""

    @property
    @abstractmethod
    def num_shards(self) -> int:
        """Number of shards into which the batch of a step is cut."""

    @abstractmethod
    def shard(self, rank: int) -> int:
        """Pure: the shard that a rank reads; the first one, if several."""


@dataclass(frozen=True)
class LockStepRoles(Roles):
    """Every process is a worker, or a member of one, and reads its own part of every batch."""

    shards: Sequence[range] | None = None
    """The shards of each rank, where their number does not depend on that of the processes."""

    @property
    def num_workers(self) -> int:
        return self.size // self.group

    @property
    def num_parts(self) -> int:
        return self.size

    def batch(self, global_batch: int) -> int:
        return global_batch

    @property
    def num_shards(self) -> int:
        return self.size if self.shards is None else self.shards[-1].stop

    def shard(self, rank: int) -> int:
        return rank if self.shards is None else self.shards[rank].start


def lock_step_roles(name: str, takes_group: bool, size: int, layout: LayoutOptions) -> LockStepRoles:
    """Pure: the roles of an algorithm without a server; refuses options that have no effect with it."""
    for option in ("servers", "simulate", "elastic", "replays"):
        if getattr(layout, option):
            shown = "replay" if option == "replays" else option
            raise UsageError(
                f"--{shown} has no effect with --algorithm {name}, which has no server; leave it out, or use {WITH_SERVER}"
            )
    layout.check_clock()
    group = layout.group
    if group is None:
        return LockStepRoles(size)
    if not takes_group:
        raise UsageError(
            f"--group {group} has no effect with --algorithm {name}, where all processes agree in every step; leave it out, or "
            "choose an algorithm whose workers learn by themselves, e.g. local_sgd or diloco"
        )
    if size % group:
        fitting = size - size % group or group
        processes = f"{size} process{'es' if size > 1 else ''}"
        raise UsageError(
            f"{processes} cannot form workers of {group} (--group); start {fitting}, or use a --group that divides {size}"
        )
    return LockStepRoles(size, group)
