"""What differs from step to step of recorded work: short arrays on the device that one copy from pinned memory fills."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from unisono.model.flat import ALIGN_BYTES

HALF = 12
DEPTH = 2 * HALF
"""Number of steps that may be on their way to the device: with half of them it is more than the host is ever ahead."""

Fields = Mapping[str, tuple[torch.dtype, int]]
"""Name of an array -> its type and length."""


class StepInputs:
    """Short arrays with fixed places on a device (`on_device`), which are sent there in stream order. Local.

    The host's side is a ring of buffers, as a copy reads its buffer some time after it was started."""

    def __init__(self, fields: Fields, device: torch.device) -> None:
        starts, length = {}, 0
        for name, (dtype, count) in fields.items():
            starts[name] = length
            length += -(-count * dtype.itemsize // ALIGN_BYTES) * ALIGN_BYTES
        self._buffer = torch.zeros(length, dtype=torch.uint8, device=device)
        self.on_device = _views(self._buffer, fields, starts)
        self._ring = [torch.zeros(length, dtype=torch.uint8, pin_memory=device.type == "cuda") for _ in range(DEPTH)]
        self._arrays = [{name: view.numpy() for name, view in _views(one, fields, starts).items()} for one in self._ring]
        self._copied = [torch.cuda.Event(), torch.cuda.Event()] if device.type == "cuda" else []  # type: ignore[no-untyped-call]
        """When the device has read each half of the ring."""
        self._next = 0

    def begin(self) -> Mapping[str, npt.NDArray[Any]]:
        """Returns the arrays of the next buffer, to be filled; waits only where the host is half a ring ahead."""
        half, place = divmod(self._next, HALF)
        if not place and self._copied:
            self._copied[half].synchronize()
        return self._arrays[self._next]

    def send(self) -> None:
        """Starts the copy of the buffer that `begin` gave."""
        self._buffer.copy_(self._ring[self._next], non_blocking=True)
        half, place = divmod(self._next, HALF)
        if place == HALF - 1 and self._copied:
            self._copied[half].record(torch.cuda.current_stream(self._buffer.device))
        self._next = (self._next + 1) % DEPTH


def _views(buffer: Tensor, fields: Fields, starts: Mapping[str, int]) -> dict[str, Tensor]:
    """Returns the arrays that lie in this buffer of bytes."""
    return {
        name: buffer[starts[name] : starts[name] + count * dtype.itemsize].view(dtype) for name, (dtype, count) in fields.items()
    }
