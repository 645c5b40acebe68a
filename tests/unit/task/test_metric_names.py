"""Whether a higher value of a metric is better: said by users, by a usual name, or unknown."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from unisono.errors import UsageError
from unisono.task.metric_names import direction_of, direction_of_name, split_direction


@pytest.mark.parametrize(
    ("direction", "names"),
    [
        (False, ("val_loss", "val/MSE", "top_error", "dice_loss", "rmse", "val_output_loss")),
        (True, ("acc", "auc", "val_f1_macro", "top_5_accuracy", "mean-iou", "r2")),
        (None, ("errand", "brier", "val_score", "neg_mse", "acc_gap", "loss_std", "recall_error", "false_positives", "")),
    ],
)
def test_a_usual_name_says_its_direction_and_another_does_not(direction: bool | None, names: tuple[str, ...]) -> None:
    assert [direction_of_name(name) for name in names] == [direction] * len(names)


def test_the_attribute_counts_before_the_name() -> None:
    assert direction_of(SimpleNamespace(higher_is_better=True), "loss") is True
    assert direction_of(SimpleNamespace(higher_is_better=False), "brier") is False
    assert direction_of(SimpleNamespace(higher_is_better=None), "accuracy") is True, "as TorchMetrics writes unknown"
    assert direction_of(SimpleNamespace(), "brier") is None


def test_a_direction_behind_a_metric() -> None:
    assert split_direction("val_brier:min", "--best") == ("val_brier", False)
    assert split_direction("val_brier:max", "--best") == ("val_brier", True)
    assert split_direction("val_brier", "--best") == ("val_brier", None)
    with pytest.raises(UsageError, match="--best val_brier:low must end in :max or :min; received 'low'"):
        split_direction("val_brier:low", "--best")
