"""Computes x, y = x + y, x + y in one pass over memory, by a routine of the BLAS that NumPy has already loaded.

Large vectors are summed at the speed of memory, so writing both results while they are at hand is worth a quarter of the time of an
addition followed by a copy. NumPy and PyTorch have no such operation, but every BLAS has: the modified Givens rotation turns (x, y)
into (a x + b y, c x + d y), and with ones for all four it is the sum, twice. It is taken only if it gives the same bits as NumPy's
addition and is quicker; otherwise, or where no BLAS is found, there is none, and only time is lost.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Step = Callable[[], None]

_LETTERS: Mapping[type[np.floating[Any]], str] = {np.float32: "s", np.float64: "d"}
_SPELLINGS = ("cblas_{}rotm", "cblas_{}rotm64_", "scipy_cblas_{}rotm64_", "scipy_cblas_{}rotm")
_ONES = (-1.0, 1.0, 1.0, 1.0, 1.0)
"""The routine's parameter: 'a full matrix follows', and the matrix."""
_TRIAL_NUMEL = 1 << 16
_TRIALS = 5
_MOST_NUMEL = 1 << 30
"""Most elements in one call: some libraries count in 32 bits."""


class TwinSum:
    """The routine for one type of number."""

    def __init__(self, routine: Any, dtype: npt.DTypeLike) -> None:
        self._routine = routine
        self._ones = np.array(_ONES, dtype)

    def step(self, x: Array, y: Array) -> Step:
        """Local: returns a function that replaces both vectors by their sum."""
        routine, one = self._routine, ctypes.c_int64(1)
        calls = []
        for start in range(0, x.size, _MOST_NUMEL):
            numel = ctypes.c_int64(min(x.size - start, _MOST_NUMEL))
            # Pointers made this way keep their arrays alive.
            at_x, at_y, ones = (array.ctypes.data_as(ctypes.c_void_p) for array in (x[start:], y[start:], self._ones))
            calls.append((numel, at_x, one, at_y, one, ones))

        def run() -> None:
            for arguments in calls:
                routine(*arguments)

        return run


@cache
def twin_sums() -> Mapping[np.dtype[Any], TwinSum]:
    """Local: returns the routines that this process can use, by type; determined once, in about a millisecond."""
    found = {}
    for kind, letter in _LETTERS.items():
        for routine in _find_routines(letter):
            candidate = TwinSum(routine, kind)
            if _is_right(candidate, kind) and _is_quicker(candidate, kind):
                found[np.dtype(kind)] = candidate
                break
    return found


def _find_routines(letter: str) -> Iterator[Any]:
    """Yields the candidate routines of the BLAS libraries that this process has loaded; `letter` is that of the type."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    for path in sorted({Path(line.split(maxsplit=5)[5]) for line in lines if "/" in line}):
        if ".so" in path.name and ("blas" in path.name or "mkl_rt" in path.name):
            try:
                library = ctypes.CDLL(str(path))
            except OSError:  # replaced on disk since it was loaded
                continue
            for spelling in _SPELLINGS:
                routine = getattr(library, spelling.format(letter), None)
                if routine is not None:
                    routine.restype = None
                    yield routine


def _is_right(candidate: TwinSum, kind: type[np.floating[Any]]) -> bool:
    """Whether a routine gives the bits of NumPy's sum in both vectors, also for special values, at lengths with every remainder."""
    limits = np.finfo(kind)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, limits.max, limits.tiny, limits.smallest_subnormal, 1.0, 1 / 3]
    for numel in (1, 2, 3, 7, 15, 16, 33, 121, 4099):
        x = np.resize(np.repeat(np.array(special, kind), len(special)), numel)
        y = np.resize(np.array(special, kind), numel)
        with np.errstate(all="ignore"):
            right = (x + y).tobytes()
        candidate.step(x, y)()
        if x.tobytes() != right or y.tobytes() != right:
            return False
    return True


def _is_quicker(candidate: TwinSum, kind: type[np.floating[Any]]) -> bool:
    """Whether a routine is faster than two passes of NumPy: a plain loop in an old library may not be."""
    x, y = np.zeros(_TRIAL_NUMEL, kind), np.zeros(_TRIAL_NUMEL, kind)

    def in_two_passes() -> None:
        np.add(x, y, out=x)
        np.copyto(y, x)

    return _shortest_s(candidate.step(x, y)) < _shortest_s(in_two_passes)


def _shortest_s(step: Step) -> float:
    """Returns the shortest of several measured times of a step, in seconds."""
    times = []
    for _ in range(_TRIALS):
        start = perf_counter()
        step()
        times.append(perf_counter() - start)
    return min(times)
