"""Whether model and loss are compiled: decided once, before the first step, as it takes time and changes the rounding."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from unisono.data.source import Source
from unisono.errors import UsageError
from unisono.model.torch.body import call, num_rows
from unisono.task.task import Task
from unisono.training.frontends.try_out import first_samples, without_learning

BACKWARD = 3
"""Operations of a step, in those of its forward pass."""
OPERATIONS_PER_S, LEAST_STEP_S = 3e13, 2.5e-4
"""What a GPU does with models of common size that are not compiled, and the time of its shortest step."""
SAVED = 0.3
"""Share of the time that compiling saves."""
COST_S, COST_OF_TENSOR_S = 10.0, 0.3
"""Time that the compiler takes, and more for each tensor of parameters."""
WORTH = 2
"""Compiling must save that many times what it costs."""
ON, OFF, AUTO = "on", "off", "auto"


def choose(
    task: Task, model: nn.Module, source: Source, steps_per_epoch: int, before: str | None, can_compile: bool
) -> tuple[str, str]:
    """Local, blocking for two samples: "on" or "off", and what a user should know about it. `before` is what was decided for the
    run that is resumed. Refuses what cannot be compiled."""
    device, can = next(model.parameters()).device, task.step is None and can_compile
    if task.compile == ON and not can:
        why = (
            "a step of its own" if task.step is not None else "a Keras model or a LightningModule, which can be compiled themselves"
        )
        raise UsageError(f"--compile on has no effect with {why}; leave it out")
    if task.compile != AUTO:
        return task.compile, ""
    if before is not None:
        return before, ""
    if device.type == "cpu" or task.shards is not None or not can:
        return OFF, ""
    steps = task.epochs * steps_per_epoch
    of_sample = operations_of_sample(model, source, device)
    operations = BACKWARD * (of_sample or 0.0) * task.epochs * len(source)
    expected_s = max(operations / OPERATIONS_PER_S, LEAST_STEP_S * steps)
    cost_s = COST_S + COST_OF_TENSOR_S * sum(1 for _ in model.parameters())
    pays = SAVED * expected_s >= WORTH * cost_s
    why = f"that takes about {cost_s:.0f} s and would save about {SAVED * expected_s:.0f} s (--compile on or off decides otherwise)"
    if of_sample is None:
        why += "; its operations cannot be counted, so that the number of steps alone decides"
    return (ON if pays else OFF), f"the model is {'' if pays else 'not '}compiled: {why}"


def operations_of_sample(model: nn.Module, source: Source, device: torch.device) -> float | None:
    """Local: the operations of a forward pass for one sample; None where they cannot be counted, as some operations do not run
    while torch counts. The model itself was tried before."""
    from torch.utils.flop_counter import FlopCounterMode

    batch: Any = first_samples(source, model, device)
    inputs = batch[0] if isinstance(batch, tuple) else batch
    counter = FlopCounterMode(display=False)
    try:
        with without_learning(model), counter:
            call(model, inputs)
    except (RuntimeError, NotImplementedError):
        return None
    return float(counter.get_total_flops()) / num_rows(inputs)
