"""Declared changes: said by what they are and not by code, so that each exists on NumPy arrays and on torch tensors, with the same
numbers. What is declared can be computed on a GPU, also inside a captured graph; a function of a user cannot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from unisono.data.tree import leaves, map_tree

if TYPE_CHECKING:
    import torch


class Declared:
    """What all declared changes share: constants that are copied to a device once.

    The torch form neither waits for the device nor branches on values. Its first call on a device copies the constants there,
    which cannot be captured: call it once before.
    """

    def __init__(self) -> None:
        self._on_devices: dict[tuple[str, Any], Any] = {}

    def _constant_on(self, name: str, values: npt.NDArray[Any], device: Any) -> torch.Tensor:
        """Local, blocking in the first call for a name and a device: the values as a tensor there."""
        import torch

        found: torch.Tensor | None = self._on_devices.get((name, device))
        if found is None:
            found = self._on_devices[name, device] = torch.from_numpy(values).to(device)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_on_devices": {}}  # in another process the device may be none of its own


def is_declared(change: Any) -> bool:
    """Pure: whether a change of inputs, or an `augment` of a task, also has a form on tensors. A subclass that changed the form on
    arrays alone has none."""
    if not isinstance(change, Declared):
        return False
    owners = [next(one for one in type(change).__mro__ if name in vars(one)) for name in ("__call__", "on_tensors")]
    return owners[0] is owners[1]


class DeclaredChange(Declared, ABC):
    """A change of the inputs of a batch, array by array in dicts and tuples. Targets and weights never pass through it.

    A subclass says how one array changes, as an array and as a tensor, with the same bits on a CPU.
    """

    def __call__(self, inputs: Any) -> Any:
        """Returns changed inputs: NumPy arrays. Local, blocking.

        Args:
            inputs: An array, or dicts and tuples of arrays, whose first axis is the sample.
        """
        self._check(inputs)
        return map_tree(lambda leaf: self._change_array(np.asarray(leaf)), inputs)

    def on_tensors(self, inputs: Any) -> Any:
        """Returns changed inputs: torch tensors on the device of the given ones. Local, not blocking after the first call.

        Args:
            inputs: A tensor, or dicts and tuples of tensors, whose first axis is the sample.
        """
        self._check(inputs)
        return map_tree(self._change_tensor, inputs)

    @abstractmethod
    def _change_array(self, leaf: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Pure: one changed array."""

    @abstractmethod
    def _change_tensor(self, leaf: torch.Tensor) -> torch.Tensor:
        """Local: one changed tensor."""

    @property
    @abstractmethod
    def may_be_fitted(self) -> bool:
        """Whether it holds numbers that may have been computed from samples, as a mean."""

    def describe(self) -> str:
        """Pure: what a source's record says of it. Numbers that are computed on several workers may differ in their last digits and
        still are the same, so that it names few digits."""
        return type(self).__name__

    def _check_shape(self, place: str, shape: tuple[int, ...]) -> None:
        """Pure: refuses inputs whose shape does not fit."""

    def _check(self, inputs: Any) -> None:
        for place, leaf in leaves(inputs):
            self._check_shape(
                f"the inputs at {place}" if place else "the inputs", tuple(leaf.shape) if hasattr(leaf, "shape") else np.shape(leaf)
            )
