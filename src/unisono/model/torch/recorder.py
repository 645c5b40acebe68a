"""Records work on a GPU once and repeats it: a CUDA graph starts hundreds of kernels in the time that one takes to start alone."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial

import torch

SPARE = 0.5
"""Share of the device's memory that must be free for a recording without giving back what torch keeps for later."""


class Recorder(ABC):
    """Records work. What is recorded reads and writes the same memory in every repetition, and does not wait for the device."""

    @abstractmethod
    def warming_up(self) -> AbstractContextManager[None]:
        """Context manager, local: runs work as it will be recorded, so that libraries and compilers make what they need."""

    @abstractmethod
    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Local; waits for the device: records work without running it. Returns the function that runs it. Raises what the work
        raises, and `RuntimeError` where it cannot be recorded."""


class CudaRecorder(Recorder):
    """Records CUDA graphs, which share one pool of memory: they never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        outside = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(outside)
        with torch.cuda.stream(self._stream):
            yield
        outside.wait_stream(self._stream)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        torch.cuda.synchronize(self._device)
        free, total = torch.cuda.mem_get_info(self._device)
        if free < SPARE * total:
            torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        collects = gc.isenabled()
        gc.disable()  # a tensor of another graph that is collected now would be freed within this one
        try:
            with torch.cuda.stream(self._stream):
                # Threads that load, save or watch use the device too.
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    work()
                except BaseException:
                    self._abandon(graph)
                    raise
                graph.capture_end()
        finally:
            if collects:
                gc.enable()
        return partial(torch._C._CUDAGraph.replay, graph)  # that of the class above looks for what is not used here

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """Ends a recording whose work has failed. Where the failure has ended it already, older versions of torch go on taking
        memory from its pool unless they are told."""
        try:
            graph.capture_end()
        except RuntimeError:
            with suppress(RuntimeError, AttributeError, TypeError):
                torch._C._cuda_endAllocateToPool(self._device.index or 0, self._pool)


class PlainRecorder(Recorder):
    """Runs the work itself in place of a recording: for tests of what is around it, on any machine."""

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        yield

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        return work
