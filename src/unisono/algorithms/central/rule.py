"""The interface of algorithms whose workers agree through a centre: Downpour, elastic averaging, gradient energy matching.

A rule is mathematics on flat vectors with explicit state. It neither talks nor waits: the loops of the server and of the workers
(training/central/) carry its vectors, on real machines or on a virtual clock.

    worker                                           server
    before   where the gradient is computed
    after    the local move
    message  what it sends, when a call is due  -->  fold    changes the centre
    answer   what it does with the reply        <--          and says what comes back
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from unisono.errors import UsageError

GroupSettings = Sequence[Mapping[str, float]]
"""Learning rate and so on of each group of the optimiser."""


@dataclass
class Walker:
    """Where one worker stands, as its rule sees it. Vectors are flat."""

    values: Tensor
    """Its weights. The gradient is computed there."""
    gradient: Tensor
    """The mean over its batch, when `after` is called."""
    out: Tensor
    """What it sends."""
    optimise: Callable[[GroupSettings], None]
    """Move `values` by `gradient` with the optimiser of the task."""
    uses: npt.NDArray[np.float64]
    """Not 0 for each tensor that the batches since the last message used."""
    cut_short: bool = False
    """Whether this call comes early, as there was no more to do: nothing may be kept back."""
    state: dict[str, Tensor] = field(default_factory=dict)
    """What the rule keeps for it; saved with it."""


@dataclass
class Member:
    """One worker, as the server sees it."""

    number: int
    version: int = 0
    """Updates of the centre that it had seen when it last took it."""
    state: dict[str, Tensor] = field(default_factory=dict)
    """What the rule keeps for it, vectors of the length of the centre; saved with it."""


@dataclass
class Centre:
    """What the server holds, as a rule sees it."""

    values: Tensor
    optimise: Callable[[Tensor, npt.NDArray[np.float64]], None]
    """Move `values` by such a gradient with the optimiser of the task; tensors that nobody used are left alone."""
    step: int = 0
    """The server's counter: batches that were folded before."""
    lr: float = 0.0
    """The learning rate of this step."""
    num_workers: int = 1
    """That exist now; a group of processes that act as one counts once."""


@dataclass(frozen=True)
class Arrival:
    """A message at the server."""

    member: Member
    message: Tensor
    """May be changed."""
    numbers: npt.NDArray[np.float64]
    """What `message` returned beside it."""
    weight: float
    """Sum of the loss weights behind it."""
    staleness: int
    """Updates of the centre since the worker took it."""


class Rule(ABC):
    """One algorithm. The same object serves every worker, or the server. Where there are several servers, each holds a slice of all
    vectors."""

    Options: ClassVar[type[Any]]
    takes_centre: ClassVar[bool] = True
    """Whether a worker takes the running statistics of the centre with its reply; else it keeps its own, as its weights."""

    optimises_centre: ClassVar[bool] = False
    """Whether `fold` moves the centre with the optimiser of the task."""
    needs_whole: ClassVar[bool] = False
    """Whether `fold` needs a norm, or something else of all numbers together; then there is but one server."""

    def __init__(self, options: Any) -> None:
        self.options = options

    def read_optimizer(self, optimizer: object, options: Mapping[str, Any], clip_norm: float | None) -> None:  # noqa: B027
        """Local: take what the rule uses of the optimiser of the task, and refuse what nothing would read."""

    @property
    def waits_for_all(self) -> bool:
        """Whether the server folds only when all workers have called."""
        return False

    # ---- worker ----------------------------------------------------------------------------------------------------

    def steps_to_call(self, num_steps: int) -> int:  # noqa: ARG002
        """Pure: how many steps a worker that has done so many takes before its next call."""
        return 1

    def begin(self, walker: Walker) -> None:  # noqa: B027 - most keep nothing
        """Local: a worker joins; its values are the centre's."""

    def before(self, walker: Walker) -> None:  # noqa: B027 - most compute it where they stand
        """Local: put `values` where the gradient is to be computed."""

    @abstractmethod
    def after(self, walker: Walker, settings: GroupSettings) -> None:
        """Local: the gradient is there."""

    @abstractmethod
    def message(self, walker: Walker, num_steps: int) -> Sequence[float]:
        """Local: fill `out`; gives numbers that travel beside it."""

    def sends_vector(self, walker: Walker, num_steps: int) -> bool:  # noqa: ARG002
        """Pure: whether `out` travels with the call after so many steps, or only numbers."""
        return True

    def answer(self, walker: Walker, reply: Tensor | None, num_steps: int) -> None:  # noqa: ARG002
        """Local: the reply has come."""
        if reply is not None:
            walker.values.copy_(reply)

    def end(self, walker: Walker) -> None:  # noqa: B027 - most have nothing left to do
        """Local: no gradient comes after the last reply."""

    # ---- server ----------------------------------------------------------------------------------------------------

    def join(self, centre: Centre, member: Member) -> None:  # noqa: B027 - most keep nothing
        """Local: a worker has come, which gets the centre as it is."""

    def take(self, centre: Centre, member: Member) -> None:  # noqa: B027 - most need not know
        """Local: a worker is given the centre as it is now."""

    @abstractmethod
    def fold(self, centre: Centre, arrived: Sequence[Arrival]) -> Sequence[Tensor | None]:
        """Local: change the centre; what goes back to each: a vector, the centre's values themselves, or None for nothing."""


def is_number(value: object) -> bool:
    """Pure: whether an option can be compared with others."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def lr_of_group(settings: GroupSettings) -> float:
    """Pure: the learning rate of rules that have but one."""
    return settings[0]["lr"]


def refuse_optimizer(name: str, optimizer: object, options: Mapping[str, Any], clip_norm: float | None, instead: str) -> None:
    """Pure: of a rule that moves everything by itself: refuse what nothing would read."""
    shown = repr(optimizer) if isinstance(optimizer, str) else getattr(optimizer, "__name__", type(optimizer).__name__)
    unread = [f"optimizer {shown}"] if optimizer not in (None, "sgd") else []
    unread += [f"optimizer.{option}" for option in options]
    unread += ["clip_norm"] if clip_norm is not None else []
    if unread:
        raise UsageError(
            f"--algorithm {name} moves the weights by its own rule, so nothing reads {unread[0]} of the task; {instead}"
        )
