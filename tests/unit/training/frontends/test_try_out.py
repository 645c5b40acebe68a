"""What is refused before a training begins, as the first samples show it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from torch import nn

from unisono.data.source import Source
from unisono.data.sources.arrays import Arrays
from unisono.data.sources.sequence import Items
from unisono.data.splits import Splits
from unisono.errors import UsageError
from unisono.model.losses import resolve_loss
from unisono.task.task import Task
from unisono.training.frontends.try_out import try_out

RANDOM = np.random.default_rng(0)
INPUTS = RANDOM.normal(size=(200, 4)).astype(np.float32)
YES = (INPUTS[:, 0] > 0).astype(np.float32)
PICTURES = RANDOM.normal(size=(60, 3, 6, 6)).astype(np.float32)
MASKS = np.zeros((60, 1, 6, 6), np.float32)
MASKS[30:, :, 2:4] = 1.0


def try_loss(loss: Any, model: nn.Module, targets: Any, inputs: Any = INPUTS, **options: Any) -> None:
    data: Any = targets if isinstance(targets, Source) else (inputs, targets)
    task = Task(model=lambda: model, data=lambda: None, loss=loss, loss_options=options)
    try_out(model, Splits(train=data), task, torch.device("cpu"))


def of_binary(model: nn.Module, targets: Any) -> float:
    outputs = torch.sigmoid(model(torch.as_tensor(INPUTS))).detach().numpy()[:, 0]
    return float(log_loss(targets, outputs))


@pytest.mark.parametrize(("wrong", "first"), [(YES + 1, "[12]"), (2 * YES - 1, "-1"), ((255 * YES).astype(np.uint8), "255")])
def test_bce_refuses_targets_that_are_no_shares(wrong: Any, first: str) -> None:
    """Oracle: scikit-learn's log loss of the targets in 0..1, which are accepted."""
    model = nn.Linear(4, 1)
    for loss in ("bce", nn.BCEWithLogitsLoss(reduction="none")):
        with pytest.raises(UsageError, match=rf"has target {first}, but loss 'B?.*' needs targets in 0\.\.1.*y - 1.*y / 255"):
            try_loss(loss, model, wrong[:, None])
        try_loss(loss, model, YES[:, None])
    summed, weight = resolve_loss("bce")(model(torch.as_tensor(INPUTS)), torch.as_tensor(YES[:, None]))
    assert float(summed.detach()) / float(weight) == pytest.approx(of_binary(model, YES), rel=1e-5)
    try_loss("bce", model, (0.9 * YES + 0.05)[:, None])  # soft labels
    try_loss("bce", model, (YES * np.float32(1.00001))[:, None])  # rounded


@pytest.mark.parametrize("loss", ["bce", "dice"])
def test_masks_are_checked_in_some_samples_where_labels_are_not_cheap(loss: str) -> None:
    """The first thirty masks are empty."""
    model = nn.Conv2d(3, 1, 1)
    for scale in (255, 2, -1):
        source = Arrays(PICTURES, scale * MASKS).map(lambda batch: batch)
        with pytest.raises(UsageError, match=rf"sample [345][0-9] of the training data has target {scale}, but loss '{loss}'"):
            try_loss(loss, model, source)
    try_loss(loss, model, Arrays(PICTURES, MASKS).map(lambda batch: batch))


def test_dice_checks_class_numbers_as_cross_entropy_does() -> None:
    numbers = MASKS[:, 0].astype(np.int64)
    model = nn.Conv2d(3, 2, 1)
    for loss in ("dice", "cross_entropy"):
        try_loss(loss, model, numbers, PICTURES)
        with pytest.raises(UsageError, match=r"sample 30 of the training data has label 2, but the model has 2 outputs"):
            try_loss(loss, model, 2 * numbers, PICTURES)
        try_loss(loss, model, 255 * numbers, PICTURES, ignore_label=255)
        with pytest.raises(UsageError, match="sample 30 of the training data has target 255"):
            try_loss(loss, model, np.repeat(255 * MASKS, 2, axis=1), PICTURES)
    try_loss("dice", nn.Conv2d(3, 1, 1), 255 * MASKS, PICTURES, ignore_label=255)
    try_loss("mse", nn.Conv2d(3, 1, 1), 255 * MASKS, PICTURES)


@pytest.mark.parametrize("loss", ["cross_entropy", "focal", "dice"])
def test_class_numbers_with_an_axis_too_many_are_no_shares(loss: str) -> None:
    """The loss refuses their shape in its own words, as torch does."""
    targets = np.arange(200)[:, None] % 3
    try_loss(loss, nn.Linear(4, 3), targets)
    with pytest.raises(UsageError, match=r"targets of shape \(2, 1\).* outputs (of shape )?\(2, 3\)"):
        resolve_loss(loss)(torch.zeros(2, 3), torch.as_tensor(targets[:2]))


class Transformed(torch.utils.data.Dataset[Any]):
    """Shows other labels than it gives, as data sets of torchvision do that have a transform of targets."""

    targets = np.arange(10)

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return INPUTS[index], np.full(1, index % 2, np.float32)


def test_a_data_set_is_judged_by_the_targets_that_it_gives() -> None:
    try_loss("bce", nn.Linear(4, 1), Items(Transformed()))
