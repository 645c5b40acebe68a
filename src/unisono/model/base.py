"""What every framework's adapter offers: one replica of a model, its loss and its local optimiser."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from unisono.model.flat import Bucket
from unisono.model.tail import Tail

Ready = Callable[[Bucket], None]
"""Told when a bucket of the gradient is complete: in one fixed order on every rank, unused buckets at the end."""


TRAIN, VALIDATION, TEST = "train", "validation", "test"
"""What a model is used for: stages."""

Logged = Mapping[str, tuple[float, float]]
"""Name -> sum and weight of what a user's code logged."""


class SoFar(NamedTuple):
    """What a user's code logged in an epoch of training that is under way."""

    num_samples: int
    """That this worker has seen in it."""
    logged: Logged
    is_over: bool
    """Whether `end` was called, so that only the evaluation is missing."""
    unkept: Sequence[str] = ()
    """Metrics of the user's code that have seen samples in it and begin again in another life."""


MASK = 2**64 - 1
LOOKING, BEGINNING, ENDING = -1, -2, -3
"""In the place of a micro-batch: the evaluation after a step; what is called before the first step of an epoch; after its last."""


class StreamKey(NamedTuple):
    """Which random numbers a computation uses. No generator state belongs to a process."""

    seed: int
    step: int
    shard: int
    micro: int = 0
    """Which of the micro-batches of a step; or `LOOKING`, `BEGINNING`, `ENDING`."""

    def value(self) -> int:
        """Pure: 64 well-mixed bits: the parts times odd numbers without a common pattern, through the finaliser of splitmix64."""
        seed, step, shard, micro = self
        mixed = (
            seed * 0x9E3779B97F4A7C15 + step * 0xD1342543DE82EF95 + shard * 0xAF251AF3B0F025B5 + micro * 0xB564EF22EC7AECE5
        ) & MASK
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & MASK
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & MASK
        return mixed ^ mixed >> 31


@dataclass(frozen=True)
class Evaluated:
    """One batch looked at without learning."""

    outputs: Any
    targets: Any
    weights: Tensor | None
    loss_sum: Tensor | float | None
    loss_weight: Tensor | float
    num_samples: int


class ModelAdapter(ABC):
    """One replica. Everything is local; nothing here talks to other ranks."""

    num_parameters: int
    """That learn."""
    tail: Tail
    judges_samples: bool = True
    """Whether `evaluate` gives the loss of single samples."""

    @abstractmethod
    def forward_backward(self, batch: Any, key: StreamKey, on_ready: Ready | None = None) -> None:
        """Add the gradient of the summed loss of a batch to the gradient, and its sums to the tail."""

    @abstractmethod
    def clear_gradients(self) -> None:
        """Gradient and tail to zero: before the first micro-batch of a step."""

    @abstractmethod
    def apply_gradients(
        self, settings: Sequence[Mapping[str, float]], weight: float, uses: npt.NDArray[np.float64], part: str = ""
    ) -> bool:
        """One update with the gradient divided by `weight`; a parameter that nobody used (`uses`) is left alone. False, and nothing
        is changed, if the gradient is not finite."""

    @abstractmethod
    def seed(self, key: StreamKey) -> None:
        """What the framework draws next is a function of the key alone."""

    @abstractmethod
    def evaluate(self, batch: Any) -> Evaluated: ...

    def begin(self, stage: str, step: int | None = None, epoch: int | None = None) -> None:  # noqa: B027 - most need not know
        """An epoch of training begins, at this step, or an evaluation."""

    def go_on(self, epoch: int, first_step: int, step: int, so_far: SoFar | None) -> None:  # noqa: B027
        """Instead of `begin`: an epoch of training that began at `first_step` in an earlier attempt continues with `step`."""

    def end(self, stage: str) -> Logged | None:  # noqa: ARG002
        """It is over: what the user's code logged in it; None where none can, on all ranks alike. An epoch of training that was
        over in an earlier attempt does not end again."""
        return None

    @abstractmethod
    def shared_state(self) -> list[Tensor]:
        """What all replicas must hold alike before the first step: parameters, statistics, counters."""

    @abstractmethod
    def statistics(self) -> Sequence[Tensor]:
        """The flat vectors of floating running statistics, one for each type."""

    @abstractmethod
    def counters(self) -> list[Tensor]:
        """Buffers that are saved and never averaged."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Model and optimisers: any nesting of tensors, which are not copied, and plain values."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on with what `state` gave, and with what `kept` gave under that name; tensors are copied."""

    def so_far(self) -> SoFar | None:
        """Of the epoch of training in hand; None where nothing can be logged, on all ranks alike."""
        return None

    def kept(self) -> Mapping[str, Any]:
        """What the user's code wants to be kept beside `state`. It may be called at any time after the first step."""
        return {}
