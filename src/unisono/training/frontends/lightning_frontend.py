"""The front end of LightningModules, whose methods define loss, logged values, optimiser and schedule."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from unisono.comm.base import Communicator
from unisono.data.sharding_plan import Plan
from unisono.data.source import Source
from unisono.data.splits import Splits
from unisono.errors import UsageError
from unisono.metrics import Metric
from unisono.model.base import TEST, VALIDATION, Evaluated
from unisono.model.lightning.body import LightningBody, TrainerStandIn, evaluation_step
from unisono.model.lightning.module import configured_optimizer
from unisono.model.losses import Reading
from unisono.model.torch.adapter import TorchAdapter
from unisono.model.torch.body import Body, split_batch
from unisono.optim.optimizers import make_optimizer
from unisono.optim.schedules import Schedule, make_schedule, ready_schedule
from unisono.task.averages import Averages
from unisono.task.metric_names import direction_of_name, metric_name
from unisono.task.task import Task
from unisono.training.frontends.base import DEFAULT_LR, Extent, FrontEnd
from unisono.training.frontends.step_loss import mixes_samples
from unisono.training.frontends.torchmetrics_states import share_metrics
from unisono.training.frontends.try_out import first_outputs, first_samples, samples_at, try_metrics, without_learning

SAID_BY_MODULE = ("loss", "loss_options", "optimizer", "optimizer_options", "lr", "schedule", "schedule_options")
"""Settings of a task that `training_step` and `configure_optimizers` make instead."""


class LightningFrontEnd(FrontEnd):
    """Front end of a LightningModule. Its own steps define the training; metrics of the task are computed from its `forward`."""

    def with_defaults(self) -> Task:
        for name in SAID_BY_MODULE:
            if getattr(self.task, name) not in (None, {}):
                raise UsageError(
                    f"{name} of the task has no effect: {self._type_name} is a LightningModule, whose training_step and "
                    f"configure_optimizers decide it; leave {name} out, or make it an argument of model (--set model.NAME=VALUE)"
                )
        return self.task

    def reading_of_loss(self) -> Reading:
        """What attributes of the module say of its `forward`, by which metrics are computed: it computes the loss itself."""
        return Reading(f"the module {self._type_name}").said_by(self.model)

    def body(self, extent: Extent = Extent(), with_outputs: bool = False) -> LightningBody:  # noqa: B008
        return LightningBody(self.model, TrainerStandIn(self.task.epochs, *extent), with_outputs)

    def try_out(self, body: Body, splits: Splits, device: torch.device) -> dict[str, bool | None]:
        """Runs two samples through its validation, as Lightning's Trainer does before it starts."""
        assert isinstance(body, LightningBody)
        for stage, source in ((VALIDATION, splits.validation), (TEST, splits.test)):
            if source is not None and evaluation_step(self.model, stage) is None and not body.with_outputs:
                raise UsageError(
                    f"there are {stage} data, but {self._type_name} has no validation_step; write one, name metrics of the task, "
                    f"or leave the {stage} data out of un.Splits"
                )
        if splits.validation is None:
            if any(is_lazy(parameter) for parameter in self.model.parameters()):
                with without_learning(self.model):
                    body(self.model, first_samples(splits.train, self.model, device), 0)  # gives lazy modules their shapes
            return {}
        with body.sanity_check(), without_learning(self.model), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # metrics say that two samples are few
            body.begin(VALIDATION)
            seen = body.evaluate(self.model, first_samples(splits.validation, self.model, device))
            logged = body.end(VALIDATION)
        found: dict[str, bool | None] = {} if seen.loss_sum is None else {"val_loss": False}
        found |= {metric_name("val_", name): direction_of_name(name) for name in logged}
        if not found and not body.with_outputs:
            raise UsageError(
                f"validation_step of {self._type_name} returns no loss and logs nothing; return a loss, or log a metric"
            )
        return found

    def train_metrics(self, metrics: Sequence[Metric]) -> Sequence[Metric]:  # noqa: ARG002
        return ()

    def try_losses(self, adapter: TorchAdapter, splits: Splits, metrics: Sequence[Metric]) -> Averages:
        """As in the base class, by `forward` alone: those of the validation were tried with the model."""
        assert isinstance(adapter.body, LightningBody)
        first_and_last = samples_at((0, len(splits.train) - 1), splits.train, adapter.model, adapter.device)
        adapter.body.mark(mixes_samples(adapter.model, adapter.body, first_and_last))
        if not metrics:
            return {}

        def evaluate(source: Source, what: str) -> Evaluated:
            outputs = first_outputs(adapter.model, source, adapter.device, what)
            _, targets, weights = split_batch(first_samples(source, adapter.model, adapter.device))
            return Evaluated(outputs, targets, weights, None, 0.0, 0)

        parts = {name: part for name, part in splits.parts().items() if name != "train"}
        return try_metrics(metrics, self.reading_of_loss(), parts, evaluate)

    def share_metrics(self, comm: Communicator) -> None:
        share_metrics(self.model, comm)

    def schedules(self, adapter: TorchAdapter, plan: Plan) -> dict[str, Schedule]:
        part, model = adapter.parts[""], self.model
        num_steps = self.task.epochs * plan.steps_per_epoch

        def configure_optimizers(parameters: Any) -> Any:  # noqa: ARG001 - it takes them from the module itself
            return configured_optimizer(model).optimizer

        optimizer = make_optimizer(configure_optimizers, part.tensors, DEFAULT_LR, {}, model)
        part.set_optimizer(optimizer, as_one=False)  # the module may read it, e.g. to log its learning rate
        again = configured_optimizer(model)  # a scheduler changes its optimizer ahead of time, so it gets a copy
        if again.scheduler is None:
            return {"": make_schedule(None, {}, num_steps=num_steps, steps_per_epoch=plan.steps_per_epoch, optimizer=optimizer)}
        steps_per_row = again.frequency * (1 if again.interval == "step" else plan.steps_per_epoch)
        return {"": ready_schedule(again.scheduler, again.optimizer, num_steps=num_steps, steps_per_row=steps_per_row)}

    def check_server(self, algorithm: str) -> None:
        raise UsageError(f"--algorithm {algorithm} cannot train a LightningModule; use allreduce, or a plain module")

    @property
    def _type_name(self) -> str:
        return type(self.model).__name__
