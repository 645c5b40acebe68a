"""What names of metrics say: of which part of the data they are, and whether a higher value is better.

The latter is said by users (METRIC:min, METRIC:max, or the attribute `higher_is_better` of a function), or by a usual name. Of any
other metric it is unknown (None), and nothing is judged by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from unisono.errors import UsageError

DIRECTIONS: Mapping[str, bool] = MappingProxyType({"max": True, "min": False})
ERRORS = frozenset(("loss", "error", "err", "mse", "mae", "rmse", "nll", "perplexity"))
SCORES = frozenset(
    (
        *("acc", "accuracy", "auc", "auroc", "f1", "precision", "recall", "sensitivity", "specificity", "kappa", "mcc", "r2"),
        *("iou", "miou", "jaccard", "dice", "bleu", "psnr", "ssim"),
    )
)
TURNING = frozenset(("neg", "negative", "minus", "inverse", "gap", "drop", "diff", "difference", "std", "variance"))
"""Words with which a name may mean the contrary: the difference of two accuracies, a negative error."""


def metric_name(prefix: str, name: str) -> str:
    """Pure: returns the metric name of a value logged in an evaluation: "acc", "val_acc" and "val/acc" are all val_acc, in a
    test test_acc."""
    for head in ("val_", "test_", "val/", "test/"):
        if name.startswith(head):
            return prefix + name.removeprefix(head)
    return prefix + name


def direction_of_name(name: str) -> bool | None:
    """Pure: whether higher is better, by the words of a name; None where they do not say it. A loss is one by any other word:
    dice_loss."""
    words = set(name.lower().replace("/", "_").replace("-", "_").split("_"))
    if words & TURNING:
        return None
    is_error, is_score = bool(words & ERRORS), bool(words & SCORES)
    if is_error and is_score:
        return False if "loss" in words else None
    return None if is_error == is_score else is_score


def direction_of(owner: Any, name: str) -> bool | None:
    """Pure: whether higher is better, by the attribute `higher_is_better` of a function or an object, else by its name."""
    said = getattr(owner, "higher_is_better", None)
    return direction_of_name(name) if said is None else bool(said)


def split_direction(text: str, option: str) -> tuple[str, bool | None]:
    """Pure: the metric and the direction in METRIC:min, METRIC:max or METRIC (None); refuses another ending."""
    name, colon, ending = text.rpartition(":")
    if not colon:
        return text, None
    if ending not in DIRECTIONS:
        raise UsageError(f"{option} {text} must end in :max or :min; received {ending!r}")
    return name, DIRECTIONS[ending]


def unknown_direction(name: str, option: str) -> UsageError:
    """Pure: the refusal to judge by a metric of which it is not known whether higher is better."""
    return UsageError(
        f"whether a higher or a lower {name} is better is not known, so nothing can be judged by it; write {option} {name}:min or "
        f"{name}:max, or set the attribute higher_is_better of the metric to True or False"
    )
