"""How the learning rate follows the batch, when the batch grows with the workers. Pure.

linear:  lr * batch / reference     (the gradient's mean stays, steps get fewer)
sqrt:    lr * sqrt(batch / reference)     (the gradient's noise stays; usual with Adam)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt

from unisono.errors import UsageError, unknown_name


def linear(lr: float, batch: int, reference_batch: int) -> float:
    """Pure: the learning rate for a batch that has grown from `reference_batch`, in proportion."""
    return lr * _growth(batch, reference_batch)


def square_root(lr: float, batch: int, reference_batch: int) -> float:
    """Pure: the learning rate for a batch that has grown from `reference_batch`, by the square root."""
    return lr * sqrt(_growth(batch, reference_batch))


SCALINGS: Mapping[str, Callable[[float, int, int], float]] = {
    "none": lambda lr, _batch, _reference_batch: lr,
    "linear": linear,
    "sqrt": square_root,
}


def scaled_lr(scaling: str, lr: float, batch: int, reference_batch: int) -> float:
    """Pure: the learning rate by the scaling of this name."""
    if scaling not in SCALINGS:
        raise unknown_name("scaling of the learning rate", scaling, SCALINGS)
    return SCALINGS[scaling](lr, batch, reference_batch)


def growth_note(local_batch: int, num_workers: int, num_samples: int, lr: float, scaling: str = "none") -> str:
    """Pure: what a batch that grows with the workers does, for the log."""
    batch = local_batch * num_workers
    alone, together = -(-num_samples // local_batch), -(-num_samples // batch)
    if num_workers == 1:
        return f"--local-batch {local_batch} on one worker is the same as --global-batch {local_batch}."
    used = scaled_lr(scaling, lr, batch, local_batch)
    rate = (
        f"the learning rate stays {lr:g}" if scaling == "none" else f"the learning rate is {used:g} instead of {lr:g} ({scaling})"
    )
    return (
        f"--local-batch {local_batch} on {num_workers} workers: a step uses {batch} samples instead of {local_batch}, an epoch has "
        f"{together} steps instead of {alone}, and {rate}. The result depends on the number of workers; "
        f"with --global-batch it does not."
    )


def _growth(batch: int, reference_batch: int) -> float:
    if batch < 1 or reference_batch < 1:
        raise UsageError(f"a batch has at least one sample; received {batch} and {reference_batch}")
    return batch / reference_batch
