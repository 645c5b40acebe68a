"""Numbers that are stored packed, by the CF conventions of netCDF, as attributes of an array of HDF5 or Zarr say:

value = stored * scale_factor + add_offset      missing where stored is _FillValue or missing_value

where the bits of stored are whole numbers with the other sign if _Unsigned says so (netCDF).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.errors import UsageError

SCALES = ("scale_factor", "add_offset")
FILLS = ("_FillValue", "missing_value")
UNSIGNED = "_Unsigned"
ATTRIBUTES = (*SCALES, *FILLS, UNSIGNED)
MEANT: Mapping[tuple[str, str], str] = MappingProxyType({("i", "true"): "u", ("u", "false"): "i"})
"""Kind of the stored numbers and what `_Unsigned` says -> the kind that is meant."""
FLOAT64_IN_BASE64 = 12
"""Letters of such a text."""


@dataclass(frozen=True)
class Packing:
    """How an array is packed. Unpacked numbers are computed in float64; those of at most 16 bits, and float32, become float32."""

    stored: np.dtype[Any]
    scale: float = 1.0
    offset: float = 0.0
    fills: tuple[float, ...] = ()
    """Stored numbers that stand for missing values."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the unpacked numbers; whole numbers without a scale stay whole."""
        if (self.scale, self.offset) == (1.0, 0.0):
            return self.stored
        narrow = self.stored.itemsize <= 2 or self.stored == np.float32
        return np.dtype(np.float32 if narrow else np.float64)

    @property
    def has_nan(self) -> bool:
        """Whether a missing value can be NaN: whole numbers have none."""
        return self.dtype.kind == "f"

    def unpack(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Pure: returns the numbers, with NaN where they are missing; whole numbers without a scale stay as they are."""
        found = stored
        if (self.scale, self.offset) != (1.0, 0.0):
            found = (stored.astype(np.float64) * self.scale + self.offset).astype(self.dtype)
        missing = np.isin(stored, self.fills) if self.fills and self.has_nan else None
        return found if missing is None or not missing.any() else np.where(missing, np.array(np.nan, found.dtype), found)


class Unpacked:
    """An open array that gives unpacked numbers by `[start:stop]`."""

    def __init__(self, array: Any, packing: Packing, where: str) -> None:
        self._array, self._packing, self._where = array, packing, where

    def __getitem__(self, span: slice) -> npt.NDArray[Any]:
        return self._packing.unpack(np.asarray(self._array[span], dtype=self._packing.stored))

    def refuse_missing(self, numbers: npt.NDArray[Any]) -> None:
        """Refuses whole numbers of this array of which some are missing."""
        if self._packing.has_nan or not (missing := np.isin(numbers, self._packing.fills)).any():
            return
        raise UsageError(
            f"{self._where} holds the number of its missing values ({numbers[missing][0]}, by its attribute _FillValue or "
            "missing_value), and whole numbers have no NaN; replace it in the file, store floating numbers, leave the samples out "
            "(source.subset), or delete the attribute if the number is meant"
        )


def packing_of(array: Any, attributes: Mapping[str, Any], where: str) -> Packing | None:
    """Local: how an open array is packed, by its attributes; None if it is not."""
    kind = np.dtype(array.dtype).newbyteorder("=")
    if kind.kind not in "iuf" or not any(name in attributes for name in ATTRIBUTES):
        return None
    meant = _meant(kind, attributes.get(UNSIGNED))
    scale, offset = (float(_number(attributes, name, where, usual)) for name, usual in zip(SCALES, (1.0, 0.0), strict=True))
    fills = (_as_stored(_number(attributes, name, where, np.nan), kind, meant) for name in FILLS)
    found = Packing(meant, scale, offset, tuple(fill for fill in fills if fill is not None))
    return None if found == Packing(kind) else found


def _meant(kind: np.dtype[Any], unsigned: Any) -> np.dtype[Any]:
    """Returns the type of the stored numbers as `_Unsigned` has it: netCDF-3 has no unsigned types."""
    said = unsigned.decode() if isinstance(unsigned, bytes) else str(unsigned)
    return np.dtype(f"{MEANT.get((kind.kind, said.lower()), kind.kind)}{kind.itemsize}")


def _number(attributes: Mapping[str, Any], name: str, where: str, usual: float) -> float:
    """Returns an attribute as a number, also one that Xarray wrote into a Zarr store as text; `usual` where there is none."""
    value = attributes.get(name, usual)
    try:
        if isinstance(value, str) and len(value) == FLOAT64_IN_BASE64:
            value = np.frombuffer(base64.b64decode(value, validate=True), "<f8")
        (one,) = np.ravel(value)
        return int(one) if isinstance(one, (int, np.integer)) else float(one)
    except (TypeError, ValueError):
        raise UsageError(f"the attribute {name} of {where} is {value!r}, not one number; correct or delete it") from None


def _as_stored(fill: float, kind: np.dtype[Any], meant: np.dtype[Any]) -> float | None:
    """Returns the number that stands for missing values in the type that is meant; None where no stored number can be it, and for
    NaN, which says so itself."""
    if kind.kind == "f":
        one = float(kind.type(fill))
        return None if np.isnan(one) else one
    for written in (meant, kind):
        limits = np.iinfo(written)
        if limits.min <= fill <= limits.max and fill == int(fill):
            return int(np.array(int(fill), written).view(meant))
    return None
