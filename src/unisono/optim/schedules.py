"""Learning rate schedules: pure functions of the step, by name, in Python, or from a torch scheduler."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import zeros
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from unisono.errors import UsageError, unknown_name
from unisono.optim.curves import make_curve
from unisono.optim.torch_schedulers import COUNTED_IN_EPOCHS, EPOCH, STEP, StandIn, Stepped, plain

Settings = Mapping[str, Any]
"""Settings of one group of parameters, e.g. {"lr": 0.1}: `group.update(settings)`."""
Schedule = Callable[[int], tuple[Settings, ...]]
"""Step -> settings of each group, in the order of the groups. Pure and cheap; steps count from 0."""
_BY_CLASS = "by class"
"""The interval where none is given: that of the scheduler's class."""


def make_schedule(
    spec: object,
    options: Mapping[str, Any],
    *,
    num_steps: int,
    steps_per_epoch: int,
    optimizer: Optimizer,
) -> Schedule:
    """Local: makes the schedule of this optimiser, which must be new: the learning rates that its groups have now are scaled.

    A function whose first argument is called `optimizer` (a scheduler class of torch among them) makes a torch scheduler; it is run
    on a stand-in, one `step()` for each step or for each epoch, as the option interval="step" or "epoch" says. Without the option
    it is each epoch for classes that count in epochs (StepLR, MultiStepLR, ExponentialLR), unless the function asks for
    `num_steps` or `steps_per_epoch`, and each step for all others; with interval=None, as in runs of earlier versions, each step.
    Any other function is one of the step and gives the factor. Both may also take `num_steps` and `steps_per_epoch`, and the
    options by name.
    """
    facts = {"num_steps": num_steps, "steps_per_epoch": steps_per_epoch}
    interval = options.get("interval", _BY_CLASS)
    if interval is None:
        options, interval = {name: value for name, value in options.items() if name != "interval"}, STEP
    if isinstance(spec, LRScheduler):
        name = type(spec).__name__
        raise UsageError(
            f"the schedule is a {name} of another optimizer; give a function: lambda optimizer: {name}(optimizer, ...)"
        )
    if spec is None:
        if options:
            raise UsageError(
                f"schedule_options ({', '.join(options)}) have no effect without a schedule; name one, e.g. schedule='cosine'"
            )
        return _scaled(None, optimizer)
    if isinstance(spec, str):
        return _scaled(make_curve(spec, options, **facts), optimizer)
    if not callable(spec):
        raise UsageError(f"the schedule must be a name or a function; received {spec!r}")
    parameters = list(inspect.signature(spec).parameters.values())
    if not parameters:
        raise UsageError("the schedule takes no argument; it must be a function of the step or of the optimizer")
    first = parameters[0].name
    if first != "optimizer":
        named = _named_arguments(parameters, options, facts)
        return _scaled(_checked(lambda step: spec(step, **named)), optimizer)
    if interval not in (STEP, EPOCH, _BY_CLASS):
        raise UsageError(f"interval of the schedule must be 'step' or 'epoch'; received {interval!r}")
    named = _named_arguments(parameters, {name: value for name, value in options.items() if name != "interval"}, facts)
    knows_steps = any(one.name in facts for one in parameters)

    def steps_between(scheduler: LRScheduler) -> int:
        by_epoch = isinstance(scheduler, COUNTED_IN_EPOCHS) and not knows_steps if interval is _BY_CLASS else interval == EPOCH
        return steps_per_epoch if by_epoch else 1

    remark = " (--set schedule.interval=step, or epoch)" if interval is _BY_CLASS else ""
    return Stepped(lambda stand_in: spec(stand_in, **named), StandIn(optimizer), num_steps, steps_between, remark)


def ready_schedule(scheduler: Any, optimizer: Optimizer, *, num_steps: int, steps_per_row: int) -> Schedule:
    """Local: makes a schedule from a torch scheduler that was made together with `optimizer`; both must not be used afterwards.
    `steps_per_row` are the steps between two of its `step()`."""
    for group in optimizer.param_groups:  # so that its steps move nothing
        group["params"] = [Parameter(zeros(1))]
    return Stepped(lambda _: scheduler, optimizer, num_steps, lambda _: steps_per_row)


def _scaled(factor: Callable[[int], float] | None, optimizer: Optimizer) -> Schedule:
    """Returns the schedule that multiplies every group's own learning rate by the factor."""
    if any("lr" not in group for group in optimizer.param_groups):
        if factor is not None:
            raise UsageError(
                f"{type(optimizer).__name__} has no learning rate (lr) that a schedule could change; leave the schedule out"
            )
        unchanged: tuple[Settings, ...] = tuple({} for _ in optimizer.param_groups)
        return lambda _step: unchanged
    bases = tuple(float(plain(group["lr"])) for group in optimizer.param_groups)
    if factor is None:
        constant: tuple[Settings, ...] = tuple({"lr": base} for base in bases)
        return lambda _step: constant

    def settings(step: int) -> tuple[Settings, ...]:
        now = factor(step)
        return tuple([{"lr": base * now} for base in bases])

    return settings


def _checked(function: Callable[[int], Any]) -> Callable[[int], float]:
    """Returns a user's function of the step with a check that its value is a factor, the first time before work starts."""

    def factor(step: int) -> float:
        found = plain(function(step))
        if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 <= found < math.inf:
            shown = f"a {type(found).__name__}" if isinstance(found, LRScheduler) else repr(found)
            raise UsageError(f"the schedule returned {shown} for step {step}; it must return a finite number of at least 0")
        return float(found)

    try:
        factor(0)
    except (TypeError, AttributeError) as error:
        raise UsageError(
            f"the schedule failed for step 0: {error}; a function of the step must return a number, and the first argument of one "
            "that makes a torch scheduler must be called `optimizer`"
        ) from error
    return factor


def _named_arguments(parameters: list[inspect.Parameter], options: Mapping[str, Any], facts: Mapping[str, int]) -> dict[str, Any]:
    """Returns the arguments of a user's function besides its first one; options that it does not take are refused."""
    others = {one.name: one for one in parameters[1:] if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)}
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters)
    for name in options:
        if name not in others and not takes_any:
            raise unknown_name("option", name, [other for other in others if other not in facts], "of the schedule")
    named = {**{name: value for name, value in facts.items() if name in others}, **options}
    missing = [name for name, one in others.items() if name not in named and one.default is one.empty]
    if missing:
        raise UsageError(f"the schedule needs {', '.join(missing)}; give it (--set schedule.{missing[0]}=VALUE) or a default")
    return named
