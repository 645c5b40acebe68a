"""An operation in flight on this rank: its tensors, and how to wait for its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import monotonic

import torch
from torch import Tensor

from unisono.horovod._impl.engine.operation_request import Request


class Entry:
    """One submitted operation. Its tensors belong to the engine until it is done; any thread may wait for it."""

    __slots__ = (
        "_error",
        "_gate",
        "_is_over",
        "_then",
        "arrived",
        "began_at",
        "free",
        "hurry",
        "inputs",
        "last_joined",
        "outputs",
        "request",
        "sizes",
        "streams",
    )

    def __init__(self, request: Request, inputs: Sequence[Tensor] = (), outputs: Sequence[Tensor] = ()) -> None:
        self.request = request
        self.inputs = list(inputs)
        self.outputs = self.inputs if outputs is inputs else list(outputs)
        """Given by the caller where their shape is known beforehand, else made by the engine; the inputs themselves if it is done
        in place."""
        self.sizes: list[list[int]] = []
        """Of a gather or exchange: the rows that came from each rank, for each tensor."""
        self.last_joined: int | None = None
        self.began_at = monotonic()
        self.hurry: Callable[[], None] = _nobody_hurries
        """Tells the engine that somebody waits."""
        self.streams = _streams(self.inputs) if request.device == "cuda" else {}
        """Of tensors on GPUs, by device: the caller's stream, which has made the inputs and will read the outputs."""
        self.arrived = [stream.record_event() for stream in self.streams.values()] if self.streams else []
        """On GPUs: when the inputs are there."""
        self.free: list[torch.cuda.Event] = []
        """On GPUs: when outputs that the engine has made may be written to."""
        self._is_over = False
        self._gate = threading.Lock()  # an Event takes longer to make than all the rest
        self._gate.acquire()
        self._error: BaseException | None = None
        self._then: Callable[[], None] | None = None

    def done(self) -> bool:
        """Whether the operation is done. Local, not blocking."""
        return self._is_over

    def wait(self) -> None:
        """Waits until the operation is done; raises its error. Local, blocking."""
        if not self._is_over:
            self.hurry()
            with self._gate:  # opened for the first who waits, and by each for the next
                pass
        if self._error is not None:
            raise self._error

    def when_done(self, call: Callable[[], None]) -> None:
        """Calls `call` when the operation is done, once or twice, in this or another thread; that counts as waiting. Local, not
        blocking."""
        self._then = call
        if self._is_over:
            call()
        else:
            self.hurry()

    def finish(self, error: BaseException | None = None) -> None:
        """Marks the operation as done, with its error if it failed; waiting threads continue. Local."""
        self._error = error
        self._is_over = True
        self._gate.release()
        if self._then is not None:
            self._then()


def _nobody_hurries() -> None:
    """Does nothing: what `hurry` is until the engine has the entry."""


def _streams(tensors: Sequence[Tensor]) -> dict[torch.device, torch.cuda.Stream]:
    """Returns the current CUDA stream of each device that has one of these tensors."""
    return {device: torch.cuda.current_stream(device) for device in {tensor.device: None for tensor in tensors}}
