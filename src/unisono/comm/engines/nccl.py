"""NCCL: collectives between GPUs, in stream order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from unisono.comm.base import ANY, Call, Envelope, Group, Watch
from unisono.comm.control_plane.control import Control
from unisono.comm.driver import T, Work, not_done
from unisono.comm.engines.single import SingleCommunicator
from unisono.comm.engines.torch_group import TorchCommunicator, dist
from unisono.comm.polling import Backoff
from unisono.errors import UsageError


class NcclCommunicator(TorchCommunicator):
    """The engine NCCL, in stream order: calls are launched on a stream of this communicator's own, behind the work of the caller's
    stream, and `wait` makes the caller's stream wait. The host never waits, except in `barrier` and for objects. A launched call
    cannot be interrupted: a member that dies is noticed before the next launch, or by NCCL's own time limit, which ends the
    process. There are no tags and no receive from any source.
    """

    engine = "nccl"

    def __init__(self, group: Group, control: Control, device: torch.device, time_limit_s: float, host: str) -> None:
        super().__init__(group, control, device, time_limit_s, host)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._oneself = SingleCommunicator(group, control, device, time_limit_s)
        """Carries messages in a group of one."""

    def _build(self, host: str, port: int) -> Any:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self._library_limit(self.time_limit_s)
        with torch.cuda.device(self.device):
            library = dist.ProcessGroupNCCL(self._join_store(host, port), self.rank, self.size, options)
            library.eager_connect_single_device(self.device)
        return library

    def _run(self, call: Call, body: Callable[[Watch], T], limit_s: float | None = None) -> T:
        return self._start(call, body, limit_s).wait()

    def _start(self, call: Call, body: Callable[[Watch], T], limit_s: float | None = None) -> Work[T]:
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            result = self._perform(call, body, limit_s)
        return StreamWork(call, self._stream.record_event(), result)

    def _begin_collective(self, watch: Watch, *tensors: Tensor) -> None:
        watch.poll()
        for tensor in tensors:  # so that its memory is not given to another before our stream has used it
            tensor.record_stream(self._stream)

    def _wait_all(self, works: Sequence[Any], watch: Watch) -> None:  # noqa: ARG002 -- the stream waits, the host does not
        for work in works:
            work.wait()

    def _exchange_parts(self, outs: Sequence[Tensor], ins: Sequence[Tensor], watch: Watch) -> None:
        self._copy_own_part(outs, ins, watch)
        if self.size > 1:
            options = self._with_time_limit(dist.AllToAllOptions(), watch)
            wire = [[part.view(torch.uint8) for part in parts] for parts in (outs, ins)]
            self._library.alltoall(*wire, options).wait()

    def _barrier(self, watch: Watch) -> None:
        super()._barrier(watch)
        event = torch.cuda.current_stream(self.device).record_event()
        backoff = Backoff(spin_s=0.0, longest_s=0.5e-3)
        while not event.query():
            backoff.pause()
            watch.poll()

    def _start_send(self, buf: Tensor, dest: int, tag: int, watch: Watch) -> Work[None]:
        if self.size == 1:
            return self._oneself._start_send(buf, dest, tag, watch)
        self._check_message(dest, tag, "dest")
        watch.poll()
        return LaunchedWork(watch.call, self._library.send([buf.view(torch.uint8)], dest, 0), None)

    def _start_recv(self, buf: Tensor, source: int, tag: int, watch: Watch) -> Work[Envelope]:
        if self.size == 1:
            return self._oneself._start_recv(buf, source, tag, watch)
        if source == ANY:
            raise UsageError(
                "engine nccl cannot receive from any source; name the source, or use a communicator of engine gloo or mpi "
                "(--engine) for first come, first served"
            )
        self._check_message(source, tag, "source")
        watch.poll()
        return LaunchedWork(watch.call, self._library.recv([buf.view(torch.uint8)], source, 0), Envelope(source, 0))

    def _check_message(self, other: int, tag: int, what: str) -> None:
        """Raises `UsageError` for what NCCL cannot do with messages: tags, and messages to oneself."""
        if tag:
            raise UsageError(f"engine nccl has no tags; received tag {tag}: use tag 0 or a duplicate() for each kind of message")
        if other == self.rank:
            raise UsageError(
                f"engine nccl cannot send from a rank to itself; received {what} {other} on rank {self.rank}: copy the tensor"
            )

    def _close(self) -> None:
        library, self._library, self._store = self._library, None, None
        if library is not None and self.control.lost:
            library.abort()
        elif library is not None:
            library.shutdown()


class LaunchedWork(Work[T]):
    """A message that NCCL transfers."""

    def __init__(self, call: Call, work: Any, result: T) -> None:
        self._call = call
        self._work = work
        self._result = result

    def done(self) -> bool:
        return bool(self._work.is_completed())

    def wait(self, timeout_s: float | None = None) -> T:
        _await_on_host(self, self._call, timeout_s)
        self._work.wait()
        return self._result


class StreamWork(Work[T]):
    """Calls on the communicator's own stream."""

    def __init__(self, call: Call, event: torch.cuda.Event, result: T) -> None:
        self._call = call
        self._event = event
        self._result = result

    def done(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self, timeout_s: float | None = None) -> T:
        _await_on_host(self, self._call, timeout_s)
        torch.cuda.current_stream(self._event.device).wait_event(self._event)
        return self._result


def _await_on_host(work: Work[object], call: Call, timeout_s: float | None) -> None:
    """Blocking until the work is done if a time limit is given, and raises when it is over; returns at once without one."""
    if timeout_s is None:
        return
    deadline = monotonic() + timeout_s
    backoff = Backoff(spin_s=0.0, longest_s=0.5e-3)
    while not work.done():
        if monotonic() > deadline:
            raise not_done(call, timeout_s)
        backoff.pause()
