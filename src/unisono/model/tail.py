"""The short vector that travels with the gradient: sums (never means) of loss, loss weight and metrics, use counts, and votes.

float64, never compressed, in the same grouped operation as the last bucket; so exact global means and common decisions cost no
further message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

if TYPE_CHECKING:
    from unisono.model.late_sums import LateSums

LOSS, WEIGHT, SAMPLES, STOP, SAVE, NOT_FINITE = range(6)
HEAD = 6
LATEST = 8
"""Number of steps after which, at the latest, the sums of a step on a GPU are known and acted upon, alike on all ranks: so far the
host may be ahead of the device."""
NOTHING: Mapping[str, tuple[float, float]] = MappingProxyType({})


class StepStats(NamedTuple):
    """Sums of one step over all workers."""

    step: int
    loss_sum: float
    weight: float
    num_samples: int
    num_stops: int
    """Number of workers that request a stop."""
    num_saves: int
    """Number of workers that request a checkpoint after this step."""
    num_not_finite: int
    """Number of workers whose own loss was not a finite number."""
    metric_sums: npt.NDArray[np.float64]
    named: Mapping[str, tuple[float, float]] = NOTHING
    """Sums and weights of further losses by name, of a step that minimises several."""

    @property
    def loss(self) -> float:
        """Mean loss of the step; NaN where nothing was counted."""
        return self.loss_sum / self.weight if self.weight else float("nan")

    @property
    def head(self) -> tuple[float, ...]:
        """The sums that every step has, in the order of the tail."""
        return self.loss_sum, self.weight, self.num_samples, self.num_stops, self.num_saves, self.num_not_finite

    def as_not_finite(self) -> StepStats:
        """Returns the same sums, marked as those of a step whose update was skipped because loss or gradient was not finite."""
        return self if self.num_not_finite else self._replace(num_not_finite=1)


class Tail:
    """The tail of one replica's gradient, a float64 vector. On the CPU sums are added through a NumPy view, as an operation of
    torch costs more than the sum."""

    def __init__(self, empty: Callable[[int, torch.dtype], Tensor], num_metric_sums: int, num_uses: int) -> None:
        self.vector = empty(HEAD + num_metric_sums + num_uses, torch.float64).zero_()
        self.known_weight: float | None = None
        """On a GPU: the weight of the batch that was added last, where shapes alone decide it."""
        self.metric_sums = self.vector[HEAD : HEAD + num_metric_sums]
        self.uses = self.vector[HEAD + num_metric_sums :]
        self._num_metric_sums = num_metric_sums
        self._late: LateSums | None = None
        self._host: npt.NDArray[np.float64] | None = self.vector.numpy() if self.vector.device.type == "cpu" else None

    def use_as_on_device(self) -> None:
        """Local: on a CPU too, sums are added as on a GPU, by torch; for tests."""
        self._host = None

    def add(self, loss_sum: Tensor | float, weight: Tensor | float, num_samples: int, counted_by_host: bool = False) -> None:
        """Local, without a wait for the device: adds the sums of one batch. `counted_by_host`: on a GPU, what the host knows of it
        (the samples, and a weight that is a plain number) is among the numbers with which the tail begins."""
        if self._host is not None:
            loss = loss_sum if isinstance(loss_sum, float) else loss_sum.item()
            host = self._host
            host[LOSS] += loss
            host[WEIGHT] += weight
            host[SAMPLES] += num_samples
            if not -np.inf < loss < np.inf:
                host[NOT_FINITE] = 1
            return
        assert isinstance(loss_sum, Tensor), "on a GPU nothing comes from the host"
        self.vector[LOSS] += loss_sum.detach()
        self.known_weight = weight if isinstance(weight, float) else None
        if not (counted_by_host and isinstance(weight, float)):
            self.vector[WEIGHT] += weight
        if not counted_by_host:
            self.vector[SAMPLES] += num_samples

    def add_metrics(self, sums: Tensor | Sequence[float]) -> None:
        """Local: adds the sums of the metrics of a batch, in their order; plain numbers where they were computed on the host."""
        if self._host is None:
            self.metric_sums += torch.as_tensor(sums)
        else:
            for place, number in enumerate(sums, HEAD):
                self._host[place] += number

    def clear(self, head: Tensor | None = None) -> None:
        """Local: sets all sums to zero; with `head`, numbers on the device, to these, and leaves the use flags."""
        if head is not None:
            self.vector[: len(head)].copy_(head)
        elif self._host is not None:
            self._host.fill(0)
        else:
            self.vector.zero_()

    def request(self, to_stop: bool, to_save: bool) -> None:
        """Local: requests a stop or a checkpoint after this step; the request of one worker is enough."""
        if to_stop:
            self.vector[STOP] = 1
        if to_save:
            self.vector[SAVE] = 1

    def set_uses(self, flags: npt.NDArray[np.float64]) -> None:
        """Local: sets the use flags of the parameters; the vector may have space for more, of a larger part of the model."""
        if self._host is not None:
            start = HEAD + self._num_metric_sums
            self._host[start : start + len(flags)] = flags
        else:
            self.uses[: len(flags)].copy_(torch.from_numpy(flags), non_blocking=True)

    def read(self, step: int) -> tuple[StepStats, npt.NDArray[np.float64]]:
        """Local; waits for the device: returns the sums and the use counts."""
        host = self.vector.cpu().numpy() if self._host is None else self._host
        return self._stats_of_step(step, host), host[HEAD + self._num_metric_sums :]

    @property
    def late(self) -> LateSums:
        """On a GPU: the sums on their way to the host."""
        if self._late is None:
            from unisono.model.late_sums import LateSums

            self._late = LateSums(self.vector)
        return self._late

    def send(self, step: int, is_kept: bool = False) -> list[StepStats]:
        """Local, on a GPU: sends the sums of a step to the host, behind all that was started before; returns those of earlier steps
        that are known by now. The result is the same on all ranks. Where `is_kept`, they are among the `late` ones already."""
        return [self._stats_of_step(*row) for row in self.late.add(step, is_kept)]

    def flush(self) -> list[StepStats]:
        """Local; waits for the device: returns the sums of all steps that were sent and not returned yet."""
        return [self._stats_of_step(*row) for row in self.late.flush()]

    def _stats_of_step(self, step: int, host: npt.NDArray[np.float64]) -> StepStats:
        """Returns the sums that lie in this vector on the host as the statistics of `step`."""
        loss, weight, samples, stops, saves, not_finite = host[:HEAD].tolist()
        sums = host[HEAD : HEAD + self._num_metric_sums].copy()
        return StepStats(step, loss, weight, int(samples), int(stops), int(saves), int(not_finite), sums)
