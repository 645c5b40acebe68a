"""Converts targets and sample weights to the shape and type that losses and metrics need. Pure."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unisono.errors import UsageError

HALVES = frozenset({torch.float16, torch.bfloat16})


def one_tensor(what: str, value: Any, wanted_by: str) -> Tensor:
    """Returns `value` as it is; refuses a dict or a tuple where one tensor is needed."""
    if not isinstance(value, Tensor):
        raise UsageError(
            f"{wanted_by} needs one tensor of {what}, received {type(value).__name__}; "
            "use a function of (outputs, targets) that picks the tensor it needs"
        )
    return value


def full_precision(outputs: Tensor) -> Tensor:
    """Returns outputs of half precision as float32, others as they are: sums of halves lose the small addends."""
    return outputs.float() if outputs.dtype in HALVES else outputs


def as_labels(outputs: Tensor, targets: Tensor, wanted_by: str) -> Tensor:
    """Returns the targets as class numbers in int64, one for each position of the outputs (samples, classes, positions...)."""
    if outputs.dim() < 2 or targets.shape != outputs.shape[:1] + outputs.shape[2:]:
        raise UsageError(
            f"{wanted_by}: targets of shape {tuple(targets.shape)} do not fit outputs of shape {tuple(outputs.shape)}; outputs are "
            "(samples, classes, ...) and targets (samples, ...) with class numbers, or of the same shape as the outputs"
        )
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise UsageError(
            f"{wanted_by}: targets are {str(targets.dtype).removeprefix('torch.')}, but class numbers are needed; "
            "store them as whole numbers"
        )
    return targets if targets.dtype == torch.int64 else targets.long()


def shaped_like(outputs: Tensor, targets: Tensor, wanted_by: str) -> Tensor:
    """Returns the targets in the shape of the outputs, from which they may differ only by axes of length 1.

    Broadcasting is refused: (64, 1) against (64,) would silently compare every sample with every other."""
    if targets.shape == outputs.shape:
        return targets
    if outputs.shape[:1] != targets.shape[:1] or _long_lengths(outputs) != _long_lengths(targets):
        raise UsageError(
            f"{wanted_by}: targets of shape {tuple(targets.shape)} do not fit outputs of shape {tuple(outputs.shape)}; "
            "give one target for each output"
        )
    return targets.reshape(outputs.shape)


def _long_lengths(tensor: Tensor) -> list[int]:
    """Returns the lengths of all axes after the first that are longer than 1."""
    return [length for length in tensor.shape[1:] if length != 1]


def refuse_other_number(values: Tensor, targets: Any, what: str) -> None:
    """Refuses values that are not as many for each sample: a mean over the samples is one too if it keeps another axis."""
    num_samples = _num_samples(targets)
    if num_samples and values.numel() % num_samples:
        raise UsageError(f"{values.numel()} values of shape {tuple(values.shape)} for {num_samples} samples, from {what}")


def _num_samples(targets: Any) -> int:
    """Returns the length of the first axis of the first tensor; 0 where there is none."""
    while not isinstance(targets, Tensor):
        if not isinstance(targets, (dict, tuple, list)) or not targets:
            return 0
        targets = next(iter(targets.values())) if isinstance(targets, dict) else targets[0]
    return len(targets) if targets.dim() else 0


def across(weights: Tensor, values: Tensor, wanted_by: str) -> Tensor:
    """Returns sample weights as a view that broadcasts over `values`, whose first axis is the sample."""
    if weights.dim() != 1 or values.dim() < 1 or len(weights) != len(values):
        raise UsageError(
            f"{wanted_by}: sample weights have shape {tuple(weights.shape)}, but the values of the samples have shape "
            f"{tuple(values.shape)}; give one weight for each sample: shape {tuple(values.shape[:1])}"
        )
    return weights.reshape(-1, *(1,) * (values.dim() - 1))
