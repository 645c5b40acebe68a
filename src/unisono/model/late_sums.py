"""The sums of steps on a GPU on their way to the host: some steps travel together, and the host reads them some steps later.

A copy to the host holds up the kernels behind it, and to wait for one would leave the device idle. So the sums of a step are kept
on the device as a row; when a group of rows is full its copy starts, and the group before is read.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unisono.model.tail import LATEST

GROUP = LATEST // 2
"""Steps whose sums travel together."""
NUM_GROUPS = 3
"""One that is filled, one that travels, and one that may still be read."""

Row = tuple[int, npt.NDArray[np.float64]]
"""The number of a step, and its sums on the host."""


class LateSums:
    """The rows of the newest steps. Local. What is read after a step does not depend on how fast the device is."""

    def __init__(self, vector: Tensor) -> None:
        self._vector = vector
        self._is_cuda = vector.device.type == "cuda"
        shape = (NUM_GROUPS, GROUP, vector.numel())
        self._rows = torch.zeros(shape, dtype=vector.dtype, device=vector.device)
        self._flat = self._rows.view(-1, vector.numel())
        self._copies = torch.zeros(shape, dtype=vector.dtype, pin_memory=self._is_cuda)
        self._host = self._copies.numpy()
        self._copied = [torch.cuda.Event() for _ in range(NUM_GROUPS)] if self._is_cuda else []  # type: ignore[no-untyped-call]
        self._row = torch.zeros(1, dtype=torch.int64, device=vector.device)
        self._known_row = 0
        """The value that it has once all work so far is done."""
        self._group = 0
        self._steps: list[int] = []
        """Steps of the group that is filled."""
        self._travelling: list[int] = []
        """Steps of the group before it."""

    def find_place(self) -> None:
        """Before `keep`: sees to it that the device knows the row of the next step, which it does after its last one."""
        place = self._next_row
        if place != self._known_row:
            self._row.fill_(place)
        self._known_row = place + 1

    def keep(self) -> None:
        """On the device: keeps the sums as the row of the next step, and moves to the one after."""
        self._flat.index_copy_(0, self._row, self._vector.unsqueeze(0))
        self._row.add_(1)

    @property
    def _next_row(self) -> int:
        """The row of the next step."""
        return self._group * GROUP + len(self._steps)

    def add(self, step: int, is_kept: bool = False) -> list[Row]:
        """Adds the sums of a step, which are in the vector and may be kept already; returns those that are known by now. Waits for
        the device where it is more than a group behind."""
        if not is_kept:
            self._flat[self._next_row].copy_(self._vector)
        self._steps.append(step)
        return self._pass_on() if len(self._steps) == GROUP else []

    def flush(self) -> list[Row]:
        """Waits for the device: returns all sums that were not returned yet."""
        return self._pass_on() + self._pass_on()

    def _pass_on(self) -> list[Row]:
        """Starts the copy of the newest group, and reads the one before."""
        before = (self._group - 1) % NUM_GROUPS
        found = self._read(before, self._travelling)
        if self._steps:
            self._copies[self._group].copy_(self._rows[self._group], non_blocking=True)
            if self._is_cuda:
                self._copied[self._group].record(
                    torch.cuda.current_stream(self._vector.device)
                )  # it need not be the current device
        self._travelling, self._steps = self._steps, []
        self._group = (self._group + 1) % NUM_GROUPS
        return found

    def _read(self, group: int, steps: list[int]) -> list[Row]:
        """Reads the rows of a group; they are copied, as its memory is used again."""
        if steps and self._is_cuda:
            self._copied[group].synchronize()
        rows: Callable[[int], npt.NDArray[np.float64]] = self._host[group].__getitem__
        return [(step, rows(number).copy()) for number, step in enumerate(steps)]
