"""What a task says for a Keras model: its loss, metrics and optimiser may be those that the model was compiled with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.optim import Optimizer

from unisono.data.source import Source
from unisono.errors import UsageError
from unisono.model.keras.module import KerasModule
from unisono.model.keras.optimizer import keras_names, make_keras_optimizer, rate_of
from unisono.model.keras.recognise import is_keras_optimizer
from unisono.model.keras.take_over import build_with, compile_as
from unisono.model.torch import in_three
from unisono.optim.optimizers import optimizer_class
from unisono.task import Task
from unisono.training.metrics import Metric, resolve_metrics
from unisono.training.metrics.keras import KerasMetric, keras_metrics
from unisono.training.metrics.resolve import METRICS, TOP
from unisono.training.try_out import first, first_outputs


def settle(module: KerasModule, task: Task, source: Source, device: torch.device) -> None:
    """Local, blocking: compile the model where it is not, and build loss and metrics with the first samples."""
    if task.step is not None:
        raise UsageError("a task's own step computes with torch modules; a Keras model says its loss in compute_loss")
    if task.precision != "float32":
        raise UsageError(
            f"precision {task.precision!r} is for torch modules; a Keras model says it itself: "
            "keras.config.set_dtype_policy('mixed_bfloat16')"
        )
    if task.loss_options:
        raise UsageError("loss_options go with the losses of torch models; give a loss of Keras, with its options in it")
    first_outputs(module, source, device, "the data")
    compile_as(module, task.loss, [metric for metric in task.metrics if _is_of_keras(metric)])
    inputs, targets, _ = in_three(first(source, module, device))
    build_with(module, inputs, targets)


def metrics_of(module: KerasModule, task: Task) -> tuple[Metric, ...]:
    """Local: those that the model counts itself, and ours by name."""
    ours = resolve_metrics([metric for metric in task.metrics if not _is_of_keras(metric)])
    return (*keras_metrics(module.pure), *ours)


def beside_last(judged: Mapping[str, bool], metrics: Sequence[Metric]) -> dict[str, bool]:
    """Pure: by what epochs may be judged, the first of which does so unless another is named."""
    beside = {f"val_{one.name}" for one in metrics if isinstance(one, KerasMetric) and one.is_beside}
    return dict(sorted(judged.items(), key=lambda pair: pair[0] in beside))


def _is_of_keras(metric: Any) -> bool:
    return not isinstance(metric, str) or metric == "accuracy" or (metric not in METRICS and not TOP.fullmatch(metric))


def with_compiled(task: Task, module: KerasModule) -> Task:
    """Pure: the task with the optimiser that the model was compiled with, where it names none. Plain SGD is ours, the same rule."""
    own = module.pure.model.optimizer if module.pure.model.compiled else None
    if task.optimizer is not None or own is None:
        return task
    if type(own).__name__ == "SGD" and _is_plain(own, module):
        return replace(task, optimizer="sgd", lr=rate_of(own) if task.lr is None else task.lr)
    return replace(task, optimizer=own)


def _is_plain(optimizer: Any, module: KerasModule) -> bool:
    limits = (optimizer.clipnorm, optimizer.clipvalue, optimizer.global_clipnorm, optimizer.weight_decay)
    more = (optimizer.momentum, optimizer.gradient_accumulation_steps, optimizer.use_ema, optimizer.loss_scale_factor)
    constrained = any(one.constraint is not None for one in module.pure.trained)
    return not any(limits) and not any(more) and not constrained and not callable(optimizer._learning_rate)


def optimizer_of(task: Task, module: KerasModule) -> Optimizer | None:
    """Local: the optimiser of Keras that the task or the model names; None where it is one of torch."""
    spec = task.optimizer
    if isinstance(spec, str):
        try:
            optimizer_class(spec)
        except UsageError:
            if spec.lower() not in keras_names():
                raise
        else:
            refuse_constraints(module)
            return None
    elif not is_keras_optimizer(spec):
        return None
    return make_keras_optimizer(module, spec, task.lr, dict(task.optimizer_options))


def refuse_constraints(module: KerasModule) -> None:
    """Local: which only optimisers of Keras keep."""
    for variable in module.pure.trained:
        if variable.constraint is not None:
            raise UsageError(
                f"the constraint of {variable.path} is kept by optimizers of Keras only; compile the model with one, "
                "e.g. keras.optimizers.SGD(0.01)"
            )
