"""The metric name of a logged value, and whether lower is better."""

from __future__ import annotations


def metric_name(prefix: str, name: str) -> str:
    """Pure: returns the metric name of a value logged in an evaluation: "acc", "val_acc" and "val/acc" are all val_acc, in a
    test test_acc."""
    for head in ("val_", "test_", "val/", "test/"):
        if name.startswith(head):
            return prefix + name.removeprefix(head)
    return prefix + name


def is_error(name: str) -> bool:
    """Pure: whether the name of a logged value says that lower is better."""
    words = name.lower().replace("/", "_").replace("-", "_").split("_")
    return any(word in ("loss", "error", "err", "mse", "mae", "rmse", "nll", "perplexity") for word in words)
