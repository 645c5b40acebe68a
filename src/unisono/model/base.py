"""The interface of the adapters of all frameworks: one replica of a model, its loss and its local optimiser."""

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
"""Called when a bucket of the gradient is complete: in one fixed order on every rank, unused buckets at the end."""


TRAIN, VALIDATION, TEST = "train", "validation", "test"
"""Stages: what a model is used for."""

Logged = Mapping[str, tuple[float, float]]
"""Name -> sum and weight of the values that a user's code logged."""


class PartialEpochLog(NamedTuple):
    """The values that a user's code has logged so far in an epoch of training that is not finished."""

    num_samples: int
    """Samples of the epoch that this worker has seen."""
    logged: Logged
    is_over: bool
    """Whether `end` was called for the epoch, so that only its evaluation is missing."""
    unsaved_metrics: Sequence[str] = ()
    """Metrics of the user's code that have seen samples of the epoch and are not saved: after a resume they start again."""


MASK = 2**64 - 1
EVALUATING, BEGINNING, ENDING = -1, -2, -3
"""Values of `StreamKey.micro` outside of training steps: the evaluation after a step, the code before the first step of an
epoch, the code after its last."""


class StreamKey(NamedTuple):
    """Identifies the random numbers that a computation uses. No generator state belongs to a process."""

    seed: int
    step: int
    shard: int
    micro: int = 0
    """Number of the micro-batch of a step; or `EVALUATING`, `BEGINNING`, `ENDING`."""

    def value(self) -> int:
        """Pure: returns 64 well-mixed bits: the parts times odd numbers without a common pattern, through the finaliser of
        splitmix64."""
        seed, step, shard, micro = self
        mixed = (
            seed * 0x9E3779B97F4A7C15 + step * 0xD1342543DE82EF95 + shard * 0xAF251AF3B0F025B5 + micro * 0xB564EF22EC7AECE5
        ) & MASK
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & MASK
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & MASK
        return mixed ^ mixed >> 31


@dataclass(frozen=True)
class Evaluated:
    """Result of evaluating one batch."""

    outputs: Any
    targets: Any
    weights: Tensor | None
    loss_sum: Tensor | float | None
    loss_weight: Tensor | float
    num_samples: int


class ModelAdapter(ABC):
    """One replica of a model with its loss and local optimiser. Everything is local; nothing here talks to other ranks."""

    num_parameters: int
    """Number of trainable parameters."""
    tail: Tail
    notes: list[str]
    """What a user should know about how steps are computed, until somebody has said it."""
    has_sample_losses: bool = True
    """Whether `evaluate` can give the loss of single samples."""

    @abstractmethod
    def forward_backward(self, batch: Any, key: StreamKey, on_ready: Ready | None = None) -> None:
        """Adds the gradient of the summed loss of a batch to the gradient, and the sums of the batch to the tail."""

    @abstractmethod
    def clear_gradients(self) -> None:
        """Sets gradient and tail to zero, before the first micro-batch of a step."""

    @abstractmethod
    def apply_gradients(
        self, settings: Sequence[Mapping[str, float]], weight: float, uses: npt.NDArray[np.float64], part: str = ""
    ) -> bool:
        """Makes one update with the gradient divided by `weight`; a parameter that no worker used (`uses`) is not changed.
        Returns False and changes nothing if the gradient is not finite."""

    @abstractmethod
    def seed(self, key: StreamKey) -> None:
        """Seeds the framework's generators: what they draw next is a function of the key alone."""

    @abstractmethod
    def evaluate(self, batch: Any) -> Evaluated:
        """Computes outputs and loss of a batch; changes no weight and no gradient."""

    def begin(self, stage: str, step: int | None = None, epoch: int | None = None) -> None:  # noqa: B027 - most need not know
        """Starts an epoch of training, at this step, or an evaluation."""

    def resume_epoch(self, epoch: int, first_step: int, step: int, partial_epoch: PartialEpochLog | None) -> None:  # noqa: B027
        """Called instead of `begin`: resumes, with `step`, an epoch of training that began at `first_step` in an earlier
        attempt."""

    def end(self, stage: str) -> Logged | None:  # noqa: ARG002
        """Ends what `begin` started; returns what the user's code logged in it, or None (on all ranks alike) where no code can
        log. An epoch of training that was over in an earlier attempt does not end again."""
        return None

    @abstractmethod
    def shared_state(self) -> list[Tensor]:
        """Returns the tensors that must be equal on all replicas before the first step: parameters, statistics, counters."""

    @abstractmethod
    def statistics(self) -> Sequence[Tensor]:
        """Returns the flat vectors of floating running statistics, one for each type."""

    @abstractmethod
    def counters(self) -> list[Tensor]:
        """Returns the buffers that are saved and never averaged."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Returns the state of model and optimisers: any nesting of tensors, which are not copied, and plain values."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Loads what `state` returned and, under the key "kept", what `user_state` returned; tensors are copied."""

    def partial_epoch(self) -> PartialEpochLog | None:
        """Returns what was logged so far in the current epoch of training; None, on all ranks alike, where no code can log."""
        return None

    def user_state(self) -> Mapping[str, Any]:
        """Returns what the user's code wants saved beside `state`. It may be called at any time after the first step."""
        return {}
