"""Downpour: workers push gradients whenever they have them, the server applies them with any optimiser (Dean et al. 2012, NIPS).

worker    a <- a + g(x)                        every step
          x <- x - lr_local * g(x)             while it does not pull
          push a, a <- 0                       every `push_every` steps
          x <- centre                          every `pull_every` steps
server    centre <- optimiser(centre, a / d)   d = 1, or with damping max(1, staleness) (Zhang et al. 2016, IJCAI)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from unisono.algorithms.central.rule import Arrival, Centre, GroupSettings, Rule, Walker, is_number, lr_of_group
from unisono.errors import UsageError

DAMPING = ("none", "staleness")


@dataclass(frozen=True)
class Options:
    """Of `--algorithm downpour`."""

    push_every: int = 1
    """Steps between two pushes."""
    pull_every: int = 1
    """Steps between two pulls."""
    local_lr: float | None = None
    """Of a worker's own moves between two pulls; None takes that of the task."""
    damping: str = "none"
    """staleness: a gradient counts less, the older the weights are that it was computed with."""

    def __post_init__(self) -> None:
        for name in ("push_every", "pull_every"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} must be a whole number of at least 1 (--set algorithm.{name}); received {value!r}")
        if self.local_lr is not None and not (is_number(self.local_lr) and self.local_lr >= 0):
            raise UsageError(f"local_lr must be a number of at least 0 (--set algorithm.local_lr); received {self.local_lr!r}")
        if self.damping not in DAMPING:
            raise UsageError(f"damping must be one of {', '.join(DAMPING)} (--set algorithm.damping); received {self.damping!r}")


def damped(gradient: Tensor, staleness: int) -> Tensor:
    """Pure: a stale gradient divided by its age in updates."""
    return gradient / max(1, staleness)


class Downpour(Rule):
    """See the top of this file."""

    Options: ClassVar[type[Any]] = Options
    optimises_centre: ClassVar[bool] = True

    def steps_to_call(self, num_steps: int) -> int:
        push: int = self.options.push_every
        pull: int = self.options.pull_every
        return min(push - num_steps % push, pull - num_steps % pull)

    def begin(self, walker: Walker) -> None:
        walker.out.zero_()
        walker.state["accrued"] = walker.out  # what is sent is what was gathered: no copy

    def after(self, walker: Walker, settings: GroupSettings) -> None:
        walker.state["accrued"].add_(walker.gradient)
        if self.options.pull_every > 1:
            lr = lr_of_group(settings) if self.options.local_lr is None else self.options.local_lr
            walker.values.sub_(walker.gradient, alpha=lr)

    def sends_vector(self, walker: Walker, num_steps: int) -> bool:
        return walker.cut_short or num_steps % self.options.push_every == 0

    def message(self, walker: Walker, num_steps: int) -> Sequence[float]:
        pulls = num_steps % self.options.pull_every == 0
        return (float(self.sends_vector(walker, num_steps)), float(pulls), *walker.uses)

    def answer(self, walker: Walker, reply: Tensor | None, num_steps: int) -> None:
        super().answer(walker, reply, num_steps)
        if self.sends_vector(walker, num_steps):
            walker.state["accrued"].zero_()

    def fold(self, centre: Centre, arrived: Sequence[Arrival]) -> Sequence[Tensor | None]:
        return [self._fold_one(centre, one) for one in arrived]

    def _fold_one(self, centre: Centre, one: Arrival) -> Tensor | None:
        pushes, pulls = one.numbers[:2]
        if pushes:
            gradient = damped(one.message, one.staleness) if self.options.damping == "staleness" else one.message
            centre.optimise(gradient, one.numbers[2:])
        return centre.values if pulls else None


ALGORITHM = Downpour
