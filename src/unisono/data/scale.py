"""`un.Scale`: inputs times a factor plus an offset, as float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from unisono.data.batch import as_array
from unisono.data.declared import DeclaredChange
from unisono.errors import UsageError

if TYPE_CHECKING:
    import torch

Exact = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.float32]
MOST_SHOWN = 8
"""Numbers of an array that `repr` shows."""


class Scale(DeclaredChange):
    """A change of inputs that multiplies by a factor and adds an offset, for `Source.map_inputs` and `un.map_fitted`.

    Every input becomes float32, is multiplied by `factor`, and `offset` is added. With `mean` and `deviation` instead, the
    factor is 1 / deviation and the offset -mean / deviation, rounded to float32 once. As it is declared and no code, it is
    also computed on a GPU, with the same numbers.

    A number counts for all values. An array counts from axis 1 on, the axis after the sample: an array of 3 numbers gives
    each channel of (sample, channel, height, width) its own, and each column of (sample, column). Its axes must be as long
    as those of the inputs, or 1. With inputs in dicts and tuples all arrays are scaled alike. Numbers that are not finite
    are refused, and so is a deviation that is not positive, as that of a channel that never varies.

    A mean and a deviation that were computed from training data belong into `un.map_fitted`, which computes them for each
    fold again; elsewhere a search with folds notes them. Local.

    Example:
        import numpy as np
        import unisono as un

        images = un.Arrays(np.full((2, 3, 4, 4), 255, dtype=np.uint8)).map_inputs(un.Scale(1 / 255))
        float(images.read([0])[0].max())  # -> 1.0

        def standardised(train: un.Source):
            inputs = train.read(np.arange(len(train)))[0]
            return un.Scale(mean=inputs.mean(axis=0), deviation=inputs.std(axis=0) + 1e-3)

        splits = un.map_fitted(un.split(un.digits()), standardised)
        splits.train.read([0, 1])[0].shape  # -> (2, 64)

    Args:
        factor: What inputs are multiplied by, a number or an array; left out, 1.
        offset: What is added then, a number or an array; left out, 0.
        mean: What becomes 0, instead of factor and offset; left out, 0.
        deviation: What becomes 1 above the mean, instead of factor and offset; left out, 1.
    """

    def __init__(self, factor: Any = None, offset: Any = None, *, mean: Any = None, deviation: Any = None) -> None:
        super().__init__()
        given = {"factor": factor, "offset": offset, "mean": mean, "deviation": deviation}
        self._given = {name: _numbers(name, value) for name, value in given.items() if value is not None}
        if not self._given:
            raise UsageError("un.Scale needs a factor and an offset, or a mean and a deviation; received none of them")
        by_mean = mean is not None or deviation is not None
        if by_mean and (factor is not None or offset is not None):
            raise UsageError(f"un.Scale takes factor and offset, or mean and deviation; received {' and '.join(self._given)}")
        self._is_unit = not by_mean and all(type(value) in (int, float) for value in given.values() if value is not None)
        one, zero = np.ones(()), np.zeros(())
        with np.errstate(over="ignore", invalid="ignore"):
            exact = (
                _of_mean(self._given.get("mean", zero), self._given.get("deviation", one))
                if by_mean
                else (self._given.get("factor", one), self._given.get("offset", zero))
            )
            self.factor, self.offset = (values.astype(np.float32) for values in exact)
        if not all(np.isfinite(values).all() for values in (self.factor, self.offset)):
            raise UsageError(f"the numbers of {self!r} must be finite in float32; check what they were computed from")

    def _change_array(self, leaf: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if leaf.dtype.kind not in "biuf":
            raise UsageError(f"un.Scale takes real numbers; received {leaf.dtype}. Convert the inputs first")
        changed = leaf.astype(np.float32, order="C")
        changed *= _along(self.factor, leaf.ndim)
        if self._has_offset:
            changed += _along(self.offset, leaf.ndim)
        return changed

    def _change_tensor(self, leaf: torch.Tensor) -> torch.Tensor:
        if leaf.is_complex():
            raise UsageError(f"un.Scale takes real numbers; received {leaf.dtype}. Convert the inputs first")
        # Two operations, as a fused one would round once.
        changed: torch.Tensor = leaf.float() * self._operand("factor", self.factor, leaf)
        return changed.add_(self._operand("offset", self.offset, leaf)) if self._has_offset else changed

    def _check_shape(self, place: str, shape: tuple[int, ...]) -> None:
        for values in (self.factor, self.offset):
            own = shape[1 : 1 + values.ndim]
            if len(own) < values.ndim or any(size not in (1, there) for size, there in zip(values.shape, own, strict=True)):
                raise UsageError(
                    f"{self!r} has numbers of shape {values.shape}, which count from axis 1 on, and {place} have shape {shape}; "
                    "give a number, or one for each channel, which is axis 1"
                )

    @property
    def may_be_fitted(self) -> bool:
        """Whether its numbers may have been computed from samples: a mean, a deviation, or an array; a plain factor is a unit."""
        return not self._is_unit

    def describe(self) -> str:
        """Returns what the record of a run says of it. Local."""
        shown = (f"{name}={values:.6g}" if self._is_unit else name for name, values in self._given.items())
        return f"Scale({', '.join(shown)})"

    def __repr__(self) -> str:
        return f"un.Scale({', '.join(f'{name}={_shown(values)}' for name, values in self._given.items())})"

    @property
    def _has_offset(self) -> bool:
        return bool(self.offset.any())

    def _operand(self, name: str, values: Numbers, leaf: torch.Tensor) -> Any:
        """Returns the numbers as torch takes them beside this tensor. A plain number needs no memory on the device."""
        if not values.ndim:
            return float(values)
        on_device = self._constant_on(name, values, leaf.device)
        return on_device.reshape(_along(values, leaf.ndim).shape)


def _along(values: Numbers, num_axes: int) -> Numbers:
    """Pure: the numbers in a shape that NumPy and torch lay along axis 1 and the following."""
    return values.reshape(values.shape + (1,) * (num_axes - 1 - values.ndim)) if values.ndim else values


def _of_mean(mean: Exact, deviation: Exact) -> tuple[Exact, Exact]:
    """Pure: factor and offset under which the mean becomes 0 and a deviation 1."""
    if (deviation <= 0).any():
        raise UsageError(
            f"the deviation of un.Scale must be positive; received {deviation.min():g}, as a channel that never varies has it. Add "
            "a small number, or put 1 there"
        )
    num_axes = max(mean.ndim, deviation.ndim)
    mean, deviation = (values.reshape(values.shape + (1,) * (num_axes - values.ndim)) for values in (mean, deviation))
    try:
        return np.asarray(1.0 / deviation), np.asarray(-mean / deviation)
    except ValueError:
        raise UsageError(
            f"mean and deviation of un.Scale must have one shape; received {mean.shape} and {deviation.shape}"
        ) from None


def _numbers(name: str, value: Any) -> Exact:
    """Pure: a number or an array that a user has given, of real numbers."""
    try:
        found = as_array(value)
    except ValueError:
        found = np.empty(0, dtype=object)
    if found.dtype.kind not in "biuf" or not found.size:
        raise UsageError(f"{name} of un.Scale must be a number or an array of numbers; received {value!r}")
    return found.astype(np.float64)


def _shown(values: Exact) -> str:
    """Pure: the numbers as a user would write them; of many only the shape."""
    if values.size > MOST_SHOWN:
        return f"<{' x '.join(map(str, values.shape))} numbers>"
    return np.array2string(values, separator=", ", formatter={"float_kind": lambda one: f"{one:.9g}"}).replace("\n", "")
