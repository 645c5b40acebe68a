"""Runs calls in the background: the helper thread of a communicator runs the started calls in order."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

from unisono.errors import NotDone

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


class Work(ABC, Generic[R_co]):
    """A call that was started and may still be running, from one of the `start_...` methods of a communicator.

    Wait for it in the thread that started it. The buffers of the call belong to the communicator until `wait` returns.
    """

    @abstractmethod
    def done(self) -> bool:
        """Not blocking: whether `wait` would return at once (or raise)."""

    @abstractmethod
    def wait(self, timeout_s: float | None = None) -> R_co:
        """Blocking until the call is done; returns its result or raises what it raised. On CUDA the current stream waits instead of
        the host.
        """


def not_done(call: object, timeout_s: float | None) -> NotDone:
    """Makes the error of a wait whose own time limit has passed."""
    return NotDone(f"{call} is not done after {timeout_s:g} s; wait again, or find out why another rank is late")


class SubmittedWork(Work[T]):
    """A call that the helper thread runs."""

    def __init__(self, body: Callable[[], T]) -> None:
        self._body = body
        self._finished = threading.Event()
        self._result: list[T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        """On the helper thread: runs the call and keeps its result or error for `wait`."""
        try:
            self._result.append(self._body())
        except BaseException as error:  # noqa: BLE001 - carried over to the thread that waits
            self._error = error
        self._finished.set()

    def done(self) -> bool:
        return self._finished.is_set()

    def wait(self, timeout_s: float | None = None) -> T:
        if not self._finished.wait(timeout_s):
            raise not_done("the started call", timeout_s)
        if self._error is not None:
            raise self._error
        return self._result[0]


class HelperThread:
    """The helper thread of one communicator; it exists only once a call was started."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[SubmittedWork[object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._newest: SubmittedWork[object] | None = None

    @property
    def busy(self) -> bool:
        """Whether a started call is still running, so that a blocking one must queue behind it."""
        return self._newest is not None and not self._newest.done()

    @property
    def is_current_thread(self) -> bool:
        """Whether the caller is the helper thread itself."""
        return threading.current_thread() is self._thread

    def submit(self, body: Callable[[], T]) -> Work[T]:
        """Local, not blocking: queues a call behind those before it and returns its work. Starts the thread if need be."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
            self._thread.start()
        work = SubmittedWork(body)
        self._newest = work  # type: ignore[assignment]
        self._queue.put(work)  # type: ignore[arg-type]
        return work

    def close(self, timeout_s: float = 5.0) -> None:
        """Lets the helper thread finish what it runs; a call that hangs ends with the process."""
        if self._thread is not None and not self.is_current_thread:
            self._queue.put(None)
            self._thread.join(timeout_s)
            self._thread = None

    def _loop(self) -> None:
        """Body of the thread: runs the queued calls, one after another, until it is closed."""
        while (work := self._queue.get()) is not None:
            work.run()


class FinishedWork(Work[T]):
    """A call that was done when it was started."""

    def __init__(self, result: T) -> None:
        self._result = result

    def done(self) -> bool:
        return True

    def wait(self, timeout_s: float | None = None) -> T:  # noqa: ARG002 - there is nothing to wait for
        return self._result
