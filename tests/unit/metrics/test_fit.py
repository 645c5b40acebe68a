"""Metrics that do not fit the loss or the targets are refused, in words that name the remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from unisono.errors import UsageError
from unisono.metrics import resolve_metrics
from unisono.metrics.fit import refuse_targets, refuse_unfit
from unisono.model.losses import Loss, resolve_loss
from unisono.model.losses.base import LOGITS, Reading
from unisono.model.losses.find_loss import LOSSES

OF_CLASSES = ("accuracy", "top_2_accuracy", "balanced_accuracy", "kappa", "f1", "recall_binary", "mean_iou")
OF_NUMBERS = ("mse", "rmse", "mae", "r2")
ONE, THREE = torch.zeros(2, 1), torch.zeros(2, 3)


def check(name: str, loss: Loss) -> None:
    refuse_unfit(resolve_metrics(["auc", name] if name != "auc" else [name], loss.reading), loss.reading)


def test_every_loss_takes_its_metrics_and_no_others() -> None:
    for name in LOSSES:
        loss = resolve_loss(name)
        fits_numbers = name in ("mse", "mae", "huber", "smooth_l1")
        for metric in OF_CLASSES:
            if fits_numbers or name == "poisson_nll":
                with pytest.raises(UsageError, match=f"metric '{metric}' decides for a class, but the loss '{name}' fits num"):
                    check(metric, loss)
            else:
                check(metric, loss)
        for metric in OF_NUMBERS:
            if fits_numbers:
                check(metric, loss)
            else:
                with pytest.raises(UsageError, match=rf"metric '{metric}' compares outputs .* \(metrics of the task\)"):
                    check(metric, loss)
        check("auc", loss)
    check("mse", resolve_loss("poisson_nll", {"log_input": False}))


def test_losses_of_torch_and_of_users() -> None:
    with pytest.raises(UsageError, match="decides for a class"):
        check("accuracy", resolve_loss(nn.MSELoss(reduction="none")))
    check("f1", resolve_loss(nn.BCELoss(reduction="none")))
    check("mse", resolve_loss(nn.BCELoss(reduction="none")))
    check("f1", resolve_loss(nn.BCEWithLogitsLoss(reduction="none")))
    own = resolve_loss(lambda outputs, targets: (outputs - targets) ** 2)
    for metric in (*OF_CLASSES, *OF_NUMBERS):
        check(metric, own)


@pytest.mark.parametrize(
    ("outputs", "targets", "predicts", "told"),
    [
        (ONE, [0.0, 1.0, 0.3], None, "sample 2 has the target 0.3 .labels are 0 or 1.; use mse, rmse, mae or r2 for a regression"),
        (ONE, [[0.0], [2.0]], LOGITS, "sample 1 has the target 2 "),
        (ONE, [0, 7], None, "sample 1 has the target 7 "),
        (THREE, [0.5, 1.0], None, "sample 0 has the target 0.5 .classes are whole numbers in 0..2, one for each output"),
        (THREE, [0, 3], None, "sample 1 has the target 3 "),
        (THREE, [[0, 1, 0], [0, 0, -1]], None, "sample 1 has the target -1 .labels are 0 or 1"),
        (ONE, [0.0, np.nan], None, "sample 1 has the target nan"),
    ],
)
def test_targets_that_are_no_classes(outputs: Any, targets: Any, predicts: str | None, told: str) -> None:
    for name in ("accuracy", "f1", "auc"):
        with pytest.raises(UsageError, match=f"metric '{name}' needs targets that are classes or labels, but {told}"):
            refuse_targets(resolve_metrics(["mse", name]), Reading(predicts=predicts), outputs, np.asarray(targets))
    refuse_targets(resolve_metrics(["mse", "r2"]), Reading(predicts=predicts), outputs, np.asarray(targets))


@pytest.mark.parametrize(
    ("outputs", "targets", "predicts", "reading"),
    [
        (ONE, [0.0, 1.0], None, {}),
        (ONE, [True, False], None, {}),
        (ONE, [0.1, 0.9], LOGITS, {}),
        (ONE, [0, 254, 1], None, {"ignore_label": 254}),
        (THREE, [0, 2, 1, 0], None, {}),
        (THREE, [0, 255], LOGITS, {"ignore_label": 255}),
        (THREE, [[0, 1, 1], [0, 0, 0]], None, {}),
        (THREE, [[0.1, 0.2, 0.7]], LOGITS, {"one_hot": True}),
        (THREE, [], None, {}),
    ],
)
def test_targets_that_are_classes_or_labels(outputs: Any, targets: Any, predicts: str | None, reading: dict[str, Any]) -> None:
    refuse_targets(resolve_metrics(["accuracy"]), Reading(predicts=predicts, **reading), outputs, np.asarray(targets))
