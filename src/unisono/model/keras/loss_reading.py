"""How the loss of a compiled Keras model reads outputs and targets, by the names of Keras's loss functions."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from unisono.model.losses.base import LOGITS, NUMBERS, PROBABILITIES, Reading

BY_OPTION = "from_logits"
OF_NUMBERS = (
    *("mean_squared_error", "mean_absolute_error", "mean_absolute_percentage_error", "mean_squared_logarithmic_error"),
    *("huber", "log_cosh", "poisson"),
)
OF_KERAS: Mapping[str, tuple[str | None, bool]] = MappingProxyType(
    {
        **dict.fromkeys(("binary_crossentropy", "binary_focal_crossentropy"), (BY_OPTION, False)),
        **dict.fromkeys(("categorical_crossentropy", "categorical_focal_crossentropy"), (BY_OPTION, True)),
        "sparse_categorical_crossentropy": (BY_OPTION, False),
        "kl_divergence": (PROBABILITIES, True),
        "categorical_hinge": (None, True),  # the largest score decides, which is no probability
        **dict.fromkeys(("hinge", "squared_hinge"), (LOGITS, False)),
        **dict.fromkeys(OF_NUMBERS, (NUMBERS, False)),
        "_cross_entropy": (LOGITS, True),  # "cross_entropy" of a task
    }
)
"""Loss function -> what it reads outputs as (`BY_OPTION`: logits or probabilities, by its option), and whether targets of the shape
of the outputs are one-hot."""


def reading_of(model: Any) -> Reading:
    """Pure: how the one loss of a compiled and built model reads outputs and targets; of several losses, and of one that the model
    computes itself, what its attributes say."""
    owner, loss = Reading(f"the Keras model {type(model).__name__}", channels_last=True), _one_loss(model)
    if loss is None:
        return owner.said_by(model)
    function, options = getattr(loss, "fn", None), getattr(loss, "_fn_kwargs", {})
    name = getattr(function, "__name__", None) or type(loss).__name__
    predicts, one_hot = None, None
    if getattr(function, "__module__", "").startswith(("keras.", "unisono.")):
        predicts, one_hot = OF_KERAS.get(name, (None, None))
    if predicts == BY_OPTION:
        predicts = LOGITS if options.get(BY_OPTION) else PROBABILITIES
    found = Reading(f"the loss {name!r}", predicts, one_hot, channels_last=options.get("axis", -1) != 1)
    return found.said_by(loss).said_by(function)


def loss_function_of(model: Any) -> Any:
    """Pure: the function of the one loss of a compiled and built model; None where there is none or several."""
    loss = _one_loss(model)
    return getattr(loss, "fn", loss)


def _one_loss(model: Any) -> Any:
    """Returns the one loss of a compiled and built model; None of several, and of one that the model computes itself."""
    losses = [] if model._compile_loss is None else [entry.loss for entry in model._compile_loss._flat_losses]
    computes_itself = not type(model).compute_loss.__module__.startswith("keras.")
    return None if len(losses) != 1 or computes_itself else losses[0]
