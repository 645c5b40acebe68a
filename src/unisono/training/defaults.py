"""What a task leaves open: its optimiser and learning rate, or those that its model brings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import NoneType
from typing import Any

from torch import nn

from unisono.errors import UsageError
from unisono.model.keras.module import KerasModule
from unisono.model.lightning_module import is_lightning
from unisono.optim.optimizers import reads_lr
from unisono.task import Task
from unisono.training.keras_task import with_compiled

DEFAULT_LR = 0.01


def brings_steps(task: Task, model: nn.Module) -> bool:
    """Pure: whether it is a LightningModule that learns by its own steps; where the task has a step, it is a plain module."""
    return task.step is None and is_lightning(model)


def with_defaults(task: Task, model: nn.Module) -> Task:
    """Pure: the task with its optimizer and learning rate; refuses settings that nothing would read."""
    if brings_steps(task, model):
        for name in ("loss", "loss_options", "optimizer", "optimizer_options", "lr", "schedule", "schedule_options"):
            if getattr(task, name) not in (None, {}):
                raise UsageError(
                    f"{name} of the task is read by nobody: {type(model).__name__} is a LightningModule, whose training_step and "
                    f"configure_optimizers say it; leave {name} out, or make it an argument of model (--set model.NAME=VALUE)"
                )
        return task
    if isinstance(model, KerasModule):
        task = with_compiled(task, model)
        if not isinstance(task.optimizer, (str, NoneType)):
            return task
    optimizer = "sgd" if task.optimizer is None else task.optimizer
    reads = True if isinstance(model, KerasModule) else _reads_lr(optimizer)
    if task.lr is not None and not reads:
        raise UsageError(
            f"lr {task.lr} of the task (--lr) is read by nobody: the optimizer sets its own learning rate; "
            "let its function take `lr`, or leave lr out"
        )
    return replace(task, optimizer=optimizer, lr=DEFAULT_LR if task.lr is None and reads else task.lr)


def _reads_lr(optimizer: Any) -> bool:
    """Whether the learning rate of the task reaches an optimizer; of several one is enough."""
    if not isinstance(optimizer, Mapping):
        return reads_lr(optimizer) if isinstance(optimizer, str) or callable(optimizer) else True  # what it is, is told later
    pairs = (own if isinstance(own, tuple) else (own, {}) for own in optimizer.values())
    return any("lr" not in options and _reads_lr(spec) for spec, options in pairs)
