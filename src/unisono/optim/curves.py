"""Schedules by name: step -> factor of the learning rate of every group. Pure.

Spans are given in steps or in epochs (`warmup_steps=500` or `warmup_epochs=5`). A warm-up rises in a straight line and meets the
full rate at its end; no step has rate 0. A decay is at its final factor after the last step, so that the last step still moves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from unisono.errors import UsageError, unknown_name


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A schedule: step -> factor of the learning rate. Options of users are the fields besides `num_steps`."""

    num_steps: int
    warmup_steps: int = 0
    defaults_in_epochs: ClassVar[Mapping[str, float]] = {}

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_steps <= self.num_steps:
            raise UsageError(f"warmup_steps must lie in 0..{self.num_steps}, the steps of the run; received {self.warmup_steps}")

    def __call__(self, step: int) -> float:
        return (step + 1) / (self.warmup_steps + 1) if step < self.warmup_steps else self.after_warmup(step)

    def after_warmup(self, step: int) -> float:  # noqa: ARG002
        """Returns the factor of the learning rate at a step after the warm-up; 1 for a constant schedule."""
        return 1.0

    def progress(self, step: int) -> float:
        """Returns the part of the steps after the warm-up that is over: 0 to 1."""
        return min(1.0, (step - self.warmup_steps) / max(1, self.num_steps - self.warmup_steps))


@dataclass(frozen=True, kw_only=True)
class Decay(Curve):
    """A decay from 1 down to `final_factor`, which it reaches after the last step."""

    final_factor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_at_least("final_factor", self.final_factor, 0)

    def after_warmup(self, step: int) -> float:
        return self.final_factor + (1 - self.final_factor) * self.height(self.progress(step))

    def height(self, progress: float) -> float:
        """Returns the height of the curve: 1 at progress 0, 0 at progress 1."""
        return 1 - progress


@dataclass(frozen=True, kw_only=True)
class Cosine(Decay):
    """A decay along half a period of a cosine."""

    def height(self, progress: float) -> float:
        return 0.5 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True, kw_only=True)
class Polynomial(Decay):
    """A decay along (1 - progress) ** power."""

    power: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_above("power", self.power, 0)

    def height(self, progress: float) -> float:
        return float((1 - progress) ** self.power)


@dataclass(frozen=True, kw_only=True)
class OneCycle(Decay):
    """A rise from `initial_factor` to 1 and a decay to `final_factor`, both along a cosine."""

    initial_factor: float = 0.04
    final_factor: float = 4e-6
    warmup_steps: int = -1
    """By default 30 % of the run."""

    def __post_init__(self) -> None:
        if self.warmup_steps == -1:
            object.__setattr__(self, "warmup_steps", round(0.3 * self.num_steps))
        super().__post_init__()
        _require_at_least("initial_factor", self.initial_factor, 0)

    def __call__(self, step: int) -> float:
        if step >= self.warmup_steps:
            return self.after_warmup(step)
        return self.initial_factor + (1 - self.initial_factor) * 0.5 * (1 - math.cos(math.pi * step / self.warmup_steps))

    def height(self, progress: float) -> float:
        return 0.5 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True, kw_only=True)
class Exponential(Curve):
    """The factor gamma ** (steps after the warm-up / every_steps), smoothly; `every` is an epoch if not given."""

    every_steps: int
    gamma: float = 0.95
    defaults_in_epochs: ClassVar[Mapping[str, float]] = {"every_steps": 1}

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_at_least("every_steps", self.every_steps, 1)
        _require_above("gamma", self.gamma, 0)

    def after_warmup(self, step: int) -> float:
        return float(self.gamma ** ((step - self.warmup_steps) / self.every_steps))


@dataclass(frozen=True, kw_only=True)
class Stairs(Exponential):
    """Multiplies the rate by gamma after every `every_epochs` epochs, counted from the beginning of the run."""

    gamma: float = 0.1
    defaults_in_epochs: ClassVar[Mapping[str, float]] = {}

    def after_warmup(self, step: int) -> float:
        return float(self.gamma ** (step // self.every_steps))


@dataclass(frozen=True, kw_only=True)
class InverseSquareRoot(Curve):
    """The factor sqrt(w / t): 1 at the end of the warm-up of w steps, half at four times that step."""

    def after_warmup(self, step: int) -> float:
        return math.sqrt((self.warmup_steps + 1) / (step + 1))


SCHEDULES: Mapping[str, type[Curve]] = {
    "constant": Curve,
    "linear": Decay,
    "cosine": Cosine,
    "polynomial": Polynomial,
    "one_cycle": OneCycle,
    "exponential": Exponential,
    "step": Stairs,
    "inverse_sqrt": InverseSquareRoot,
}


def make_curve(name: str, options: Mapping[str, Any], *, num_steps: int, steps_per_epoch: int) -> Curve:
    """Pure: makes the schedule of this name; spans in epochs become steps."""
    if name not in SCHEDULES:
        raise unknown_name("schedule", name, SCHEDULES)
    cls = SCHEDULES[name]
    settable = [entry.name for entry in fields(cls) if entry.name != "num_steps"]
    in_epochs = {one.removesuffix("_steps") + "_epochs": one for one in settable if one.endswith("_steps")}
    given: dict[str, Any] = {}
    for option, value in options.items():
        if option not in settable and option not in in_epochs:
            raise unknown_name("option", option, (*settable, *in_epochs), f"of schedule {name}")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UsageError(f"option {option} of schedule {name} must be a number; received {value!r}")
        if not math.isfinite(value) or (option.endswith(("_steps", "_epochs")) and value < 0):
            raise UsageError(f"option {option} of schedule {name} must be finite and not negative; received {value!r}")
        if (target := in_epochs.get(option)) is not None:
            if target in options:
                raise UsageError(f"schedule {name} has both {target} and {option}; give one of them")
            given[target] = round(value * steps_per_epoch)
        elif option.endswith("_steps") and value != int(value):
            raise UsageError(f"option {option} of schedule {name} must be a whole number; received {value!r}")
        else:
            given[option] = int(value) if option.endswith("_steps") else float(value)
    for option, epochs in cls.defaults_in_epochs.items():
        given.setdefault(option, round(epochs * steps_per_epoch))
    if cls is Stairs and "every_steps" not in given:
        raise UsageError("schedule step needs every_epochs or every_steps, e.g. --set schedule.every_epochs=30")
    return cls(num_steps=num_steps, **given)


def _require_at_least(name: str, value: float, least: float) -> None:
    """Raises `UsageError` if an option is less than `least`."""
    if value < least:
        raise UsageError(f"option {name} of the schedule must be at least {least}; received {value}")


def _require_above(name: str, value: float, bound: float) -> None:
    """Raises `UsageError` unless an option is greater than `bound`."""
    if value <= bound:
        raise UsageError(f"option {name} of the schedule must be above {bound}; received {value}")
