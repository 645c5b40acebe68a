"""How replicas agree: what every algorithm offers. Adding one is one new file whose name is the name users type."""

from __future__ import annotations

import math
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from unisono.comm.base import Communicator
from unisono.errors import UsageError
from unisono.events import Spans
from unisono.model.base import ModelAdapter, StreamKey
from unisono.model.tail import StepStats
from unisono.registry import load

Settings = Mapping[str, Sequence[Mapping[str, float]]]
"""For each part of the model: learning rate and so on of each group of its optimiser."""


@dataclass(frozen=True)
class Roles:
    """Who works and who serves: ranks, and which shard of a batch each worker reads."""

    workers: tuple[int, ...]
    servers: tuple[int, ...] = ()

    def shard(self, rank: int) -> int | None:
        """The shard that a rank reads; None for a server."""
        return self.workers.index(rank) if rank in self.workers else None


class StepInfo(NamedTuple):
    """What an algorithm must know of the step it takes."""

    step: int
    key: StreamKey
    settings: Settings
    num_samples: int
    """Of this worker."""
    stop: bool = False
    """This rank was told to stop: its vote travels with the step."""
    save: bool = False
    """This rank wishes the state after this step to be saved; its vote travels likewise."""


@dataclass
class Algorithm(ABC):
    """One way to agree. Every method is collective over the ranks with the same role, and blocking, unless it says otherwise."""

    comm: Communicator
    adapter: ModelAdapter
    options: Any
    spans: Spans | None = field(default=None)
    group: int = 1
    """Processes that form one worker (`--group`)."""
    keeps_equal: ClassVar[bool] = False
    """Whether replicas are equal after every step, running statistics too."""
    has_own_replicas: ClassVar[bool] = False
    """Whether workers may hold weights and optimisers of their own between two exchanges; then each goes on with its own."""
    takes_group: ClassVar[bool] = False
    """Whether a worker may be a group of processes."""
    suspects: set[int] = field(default_factory=set, init=False)
    """Steps whose update was left out here and whose sums `step` has not given yet."""
    shard_state: Any = field(default=None, init=False)
    """Of one that computes shard by shard: what every shard begins with."""

    @classmethod
    @abstractmethod
    def plan(cls, options: Any, size: int) -> Roles:
        """Pure: the roles of `size` ranks."""

    @abstractmethod
    def start(self) -> None:
        """Make all replicas equal."""

    @abstractmethod
    def step(self, micro_batches: Sequence[Any], at: StepInfo) -> Sequence[StepStats]:
        """One update from this worker's part of the batch, which may be empty. Gives the sums of the steps that are known by now:
        this one, or on a GPU the one before, or those of a round at its end; the same on all ranks."""

    @abstractmethod
    def settle(self) -> None:
        """Make all replicas equal where they may differ between steps (running statistics, or the weights of workers that learn by
        themselves): before an evaluation, and at the end."""

    def drain(self) -> Sequence[StepStats]:
        """The sums of the steps that `step` has not given yet. Replicas stay as they are."""
        return ()

    @property
    def num_workers(self) -> int:
        """Local: that have a part of every batch; a group of processes counts once."""
        return self.comm.size // self.group

    @property
    def num_servers(self) -> int:
        """Local: processes that hold what the workers agree on."""
        return 0

    @property
    def replicas_differ(self) -> bool:
        """Local: whether a state to go on from must hold that of every worker; alike on all ranks."""
        return self.has_own_replicas

    def finish(self) -> None:  # noqa: B027 - most leave nothing behind
        """Leave no message in flight."""

    def state(self) -> dict[str, Any]:
        """Local, after `drain`: what must be kept besides the replicas to go on; the same on all ranks unless `replicas_differ`.
        Tensors are not copied."""
        return {}

    def restore(self, state: Mapping[str, Any], size: int) -> None:  # noqa: B027 - most have no state
        """Local, after `start`: go on with what `state` gave to `size` ranks."""


def known_algorithms() -> tuple[str, ...]:
    """Local: the names that users may type: the files beside this one. Folders hold what several of them share."""
    beside = pkgutil.iter_modules([str(Path(__file__).parent)])
    return tuple(sorted(found.name for found in beside if found.name != "base" and not found.ispkg))


def find_algorithm(name: str) -> type[Algorithm]:
    """Local: the algorithm of this name. Each file has one, in the constant ALGORITHM."""
    module = load("unisono.algorithms", name, known_algorithms(), "--algorithm")
    found: type[Algorithm] = module.ALGORITHM
    return found


def make_options(algorithm: type[Algorithm], name: str, values: Mapping[str, Any]) -> Any:
    """Local: its options from --set algorithm.NAME=VALUE; refuses names that it does not read."""
    options_type = algorithm.Options  # type: ignore[attr-defined]
    known = [entry.name for entry in fields(options_type)]
    for key in values:
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UsageError(f"--algorithm {name} has no option {key!r} (--set algorithm.{key}); {hint}known: {', '.join(known)}")
    return options_type(**values)


def is_finite(stats: StepStats) -> bool:
    """Pure: whether the loss of every worker was a number."""
    return not stats.num_not_finite and math.isfinite(stats.loss_sum)
