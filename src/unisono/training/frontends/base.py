"""The interface of front ends: how one kind of model provides loss, metrics, optimiser and schedule, and what is checked first."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from unisono.comm.base import Communicator
from unisono.data.sharding_plan import Plan
from unisono.data.source import Source
from unisono.data.splits import Splits
from unisono.errors import UsageError, unknown_name
from unisono.metrics import Metric, resolve_metrics
from unisono.model.losses import Reading
from unisono.model.recognise import is_keras_module, is_lightning
from unisono.model.torch.adapter import TorchAdapter, trainable
from unisono.model.torch.body import Body
from unisono.optim.optimizers import make_optimizer, optimizer_class
from unisono.optim.schedules import Schedule, make_schedule
from unisono.optim.without_dynamo import leave_out_dynamo
from unisono.task.averages import OF_OUTPUTS, Averages
from unisono.task.task import Task
from unisono.training.frontends.try_out import try_parts
from unisono.training.train_metrics import summable_metrics

DEFAULT_LR = 0.01


class Extent(NamedTuple):
    """The size of a training, for models that use it."""

    steps_per_epoch: int = 1
    rank: int = 0
    size: int = 1


@dataclass(frozen=True)
class FrontEnd(ABC):
    """Base of front ends: turns a task and its model into the parts of a training. All methods are local; `assemble` calls them in
    the order in which they are defined here."""

    task: Task
    model: nn.Module

    @abstractmethod
    def with_defaults(self) -> Task:
        """Pure: the task with defaults for an optimizer and a learning rate that it does not give; refuses settings without
        effect."""

    def build(self, source: Source, device: torch.device) -> None:  # noqa: B027 - most models are built already
        """Blocking: gives loss and metrics their shapes from the first samples of the data."""

    def metrics(self, averages: Averages = OF_OUTPUTS) -> tuple[Metric, ...]:
        """Returns the metrics of the task, which read outputs and targets as its loss does, with the averages of a run that began
        earlier."""
        return resolve_metrics(self.task.metrics, self.reading_of_loss(), averages)

    @abstractmethod
    def reading_of_loss(self) -> Reading:
        """Pure: how the loss reads outputs and targets, which metrics must read alike."""

    def needs_outputs(self, metrics: Sequence[Metric]) -> bool:
        """Pure: whether these metrics need the model's outputs."""
        return bool(metrics)

    @abstractmethod
    def body(self, extent: Extent = Extent(), with_outputs: bool = False) -> Body:  # noqa: B008 - it cannot change
        """Returns the function that computes the loss of a batch."""

    @abstractmethod
    def try_out(self, body: Body, splits: Splits, device: torch.device) -> dict[str, bool | None]:
        """Blocking: runs two samples through the model, so that mistakes are reported before work starts. Returns the quantities
        by which epochs can be compared besides the metrics, each with whether higher is better."""

    def comparable_metrics(self, metrics: Sequence[Metric], others: Mapping[str, bool | None]) -> dict[str, bool | None]:
        """Pure: the quantities by which epochs can be compared, each with whether higher is better; the first is the default."""
        return {f"val_{metric.name}": metric.higher_is_better for metric in metrics} | dict(others)

    def train_metrics(self, metrics: Sequence[Metric]) -> Sequence[Metric]:
        """Pure: the metrics that are computed in every training step."""
        return () if self.task.step is not None else summable_metrics(metrics)

    def parameters(self) -> dict[str, list[tuple[str, nn.Parameter]]]:
        """Returns the parameters of each optimiser: all of them, or with a task's own step those of the modules that it names."""
        task, model = self.task, self.model
        if not isinstance(task.optimizer, Mapping):
            return {"": trainable(model)}
        if task.step is None:
            raise UsageError(
                "several optimizers need the task's own step (step=...), which says which losses each of them minimises"
            )
        children = {name for name, _ in model.named_modules() if name}
        for name in task.optimizer:
            if name not in children:
                raise unknown_name("module", name, children, "of the model (optimizer of the task)")
        parts = {name: [one for one in trainable(model) if one[0].startswith(f"{name}.")] for name in task.optimizer}
        taken = [name for part in parts.values() for name, _ in part]
        if len(set(taken)) < len(taken):
            raise UsageError(f"the optimizers of the task ({', '.join(parts)}) share parameters; give each its own modules")
        return parts

    def try_losses(self, adapter: TorchAdapter, splits: Splits, metrics: Sequence[Metric]) -> Averages:
        """Blocking: runs two samples of each part of the data through model, loss and metrics. Returns how the metrics average
        whose names do not say it."""
        if self.task.step is not None and not metrics:
            return {}
        return try_parts(adapter, splits, self.task, metrics, self.reading_of_loss())

    def share_metrics(self, comm: Communicator) -> None:  # noqa: B027 - most models hold none
        """Makes metrics that the model itself holds gather the counts of all workers; computing them is then collective."""

    def schedules(self, adapter: TorchAdapter, plan: Plan) -> dict[str, Schedule]:
        """Gives each part of the model its optimiser and returns the schedule of each part."""
        leave_out_dynamo()
        task, found = self.task, {}
        for name, part in adapter.parts.items():
            spec, options = task.optimizer, dict(task.optimizer_options)
            lr = DEFAULT_LR if task.lr is None else task.lr
            if isinstance(spec, Mapping):
                own = spec[name]
                spec, more = own if isinstance(own, tuple) else (own, {})
                options |= more
                lr = options.pop("lr", lr)
            optimizer = self.make_own_optimizer()
            if optimizer is None:
                optimizer = make_optimizer(spec, part.tensors, lr, with_fused(spec, options, adapter.device), self.model)
            part.set_optimizer(optimizer)
            found[name] = make_schedule(
                task.schedule,
                task.schedule_options,
                num_steps=task.epochs * plan.steps_per_epoch,
                steps_per_epoch=plan.steps_per_epoch,
                optimizer=optimizer,
            )
        return found

    def make_own_optimizer(self) -> Optimizer | None:
        """Makes the optimiser that comes with the model's framework, where the task or the model names one; else None."""
        return None

    def check_server(self, algorithm: str) -> None:  # noqa: B027 - most can have one
        """Refuses an algorithm with a server that cannot train such a model."""


def frontend_of(task: Task, model: nn.Module) -> FrontEnd:
    """Local: the front end for a model that `make_model` has made; only this one is loaded. A task's own step trains any model as a
    plain module, also a LightningModule."""
    if is_keras_module(model):
        from unisono.training.frontends.keras_frontend import KerasFrontEnd

        return KerasFrontEnd(task, model)
    if task.step is None and is_lightning(model):
        from unisono.training.frontends.lightning_frontend import LightningFrontEnd

        return LightningFrontEnd(task, model)
    from unisono.training.frontends.torch_frontend import TorchFrontEnd

    return TorchFrontEnd(task, model)


def with_fused(spec: object, options: Mapping[str, Any], device: torch.device) -> Mapping[str, Any]:
    """Pure: the options of an optimiser, on a GPU with `fused` where it has that form and no other was chosen: the same update in
    one pass, which leaves out a step that is not finite without a copy to the host."""
    chosen = {"fused", "foreach", "differentiable", "capturable"} & set(options)
    if device.type != "cuda" or not isinstance(spec, str) or chosen:
        return options
    takes = inspect.signature(optimizer_class(spec)).parameters
    return {**options, "fused": True} if "fused" in takes else options
