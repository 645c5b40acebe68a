"""Host memory for copies of a state, kept from one copy to the next: to touch new memory takes longer than to copy."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Thread

import torch
from torch import Tensor


class HostBuffers:
    """Keeps host memory for one copy of a state. Local; one thread at a time calls this."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._making: Thread | None = None

    def prepare(self, tensors: Mapping[str, Tensor]) -> None:
        """Returns at once: a thread makes memory for tensors like these and touches it, so that the first copy is quick."""
        self._wait_until_made()
        self._making = Thread(target=self._make_buffers, args=(dict(tensors),), name="unisono-staging")
        self._making.start()

    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Blocking: copies the tensors to host memory. The copy before is overwritten, so it must not be in use."""
        self._wait_until_made()
        copied = {}
        for name, tensor in tensors.items():
            buffer = self._buffers.get(name)
            if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                buffer = _buffer_like(tensor)
            copied[name] = buffer.copy_(tensor, non_blocking=True)
        for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        self._buffers = copied
        return copied

    def _make_buffers(self, tensors: Mapping[str, Tensor]) -> None:
        """Makes a host buffer for each tensor, and writes to it once, so that its memory is really there."""
        for name, tensor in tensors.items():
            buffer = _buffer_like(tensor)
            if not tensor.is_cuda:
                # By numpy, as torch would start threads of its own beside those that compute.
                buffer.reshape(-1).view(torch.uint8).numpy().fill(0)
            self._buffers[name] = buffer

    def _wait_until_made(self) -> None:
        if self._making is not None:
            self._making.join()
            self._making = None


def _buffer_like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
