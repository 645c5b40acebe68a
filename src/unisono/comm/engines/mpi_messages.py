"""One message over MPI. It is polled, since MPI neither wakes a waiting thread nor can be interrupted."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any, NoReturn

from torch import Tensor

from unisono.comm.driver import T, Work, not_done
from unisono.comm.engines.mpi_library import LONGEST_PAUSE_S, Library
from unisono.comm.polling import Backoff, raise_root_cause
from unisono.comm.watch import Watch
from unisono.errors import CommError, UsageError


class MessageWork(Work[T]):
    """A message in flight; `result` makes its result from MPI's status."""

    def __init__(
        self, library: Library, request: Any, buf: Tensor, watch: Watch, spin_s: float, result: Callable[[Any], T]
    ) -> None:
        self._library = library
        self._request = request
        self._buf = buf
        self.watch = watch
        self._spin_s = spin_s
        self._result = result
        self._status = library.mpi.Status()
        self._is_done = False
        self._error: Exception | None = None
        if not self.done():
            library.begin_message(self)

    def done(self) -> bool:
        if not self._is_done:
            try:
                with self._library.call_lock:
                    self._is_done = self._request.Test(self._status)
            except self._library.mpi.Exception as error:
                self._error, self._is_done = error, True
            if self._is_done:
                self._library.end_message(self)
        return self._is_done

    def wait(self, timeout_s: float | None = None) -> T:
        backoff = Backoff(self._spin_s, LONGEST_PAUSE_S)
        deadline = None if timeout_s is None else monotonic() + timeout_s
        while not self.done():
            if backoff.pause():
                if deadline is not None and monotonic() > deadline:
                    raise not_done(self.watch.call, timeout_s)
                self.watch.poll()
        if self._error is not None:
            self._raise_error(self._error)
        return self._result(self._status)

    def close(self) -> None:
        """Local: cancels a receive without a message, which would keep MPI busy for ever. A send must find its receiver."""
        if self.watch.call.kind == "recv":
            with self._library.call_lock:
                self._request.Cancel()
            if self.done() and self._status.Is_cancelled():
                comm = self.watch.comm
                self._error = CommError(f"{self.watch.call} was not finished when its communicator {comm.name} was closed")

    def _raise_error(self, error: Exception) -> NoReturn:
        """Raises the error of a message: `CommError` if it was longer than its buffer, else the root cause, such as a lost rank."""
        mpi, watch = self._library.mpi, self.watch
        if isinstance(error, CommError):
            raise error
        if isinstance(error, mpi.Exception) and error.Get_error_class() == mpi.ERR_TRUNCATE:
            raise CommError(
                f"{watch.call} on rank {watch.comm.rank} of {watch.comm.name}: got a message longer than its buffer of "
                f"{self._buf.nbytes} bytes; send and receive the same number of elements"
            ) from error
        raise_root_cause(watch, error, "MPI")


def check_length(buf: Tensor) -> None:
    """Raises `UsageError` for a buffer of 2^31 elements or more."""
    if buf.numel() >= 1 << 31:
        raise UsageError(f"engine mpi moves fewer than 2^31 elements at a time; received {buf.numel()}: send the tensor in parts")
