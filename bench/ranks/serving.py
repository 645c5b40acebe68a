"""What every rank of an exchange contender can do. Rank 0 is the server: it adds what it gets to its centre, and answers that."""

from __future__ import annotations

import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

GO_ON, STOP = 0.0, 1.0
"""What the first element of an answer tells a worker when it calls until it is stopped."""


class Ends(ABC):
    """One rank's end of an exchange of vectors of one length."""

    @abstractmethod
    def call(self, vector: Tensor) -> Tensor:
        """Worker, blocking: one round trip."""

    @abstractmethod
    def receive(self) -> tuple[int, Tensor]:
        """Server, blocking: who called, by a number from 0 on, and its vector."""

    @abstractmethod
    def answer(self, worker: int, centre: Tensor) -> None:
        """Server: to a worker that has called."""

    @abstractmethod
    def close(self) -> None: ...


class Serving:
    """One rank. `opened(numel)` is collective and gives its end and the memory for a worker's vector."""

    def __init__(self, rank: int, size: int, opened: Callable[[int], tuple[Ends, Tensor]]) -> None:
        self._rank, self._num_workers = rank, size - 1
        self._opened = opened
        self._held: tuple[Ends, Tensor] | None = None
        self._centre = torch.empty(0)

    def actions(self) -> dict[str, Callable[..., Any]]:
        return {"prepare": self.prepare, "verify": self.verify, "time": self.time, "share": self.share, "drop": self.drop}

    def prepare(self, num_bytes: int) -> None:
        """Collective: an exchange for this size, every page of its vectors touched."""
        self.drop()
        self._held = self._opened(num_bytes // 4)
        self._held[1].zero_()
        self._centre = torch.zeros(num_bytes // 4 if self._rank == 0 else 0)

    def verify(self) -> None:
        """Collective: refuse a wrong sum. All call, and are answered when the last has. Whole numbers are exact in float32."""
        ends, vector = self._ends()
        pattern = torch.arange(vector.numel(), dtype=torch.float32) % 1000
        if self._rank == 0:
            self._centre.zero_()
            self._answer_all_at_once(ends)
            self._centre.zero_()
            return
        vector.copy_(pattern + self._rank)
        total = pattern * self._num_workers + self._num_workers * (self._num_workers + 1) / 2
        if not torch.equal(ends.call(vector), total):
            raise ArithmeticError(f"rank {self._rank}: the centre that came back is not the sum of all vectors")
        vector.zero_()

    def time(self, num_calls: int) -> list[float]:
        """Collective: microseconds for each call at the server, when all workers call without a pause: what one worker's calls
        took, divided by the calls that were served meanwhile. All begin at once, after a call that is not timed."""
        ends, vector = self._ends()
        now = time.perf_counter
        gc.disable()
        if self._rank == 0:
            self._answer_all_at_once(ends)
            for _ in range(self._num_workers * num_calls):
                self._serve(ends)
            took_s = 0.0
        else:
            ends.call(vector)
            start = now()
            for _ in range(num_calls):
                ends.call(vector)
            took_s = now() - start
        gc.enable()
        return [round(took_s * 1e6 / (self._num_workers * num_calls), 2)]

    def share(self, seconds: float) -> list[int]:
        """Collective: all workers call for so long; the server says how often each was served."""
        ends, vector = self._ends()
        if self._rank > 0:
            while float(ends.call(vector)[0]) != STOP:
                vector[0] = GO_ON  # the answer may lie there
            vector.zero_()
            return []
        served = [0] * self._num_workers
        self._answer_all_at_once(ends)
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            served[self._serve(ends)] += 1
        self._centre[0] = STOP
        for _ in range(self._num_workers):
            self._serve(ends)
        self._centre[0] = GO_ON
        return served

    def drop(self) -> None:
        """Collective: give it all back."""
        if self._held is not None:
            self._held[0].close()
            self._held = None
        gc.collect()

    def _serve(self, ends: Ends) -> int:
        worker, vector = ends.receive()
        self._centre.add_(vector)
        ends.answer(worker, self._centre)
        return worker

    def _answer_all_at_once(self, ends: Ends) -> None:
        workers = []
        for _ in range(self._num_workers):
            worker, vector = ends.receive()
            self._centre.add_(vector)
            workers.append(worker)
        for worker in workers:
            ends.answer(worker, self._centre)

    def _ends(self) -> tuple[Ends, Tensor]:
        assert self._held is not None, "prepare comes first"
        return self._held
