"""A user's own loss: a function of outputs and targets that gives a loss for each sample or element, or the pair (sum, weight)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import FunctionType, MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from unisono.errors import UsageError
from unisono.model.losses.base import LOGARITHMS, LOGITS, NUMBERS, PROBABILITIES, Loss, Reading, Weight, total
from unisono.model.targets import across, one_tensor, refuse_other_number

REMEDY = 'return one loss for each sample (reduction="none") or the pair (sum, weight)'
NUMBERS_OF_TORCH = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)
FUNCTIONS_OF_NUMBERS = (functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss)
OF_TORCH: Mapping[Any, tuple[str, bool]] = MappingProxyType(
    {
        **dict.fromkeys((*NUMBERS_OF_TORCH, *FUNCTIONS_OF_NUMBERS), (NUMBERS, False)),
        **dict.fromkeys((nn.BCELoss, functional.binary_cross_entropy), (PROBABILITIES, False)),
        **dict.fromkeys((nn.BCEWithLogitsLoss, functional.binary_cross_entropy_with_logits), (LOGITS, False)),
        **dict.fromkeys((nn.MultiLabelSoftMarginLoss, functional.multilabel_soft_margin_loss), (LOGITS, False)),
        functional.cross_entropy: (LOGITS, True),
        functional.nll_loss: (LOGITS, False),
    }
)
"""Losses of torch -> what they read outputs as, and whether targets of the shape of the outputs are one-hot."""
WITH_IGNORED = (functional.cross_entropy, functional.nll_loss)
"""Functions of torch that leave out the samples with the label `ignore_index`."""
WHY = "means of single workers cannot be combined into the exact mean over all workers"


class CustomLoss(Loss):
    """`function(outputs, targets)`, or with a third parameter called `weights`: it receives the sample weights or None and
    multiplies its losses by them. Its attributes `predicts` and `one_hot` say how metrics read outputs and targets. Refuses at
    once a function that is known to reduce by itself."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        self.predicts, self.one_hot, self.ignore_label = _known(function)
        parameters = _parameters_of(function)
        self._takes_weights = "weights" in parameters
        if _reduction(function, parameters) not in (None, "none"):
            raise UsageError(f"{self.label} reduces its losses to one number ({WHY}); {REMEDY}")
        self._moves = isinstance(function, nn.Module) and any(True for _ in function.buffers())
        if isinstance(function, nn.Module) and any(parameter.requires_grad for parameter in function.parameters()):
            raise UsageError(f"{self.label} has trainable parameters, which belong in the model; compute this loss there")

    @property
    def reading(self) -> Reading:
        return super().reading.said_by(self.function)

    def __call__(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> tuple[Tensor, Weight]:
        if self._moves and isinstance(outputs, Tensor):
            self.function.to(outputs.device)  # type: ignore[attr-defined] # only modules have buffers to move
        result = self.values(outputs, targets, weights)
        if isinstance(result, tuple):
            return self._checked_pair(result, weights)
        losses = one_tensor("losses", result, self.label)
        if losses.dim() == 0:
            raise UsageError(f"{self.label} returned one number ({WHY}); {REMEDY}")
        refuse_other_number(losses, targets, f"{self.label}: {WHY}; {REMEDY}")
        wide = None if weights is None else across(weights, losses, self.label)
        summed, weight = total(losses, wide)
        return losses.sum() if self._takes_weights else summed, weight

    def values(self, outputs: Any, targets: Any, weights: Tensor | None) -> Any:
        """What the function returns."""
        return self.function(outputs, targets, **({"weights": weights} if self._takes_weights else {}))

    def _checked_pair(self, result: tuple[Any, ...], weights: Tensor | None) -> tuple[Tensor, Weight]:
        """Returns the loss sum and the weight that the function gave as a tuple; refuses any other tuple."""
        if (
            len(result) != 2
            or not isinstance(result[0], Tensor)
            or result[0].dim()
            or not isinstance(result[1], (Tensor, float, int))
        ):
            raise UsageError(
                f"{self.label} returned a tuple that is not (sum, weight), a tensor with one number and a number; {REMEDY}"
            )
        if weights is not None and not self._takes_weights:
            raise UsageError(
                f"{self.label} returns (sum, weight), but the data have sample weights; "
                "add a third parameter called weights, which receives them"
            )
        summed, weight = result
        return summed, weight.detach().to(torch.float64).reshape(()) if isinstance(weight, Tensor) else float(weight)


def _known(function: Callable[..., Any]) -> tuple[str | None, bool | None, int | None]:
    """Returns what a loss of torch reads outputs as, whether its targets are one-hot, and the label that a partial of it ignores;
    None for any other function."""
    options: dict[str, Any] = {}
    while isinstance(function, partial):
        options, function = {**function.keywords, **options}, function.func
    if isinstance(function, nn.PoissonNLLLoss) or function is functional.poisson_nll_loss:
        return (LOGARITHMS if getattr(function, "log_input", options.get("log_input", True)) else NUMBERS), False, None
    kind = type(function) if isinstance(function, nn.Module) else function
    predicts, one_hot = OF_TORCH.get(kind, (None, None)) if isinstance(kind, (type, FunctionType)) else (None, None)
    return predicts, one_hot, options.get("ignore_index") if kind in WITH_IGNORED else None


def _parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Returns the parameters of a function, or of a module's forward; {} if they cannot be known."""
    try:
        return dict(inspect.signature(function.forward if isinstance(function, nn.Module) else function).parameters)
    except ValueError:  # some compiled functions do not tell
        return {}


def _reduction(function: Callable[..., Any], parameters: dict[str, inspect.Parameter]) -> Any:
    """Returns the reduction of `function`, an attribute (modules) or the default of a parameter (torch's functions)."""
    if isinstance(function, nn.Module):
        return getattr(function, "reduction", None)
    parameter = parameters.get("reduction")
    return None if parameter is None or parameter.default is inspect.Parameter.empty else parameter.default
