"""Finds the loss that a task names: a name, a function or a torch module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Any

from torch import nn

from unisono.errors import UsageError, unknown_name
from unisono.model.losses.base import Loss
from unisono.model.losses.classes import CrossEntropy, Focal, NegativeLogLikelihood
from unisono.model.losses.custom_loss import CustomLoss
from unisono.model.losses.elements import (
    AbsoluteError,
    BinaryCrossEntropy,
    Huber,
    PoissonLikelihood,
    SmoothAbsoluteError,
    SquaredError,
)
from unisono.model.losses.overlap import Dice

LOSSES: Mapping[str, type[Loss]] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            CrossEntropy,
            NegativeLogLikelihood,
            BinaryCrossEntropy,
            SquaredError,
            AbsoluteError,
            Huber,
            SmoothAbsoluteError,
            PoissonLikelihood,
            Dice,
            Focal,
        )
    }
)


def resolve_loss(loss: str | Callable[..., Any], options: Mapping[str, Any] = MappingProxyType({})) -> Loss:
    """Pure: returns the loss of that name with these options, or of a user's function, which has no options. Refuses losses that
    cannot be exact over workers."""
    if isinstance(loss, str):
        return _named_loss(loss, options)
    if not callable(loss):
        raise UsageError(f"loss of the task must be a name or a function of (outputs, targets); received {loss!r}")
    if options:
        raise UsageError(
            f"options of the loss ({', '.join(options)}) need a loss by name, but this one is a function; set them inside it"
        )
    own = CustomLoss(loss)
    # Without reduction torch does not show what its mean would divide by: these two leave out ignored labels and count weights.
    if type(loss) is nn.CrossEntropyLoss:
        return CrossEntropy(
            class_weights=_as_list(loss.weight), ignore_label=loss.ignore_index, label_smoothing=loss.label_smoothing
        )
    if type(loss) is nn.NLLLoss:
        return NegativeLogLikelihood(class_weights=_as_list(loss.weight), ignore_label=loss.ignore_index)
    return own


def _as_list(weights: Any) -> list[float] | None:
    return None if weights is None else list(weights.tolist())


def _named_loss(name: str, options: Mapping[str, Any]) -> Loss:
    """Returns the loss of this name with these options; refuses unknown names and options."""
    if name not in LOSSES:
        raise unknown_name("loss", name, LOSSES)
    kind = LOSSES[name]
    known = tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
    for option in options:
        if option not in known:
            raise unknown_name("option", option, known, f"of loss {name}")
    try:
        return kind(**options)
    except (TypeError, ValueError) as error:  # e.g. text where a number belongs
        raise UsageError(f"options of loss {name!r} ({dict(options)!r}) do not fit: {error}") from error
