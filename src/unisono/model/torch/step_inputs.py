"""What differs from step to step of recorded work: short arrays on the device that one copy from pinned memory fills."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unisono.model.flat import ALIGN_BYTES

DEPTH = 12
"""Number of steps that may be on their way to the device: more than the host is ever ahead."""

Fields = Mapping[str, tuple[torch.dtype, int]]
"""Name of an array -> its type and length."""


class StepInputs:
    """Short arrays with fixed places on a device (`on_device`), which `write` fills in stream order. Local.

    The host's side is a ring of buffers, as a copy reads its buffer some time after it was started."""

    def __init__(self, fields: Fields, device: torch.device) -> None:
        starts, length = {}, 0
        for name, (dtype, count) in fields.items():
            starts[name] = length
            length += -(-count * dtype.itemsize // ALIGN_BYTES) * ALIGN_BYTES
        self._is_cuda = device.type == "cuda"
        self._buffer = torch.zeros(length, dtype=torch.uint8, device=device)
        self.on_device = _views(self._buffer, fields, starts)
        ring = [torch.zeros(length, dtype=torch.uint8, pin_memory=self._is_cuda) for _ in range(DEPTH)]
        self._ring = deque(_Slot(one, {name: view.numpy() for name, view in _views(one, fields, starts).items()}) for one in ring)

    def write(self, values: Mapping[str, npt.ArrayLike]) -> None:
        """Starts the copy of these values, one for each field; waits only where the host is a whole ring ahead."""
        slot = self._ring[0]
        self._ring.rotate(-1)
        if slot.copied is not None:
            slot.copied.synchronize()
        for name, value in values.items():
            slot.arrays[name][...] = value
        self._buffer.copy_(slot.pinned, non_blocking=True)
        if self._is_cuda:
            slot.copied = torch.cuda.Event() if slot.copied is None else slot.copied  # type: ignore[no-untyped-call]
            slot.copied.record(torch.cuda.current_stream(self._buffer.device))


class _Slot:
    """A buffer of the ring, and when the device has read it."""

    def __init__(self, pinned: Tensor, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
        self.pinned = pinned
        self.arrays = arrays
        self.copied: torch.cuda.Event | None = None


def _views(buffer: Tensor, fields: Fields, starts: Mapping[str, int]) -> dict[str, Tensor]:
    """Returns the arrays that lie in this buffer of bytes."""
    return {
        name: buffer[starts[name] : starts[name] + count * dtype.itemsize].view(dtype) for name, (dtype, count) in fields.items()
    }
