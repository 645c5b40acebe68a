"""How the loss of a compiled Keras model reads outputs, by the names of Keras's loss functions."""

from __future__ import annotations

from typing import Any

from unisono.model.losses.base import CLASSES, NUMBERS, PROBABILITIES

OF_LABELS = ("binary_crossentropy", "binary_focal_crossentropy")
OF_CLASSES = ("categorical_crossentropy", "sparse_categorical_crossentropy", "categorical_focal_crossentropy")
OF_NUMBERS = (
    *("mean_squared_error", "mean_absolute_error", "mean_absolute_percentage_error", "mean_squared_logarithmic_error"),
    *("huber", "log_cosh", "poisson"),
)


def reading_of(model: Any) -> tuple[str, str | None]:
    """Pure: the name of the one loss of a compiled and built model, and how it reads outputs (`losses/base.py`); None where that is
    not known, and for several losses."""
    losses = [] if model._compile_loss is None else [entry.loss for entry in model._compile_loss._flat_losses]
    if len(losses) != 1 or losses[0] is None:
        return "", None
    function, options = getattr(losses[0], "fn", None), getattr(losses[0], "_fn_kwargs", {})
    name = getattr(function, "__name__", "")
    takes_logits = bool(options.get("from_logits"))
    if name in OF_LABELS:
        return repr(name), CLASSES if takes_logits else PROBABILITIES
    if name in OF_CLASSES:  # the largest output decides, whether it is a logit or a probability
        return repr(name), CLASSES if takes_logits else None
    return repr(name), NUMBERS if name in OF_NUMBERS else None
