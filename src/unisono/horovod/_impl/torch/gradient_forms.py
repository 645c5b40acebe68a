"""Whether the gradient of a parameter is dense or sparse: all ranks must know it, also those that have no gradient."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

FILLED = "_filled_by_broadcast_optimizer_state"
"""The attribute of gradients that `fill_with_zeros` has made: they are dense, whatever a backward pass will make."""
MAX_STEPS_WITHOUT_GRADIENT = 16
"""Ranks ask each other this many times for the form of a gradient that no rank has; then it counts as dense, which is always right
but sends a large table as a whole."""


class Forms:
    """The forms of gradients that the ranks have agreed on: before the first gradient of a parameter is reduced, and again after
    another `init` or a join, as ranks that had joined did not take part."""

    def __init__(self) -> None:
        self._is_sparse: dict[Tensor, bool] = {}
        self._era: object = None
        self._num_heard: Counter[Tensor] = Counter()

    def is_unknown(self, one: Tensor, era: object) -> bool:
        """Whether the form of a parameter's gradient is not agreed in this era of the channel. Local."""
        return self._era is not era or one not in self._is_sparse

    def is_sparse(self, one: Tensor) -> bool:
        """Whether a gradient is sparse, as agreed; one that no rank has ever had counts as dense. Local."""
        return self._is_sparse.get(one, False)

    def marks(self, names: Mapping[Tensor, str]) -> Tensor:
        """Returns for each parameter, in the order of names, whether its gradient is dense here, and whether it is sparse.
        Local."""
        found = [_form_of(one) for one in sorted(names, key=names.__getitem__)]
        return torch.tensor(found, dtype=torch.int32, device="cpu")

    def apply_marks(self, marks: Tensor, names: Mapping[Tensor, str], era: object, sparse_as_dense: bool) -> list[Tensor]:
        """Takes over the sum of all ranks' marks. Returns the parameters whose gradients are dense on some ranks and sparse on
        others, which is a mistake unless sparse ones are sent dense. Local."""
        if self._era is not era:
            self._is_sparse.clear()
            self._num_heard.clear()
            self._era = era
        self._num_heard.update(names.keys())
        mixed = []
        for one, (num_dense, num_sparse) in zip(sorted(names, key=names.__getitem__), marks.tolist(), strict=True):
            if num_dense and num_sparse and not sparse_as_dense:
                mixed.append(one)
            elif num_dense or num_sparse or self._num_heard[one] >= MAX_STEPS_WITHOUT_GRADIENT:
                self._is_sparse[one] = bool(num_sparse)
        return mixed


def fill_with_zeros(one: Tensor, is_sparse: bool) -> None:
    """Gives a parameter without a gradient one of zeros, which does not count as a statement on its form. Local."""
    one.grad = empty_sparse_gradient(one) if is_sparse else torch.zeros_like(one)
    setattr(one.grad, FILLED, True)


def empty_sparse_gradient(one: Tensor) -> Tensor:
    """Returns a sparse gradient without rows. Local."""
    indices = torch.empty(1, 0, dtype=torch.int64, device=one.device)
    return torch.sparse_coo_tensor(indices, one.new_empty(0, *one.shape[1:]), one.shape, check_invariants=False)


def _form_of(one: Tensor) -> tuple[bool, bool]:
    """Returns whether a parameter's gradient is dense, and whether it is sparse; neither if it has none or was filled with
    zeros."""
    if one.grad is None:
        return False, False
    if getattr(one.grad, FILLED, False):  # once: if it is still there in the next step, it is the program's
        setattr(one.grad, FILLED, False)
        return False, False
    return not one.grad.is_sparse, one.grad.is_sparse
