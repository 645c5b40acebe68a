"""The MPI library in one process: the lock of its calls, the progress of messages, and how it is finalized."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from unisono.comm.polling import Backoff
from unisono.comm.watch import Watch

LONGEST_PAUSE_S = 0.5e-3
"""Longest pause between two tests of a call that a thread waits for."""
PROGRESS_S = 0.5e-3
"""Interval at which MPI is called for messages that no thread waits for."""
LINGER_S = 0.1
"""Time that the thread of these calls stays when there are no such messages."""


class Message(Protocol):
    """The interface of a message in flight that the library needs."""

    watch: Watch

    def close(self) -> None:
        """Local: called when its communicator is closed."""


class Library:
    """The MPI library; there is one for a process. `mpi` is the module mpi4py.MPI."""

    def __init__(self, mpi: Any, is_ours: bool) -> None:
        self.mpi = mpi
        self.failed = False
        """Whether a call was left to itself: from then on MPI can do nothing that needs all ranks, least of all end."""
        self.num_open = 0
        """Communicators of the whole job that are in use."""
        self.any_thread: bool = mpi.Query_thread() == mpi.THREAD_MULTIPLE
        """Whether a thread may block in MPI while another calls it."""
        self.call_lock: AbstractContextManager[object] = nullcontext() if self.any_thread else threading.Lock()
        """Held for each call where MPI allows one thread at a time."""
        self._is_ours = is_ours
        self._lock = threading.Lock()
        self._messages: set[Message] = set()
        self._thread: threading.Thread | None = None
        self._ending = False
        self._kept: list[object] = []

    def wait(self, requests: Sequence[Any], watch: Watch, spin_s: float, longest_s: float) -> None:
        """Blocking until all requests are done, with growing pauses; raises what `watch` raises."""
        backoff = Backoff(spin_s, longest_s)
        while not self._all_done(requests):
            if backoff.pause():
                watch.poll()

    def abandon(self, requests: Sequence[object], bufs: Sequence[object]) -> None:
        """Local: abandons these requests. MPI may still write to the buffers, so they are kept until the process ends."""
        self.failed = True
        self._kept.extend((requests, bufs))

    def begin_message(self, message: Message) -> None:
        """Local: notes a message in flight, and keeps it and its buffer alive until `end_message`. MPI moves nothing while
        nobody calls it, so a thread does."""
        with self._lock:
            self._messages.add(message)
            if self._thread is None:
                self._thread = threading.Thread(target=self._make_progress, name="unisono-mpi-progress", daemon=True)
                self._thread.start()

    def end_message(self, message: Message) -> None:
        """Local: removes a message that is done."""
        with self._lock:
            self._messages.discard(message)

    def close_messages(self, comm: object) -> None:
        """Local: closes the messages of a communicator that ends: receives without a message are cancelled."""
        with self._lock:
            open_ones = [message for message in self._messages if message.watch.comm is comm]
        for message in open_ones:
            message.close()

    def end(self) -> None:
        """Finalizes MPI at the exit of the process, unless that would wait for a rank that never comes."""
        self._ending = True
        thread = self._thread
        if thread is not None:
            thread.join()
        if self.mpi.Is_finalized():
            return
        if self.num_open == 0 and not self.failed:
            self.mpi.Finalize()
        elif not self._is_ours:
            # mpi4py ends MPI at exit if it was imported before us, and that would hang; the launcher must end the rest.
            self.mpi.COMM_WORLD.Abort(1)

    def _all_done(self, requests: Sequence[Any]) -> bool:
        """Not blocking: whether all requests are done."""
        with self.call_lock:
            return bool(self.mpi.Request.Testall(requests))

    def _make_progress(self) -> None:
        """Body of the thread that lets MPI move messages in flight; ends when there were none for a while."""
        num_idle = 0
        while not self._ending:
            time.sleep(PROGRESS_S)
            with self._lock:
                num_idle = 0 if self._messages else num_idle + 1
                if num_idle * PROGRESS_S > LINGER_S:
                    self._thread = None
                    return
            if not num_idle:
                with self.call_lock:
                    self.mpi.COMM_SELF.Iprobe()
