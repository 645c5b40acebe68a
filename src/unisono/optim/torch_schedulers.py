"""A torch scheduler as a function of the step: it runs on a stand-in optimiser, and what it sets is kept in a table."""

from __future__ import annotations

import math
import warnings
from array import array
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ExponentialLR, LRScheduler, MultiStepLR, ReduceLROnPlateau, StepLR

from unisono.errors import UsageError

ROWS_AT_A_TIME = 1024
"""Rows of the table that are filled at a time: most steps then only read it."""
STEP, EPOCH = "step", "epoch"
"""The intervals in which a scheduler makes its steps."""
COUNTED_IN_EPOCHS = (StepLR, MultiStepLR, ExponentialLR)
"""Classes whose numbers torch's documentation calls epochs. With any other class programs use both intervals."""


class StandIn(Optimizer):
    """An optimiser that has the groups of another one and updates nothing."""

    def __init__(self, real: Optimizer) -> None:
        groups = [
            {name: plain(value) for name, value in group.items() if name not in ("params", "param_names")}
            for group in real.param_groups
        ]
        super().__init__([{**group, "params": [torch.nn.Parameter(torch.zeros(1))]} for group in groups], dict(real.defaults))

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Does nothing; the scheduler checks that the optimiser's step comes first."""


class Stepped:
    """A schedule from a torch scheduler: step -> settings of each group, `lr` and what else the scheduler has changed so far
    (momentum, betas). Pure for its users: the table is filled in order, whichever step is asked for."""

    def __init__(
        self,
        make: Callable[[Optimizer], Any],
        stand_in: Optimizer,
        num_steps: int,
        steps_between: Callable[[LRScheduler], int],
        remark: str = "",
    ) -> None:
        """`steps_between`: how many steps of the training lie between two steps of this scheduler. `remark`: what the log
        adds to that."""
        self._stand_in = stand_in
        self._before = [dict(group) for group in self._stand_in.param_groups]
        self._scheduler = make_scheduler(make, self._stand_in)
        self._steps_per_row = steps_between(self._scheduler)
        self._num_rows = -(-num_steps // self._steps_per_row)
        self._remark = remark
        _refuse_early_end(self._scheduler, self._num_rows)
        self._lrs = [array("d") for _ in self._before]
        self._changed: dict[int, list[Mapping[str, Any]]] = {}
        """Row -> other settings of each group, from the first row at which one has changed."""
        self._changing: set[str] = set()
        self._record_row()
        self._fill_rows(1)  # a scheduler that cannot be used fails before work starts

    @property
    def steps_per_row(self) -> int:
        """Number of steps of the training between two steps of the scheduler."""
        return self._steps_per_row

    def describe(self, steps_per_epoch: int) -> str:
        """Pure: the scheduler and how often it makes a step, for the log."""
        num, epochs = self._steps_per_row, self._steps_per_row / steps_per_epoch
        often = "step" if num == 1 else "epoch" if epochs == 1 else f"{epochs:g} epochs" if epochs % 1 == 0 else f"{num} steps"
        return f"learning rate: {type(self._scheduler).__name__} makes a step after every {often} of the training{self._remark}"

    def __call__(self, step: int) -> tuple[Mapping[str, Any], ...]:
        row = step // self._steps_per_row
        if row >= len(self._lrs[0]):
            self._fill_rows(max(row, min(row + ROWS_AT_A_TIME, self._num_rows - 1)))
        others = self._changed.get(row)
        if others is None:
            return tuple([{"lr": lrs[row]} for lrs in self._lrs])
        return tuple([{"lr": lrs[row], **other} for lrs, other in zip(self._lrs, others, strict=True)])

    def _fill_rows(self, last_row: int) -> None:
        """Steps the scheduler on the stand-in until the table of learning rates has row `last_row`."""
        with warnings.catch_warnings():
            # torch's own SequentialLR calls step(epoch), against which torch warns.
            warnings.filterwarnings("ignore", message="The epoch parameter in `scheduler.step()`", category=UserWarning)
            while (row := len(self._lrs[0])) <= last_row:
                self._stand_in.step()
                try:
                    self._scheduler.step()
                except (TypeError, ValueError) as error:
                    name = type(self._scheduler).__name__
                    raise UsageError(f"the scheduler {name} failed at step {row} of {self._num_rows}: {error}") from error
                self._record_row()

    def _record_row(self) -> None:
        """Appends the learning rates that the groups have now to the table, and their other values that the scheduler changes."""
        row, groups = len(self._lrs[0]), self._stand_in.param_groups
        for lrs, group in zip(self._lrs, groups, strict=True):
            lrs.append(plain(group["lr"]))
        for before, group in zip(self._before, groups, strict=True):
            self._changing.update(name for name, value in before.items() if name not in ("lr", "params") and group[name] != value)
        if self._changing:
            self._changed[row] = [{name: plain(group[name]) for name in self._changing if name in group} for group in groups]


def make_scheduler(make: Callable[[Optimizer], Any], stand_in: Optimizer) -> LRScheduler:
    """Local: makes the user's scheduler on the stand-in; refuses schedulers that are no function of the step."""
    try:
        scheduler = make(stand_in)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the scheduler cannot be made: {error}") from error
    name = type(scheduler).__name__
    if isinstance(scheduler, ReduceLROnPlateau):
        raise UsageError(f"{name} depends on a metric, but a schedule must be a function of the step; use another, e.g. 'cosine'")
    if not isinstance(scheduler, LRScheduler):
        raise UsageError(
            f"the schedule is a function of `optimizer` and returned {scheduler!r}; it must return a torch LRScheduler"
        )
    if scheduler.optimizer is not stand_in:
        raise UsageError(f"{name} was made with another optimizer; make it with the one that the function receives")
    return scheduler


def _refuse_early_end(scheduler: LRScheduler, num_rows: int) -> None:
    """Refuses a scheduler that cannot make as many steps as the run needs."""
    ends = getattr(scheduler, "total_steps", None)
    if isinstance(ends, int) and ends < num_rows:
        raise UsageError(
            f"{type(scheduler).__name__} ends after {ends} steps and the run has {num_rows}; "
            "let the function take `num_steps` and give it total_steps=num_steps"
        )


def plain(value: Any) -> Any:
    """Pure: returns a number of torch or NumPy as a Python number, and any other value as it is."""
    return value.item() if hasattr(value, "item") and math.prod(value.shape) == 1 else value
