"""The front end of plain torch modules, whose loss, metrics and optimiser come from the task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from unisono.data.splits import Splits
from unisono.errors import UsageError
from unisono.model.losses import Loss, Reading, resolve_loss
from unisono.model.torch.body import Body, LossBody
from unisono.optim.optimizers import reads_lr
from unisono.task.task import Task
from unisono.training.frontends.base import DEFAULT_LR, Extent, FrontEnd
from unisono.training.frontends.try_out import try_out


class TorchFrontEnd(FrontEnd):
    """Front end of a plain torch module. A task with its own step has a loss only if it is evaluated by one."""

    def with_defaults(self) -> Task:
        optimizer = "sgd" if self.task.optimizer is None else self.task.optimizer
        reads = _reads_lr(optimizer)
        if self.task.lr is not None and not reads:
            raise UsageError(
                f"lr {self.task.lr} of the task (--lr) has no effect: the optimizer sets its own learning rate; "
                "let its function take `lr`, or leave lr out"
            )
        return replace(self.task, optimizer=optimizer, lr=DEFAULT_LR if self.task.lr is None and reads else self.task.lr)

    def reading_of_loss(self) -> Reading:
        loss = self._loss()
        return Reading("the model").said_by(self.model) if loss is None else loss.reading

    def _loss(self) -> Loss | None:
        """Returns the loss of the task; None where its own step has no other."""
        return None if self.task.loss is None else resolve_loss(self.task.loss, self.task.loss_options)

    def body(self, extent: Extent = Extent(), with_outputs: bool = False) -> Body:  # noqa: ARG002, B008
        task = self.task
        if task.loss is None and task.step is None:
            raise UsageError("the task has no loss; name one, e.g. loss='cross_entropy', or give a function of outputs and targets")
        return LossBody(self._loss())

    def try_out(self, body: Body, splits: Splits, device: torch.device) -> dict[str, bool | None]:  # noqa: ARG002
        if self.task.step is None:
            try_out(self.model, splits, self.task, device)
        return {} if self.task.loss is None else {"val_loss": False}


def _reads_lr(optimizer: Any) -> bool:
    """Whether an optimizer uses the learning rate of the task; of several one is enough."""
    if not isinstance(optimizer, Mapping):
        return reads_lr(optimizer) if isinstance(optimizer, str) or callable(optimizer) else True  # what it is, is told later
    pairs = (own if isinstance(own, tuple) else (own, {}) for own in optimizer.values())
    return any("lr" not in options and _reads_lr(spec) for spec, options in pairs)
