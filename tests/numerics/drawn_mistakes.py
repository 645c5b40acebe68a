"""Mistakes that people make in a task, each put into a drawn one: it must be refused with the reason, and not give a number."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import unisono as un
from tests.numerics.drawn_tasks import CLASSES, COLUMNS, KINDS, LABEL, LABELS, NUMBERS, TWO_CLASSES, Drawn, Net, draw
from unisono.task.task import Task


@dataclass(frozen=True)
class Mistake:
    """What people do, in which tasks it is a mistake, and what the refusal must say."""

    put_into: Callable[[Drawn, Task], Task]
    says: str
    """A pattern of the message."""
    kinds: tuple[str, ...] = KINDS


def with_targets(change: Callable[[Any], Any]) -> Callable[[Drawn, Task], Task]:
    """The same samples with other targets in all parts."""

    def put_into(drawn: Drawn, task: Task) -> Task:
        def part(number: int) -> tuple[Any, ...]:
            inputs, targets, *weights = drawn.part(number)
            return (inputs, change(targets), *weights)

        return replace(task, data=lambda: un.Splits(part(0), part(1), part(2)))

    return put_into


def with_model(change: Callable[[Net], nn.Module]) -> Callable[[Drawn, Task], Task]:
    return lambda drawn, task: replace(task, model=lambda: change(Net(drawn)))


def with_loss(loss: Any, *metrics: Any) -> Callable[[Drawn, Task], Task]:
    return lambda _drawn, task: replace(task, loss=loss, loss_options={}, metrics=metrics or task.metrics)


def tied_through_memory(model: Net) -> nn.Module:
    model.second.weight.data = model.first.weight.data
    return model


def unfreezing_itself(model: Net) -> nn.Module:
    """The first layer is frozen when the training begins, and not in its first step."""
    model.first.requires_grad_(False)

    def unfreeze(*_: Any) -> None:
        if model.training:
            model.first.requires_grad_(True)

    model.register_forward_hook(unfreeze)
    return model


def whole_mean(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets.to(outputs.dtype).reshape(outputs.shape)).square().mean()


def mean_over_samples(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets.to(outputs.dtype).reshape(outputs.shape)).square().mean(0)


def loss_of_probabilities(outputs: Tensor, targets: Tensor) -> Tensor:
    each = nn.functional.binary_cross_entropy(outputs, targets.to(outputs.dtype).reshape(outputs.shape), reduction="none")
    return each.flatten(1).mean(1) if each.dim() > 1 else each


class Sigmoid(nn.Module):
    """A model whose outputs are probabilities."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.sigmoid(self.model(inputs))


def probabilities_with_a_threshold_of_logits(drawn: Drawn, task: Task) -> Task:
    return replace(task, model=lambda: Sigmoid(Net(drawn)), loss=loss_of_probabilities, loss_options={}, metrics=("accuracy",))


ZERO_TO_ONE = r"0\.\.1|0 or 1"
MISTAKES: Mapping[str, Mistake] = {
    "classes numbered from 1": Mistake(with_targets(lambda targets: targets.astype("i8") + 1), "class|label", (CLASSES,)),
    "a label of -1": Mistake(
        with_targets(lambda targets: np.where(np.arange(len(targets)) == 3, -1, targets.astype("i8"))), "label|class", (CLASSES,)
    ),
    "masks of 0 and 255": Mistake(with_targets(lambda targets: targets.astype("f4") * 255), ZERO_TO_ONE, (TWO_CLASSES, LABELS)),
    "labels of 1 and 2": Mistake(with_targets(lambda targets: targets.astype("i8") + 1), ZERO_TO_ONE, (TWO_CLASSES, LABELS)),
    "labels of -1 and 1": Mistake(with_targets(lambda targets: 2 * targets.astype("f4") - 1), ZERO_TO_ONE, (TWO_CLASSES, LABELS)),
    "accuracy of numbers": Mistake(lambda _, task: replace(task, metrics=("accuracy",)), "accuracy", (NUMBERS,)),
    "auc of numbers": Mistake(lambda _, task: replace(task, metrics=("auc",)), "auc", (NUMBERS,)),
    "a loss that is a mean": Mistake(with_loss(whole_mean), "one loss for each sample|one value for each", (LABELS, NUMBERS)),
    "a loss that is a mean over the samples": Mistake(with_loss(mean_over_samples), "sample", (LABELS,)),
    "a threshold of logits for probabilities": Mistake(
        probabilities_with_a_threshold_of_logits, "logits|probabilit|threshold", (TWO_CLASSES, LABELS)
    ),
    "one weight for two layers through memory": Mistake(with_model(tied_through_memory), "share|memory|storage"),
    "a layer unfrozen in a step": Mistake(with_model(unfreezing_itself), "froz|requires_grad"),
    "a metric without direction": Mistake(
        lambda _, task: replace(task, metrics=(unknown,), monitor="val_unknown"), "higher_is_better|min|max"
    ),
}


def unknown(outputs: Tensor, targets: Tensor) -> Tensor:
    """A metric of which nobody knows whether higher is better."""
    return (outputs.flatten(1).sum(1) if outputs.dim() > 1 else outputs) * 0 + len(targets)


def draw_mistake(seed: int) -> tuple[str, Mistake, Drawn]:
    """Pure: the mistake of this number and the task into which it is put: one whose targets are stored as they are, and whose loss
    is called by its name."""
    one = random.Random(f"mistake {seed}")
    name = one.choice(list(MISTAKES))
    mistake = MISTAKES[name]
    plain = {CLASSES: "cross_entropy", TWO_CLASSES: "bce", LABELS: "bce", NUMBERS: "mse"}
    while True:
        drawn = draw(one.randrange(10**9))
        if drawn.kind in mistake.kinds and drawn.form in (LABEL, COLUMNS):
            drawn = replace(drawn, loss=plain[drawn.kind], loss_options={}, num_inputs=5, tied=False, norm=False, stop_after=None)
            if drawn.kind != CLASSES or drawn.part(0)[1].max() == drawn.num_outputs - 1:  # else one more is a class like the others
                return name, mistake, drawn


def task_with_mistake(seed: int, folder: Path) -> tuple[str, Mistake, Drawn, Task]:
    """Pure: the task of this number."""
    name, mistake, drawn = draw_mistake(seed)
    return name, mistake, drawn, mistake.put_into(drawn, drawn.task(folder))
