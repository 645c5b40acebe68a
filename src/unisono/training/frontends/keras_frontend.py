"""The front end of Keras models, whose loss, metrics and optimiser may be those that they were compiled with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.optim import Optimizer

from unisono.data.source import Source
from unisono.data.splits import Splits
from unisono.errors import UsageError
from unisono.metrics import Metric, resolve_metrics
from unisono.metrics.find_metrics import METRICS, TOP
from unisono.metrics.keras import KerasMetric, keras_metrics
from unisono.model.keras.body import KerasBody
from unisono.model.keras.loss_reading import loss_function_of, reading_of
from unisono.model.keras.make_replica import build_with, compile_as
from unisono.model.keras.module import KerasModule
from unisono.model.keras.optimizer import keras_names, make_keras_optimizer, rate_of
from unisono.model.losses import Reading
from unisono.model.recognise import is_keras_optimizer
from unisono.model.torch.body import Body, split_batch
from unisono.optim.optimizers import optimizer_class
from unisono.task.averages import OF_OUTPUTS, Averages
from unisono.task.task import Task
from unisono.training.frontends.base import DEFAULT_LR, Extent, FrontEnd
from unisono.training.frontends.try_out import first_outputs, first_samples, try_out


class KerasFrontEnd(FrontEnd):
    """Front end of a Keras model. What the task names is passed to `compile`, unless the model is compiled already."""

    @property
    def module(self) -> KerasModule:
        assert isinstance(self.model, KerasModule)
        return self.model

    def with_defaults(self) -> Task:
        task = self._with_compiled_optimizer()
        if not isinstance(task.optimizer, str) and task.optimizer is not None:
            return task
        optimizer = "sgd" if task.optimizer is None else task.optimizer
        return replace(task, optimizer=optimizer, lr=DEFAULT_LR if task.lr is None else task.lr)

    def _with_compiled_optimizer(self) -> Task:
        """Pure: the task with the optimiser of the model where it names none. Plain SGD becomes Unisono's, which is the same
        rule."""
        model = self.module.pure.model
        own = model.optimizer if model.compiled else None
        if self.task.optimizer is not None or own is None:
            return self.task
        if type(own).__name__ == "SGD" and _is_plain(own, self.module):
            return replace(self.task, optimizer="sgd", lr=rate_of(own) if self.task.lr is None else self.task.lr)
        return replace(self.task, optimizer=own)

    def build(self, source: Source, device: torch.device) -> None:
        """Compiles the model if it is not compiled, and builds loss and metrics with the first samples."""
        task = self.task
        if task.step is not None:
            raise UsageError(
                "the task's own step (step=...) needs a torch module; define the loss of a Keras model in its compute_loss"
            )
        if task.precision != "float32":
            raise UsageError(
                f"precision {task.precision!r} (--precision) has no effect with a Keras model; leave it out, and call "
                "keras.config.set_dtype_policy('mixed_bfloat16')"
            )
        if task.loss_options:
            raise UsageError("loss_options has no effect with a Keras model; give the options to the Keras loss itself")
        first_outputs(self.model, source, device, "the data")
        compile_as(self.module, task.loss, [metric for metric in task.metrics if _is_of_keras(metric)])
        inputs, targets, _ = split_batch(first_samples(source, self.model, device))
        build_with(self.module, inputs, targets)

    def metrics(self, averages: Averages = OF_OUTPUTS) -> tuple[Metric, ...]:
        """The metrics that the model counts itself, and Unisono's by name."""
        names = [metric for metric in self.task.metrics if not _is_of_keras(metric)]
        ours = resolve_metrics(names, self.reading_of_loss(), averages)
        return (*keras_metrics(self.module.pure), *ours)

    def reading_of_loss(self) -> Reading:
        return reading_of(self.module.pure.model)

    def needs_outputs(self, metrics: Sequence[Metric]) -> bool:
        return any(not isinstance(metric, KerasMetric) for metric in metrics)

    def body(self, extent: Extent = Extent(), with_outputs: bool = False) -> Body:  # noqa: ARG002, B008
        return KerasBody(with_outputs)

    def try_out(self, body: Body, splits: Splits, device: torch.device) -> dict[str, bool | None]:  # noqa: ARG002
        compiled = replace(self.task, loss=self.task.loss or loss_function_of(self.module.pure.model))
        try_out(self.model, splits, compiled, device)
        return {"val_loss": False}

    def comparable_metrics(self, metrics: Sequence[Metric], others: Mapping[str, bool | None]) -> dict[str, bool | None]:
        """As in the base class; metrics that Keras counts beside those of the outputs come last."""
        beside = {f"val_{one.name}" for one in metrics if isinstance(one, KerasMetric) and one.is_beside}
        return dict(sorted(super().comparable_metrics(metrics, others).items(), key=lambda pair: pair[0] in beside))

    def make_own_optimizer(self) -> Optimizer | None:
        spec = self.task.optimizer
        if isinstance(spec, str):
            try:
                optimizer_class(spec)
            except UsageError:
                if spec.lower() not in keras_names():
                    raise
            else:
                refuse_constraints(self.module)
                return None
        elif not is_keras_optimizer(spec):
            return None
        return make_keras_optimizer(self.module, spec, self.task.lr, dict(self.task.optimizer_options))


def refuse_constraints(module: KerasModule) -> None:
    """Local: refuses weight constraints, which only optimisers of Keras apply."""
    for variable in module.pure.trainable:
        if variable.constraint is not None:
            raise UsageError(
                f"only optimizers of Keras apply the constraint of {variable.path}; compile the model with one, "
                "e.g. keras.optimizers.SGD(0.01)"
            )


def _is_of_keras(metric: Any) -> bool:
    """Returns whether Keras computes this metric: all but those that Unisono knows by name; "accuracy" is Keras's."""
    return not isinstance(metric, str) or metric == "accuracy" or (metric not in METRICS and not TOP.fullmatch(metric))


def _is_plain(optimizer: Any, module: KerasModule) -> bool:
    """Returns whether this Keras SGD has only a learning rate, so that Unisono's SGD does the same."""
    limits = (optimizer.clipnorm, optimizer.clipvalue, optimizer.global_clipnorm, optimizer.weight_decay)
    more = (optimizer.momentum, optimizer.gradient_accumulation_steps, optimizer.use_ema, optimizer.loss_scale_factor)
    constrained = any(one.constraint is not None for one in module.pure.trainable)
    return not any(limits) and not any(more) and not constrained and not callable(optimizer._learning_rate)
