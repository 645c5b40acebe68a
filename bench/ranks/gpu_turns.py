"""Turns of a training whose steps are counted: it trains until its turn is over, and waits for the next one.

The training runs in the main thread, as its users run it; a second thread sits on the conductor's socket. What a turn took is
known when the device has done all that was asked of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import SimpleQueue
from time import perf_counter, thread_time
from typing import Any, NamedTuple


class Over(BaseException):
    """Nobody asks for more steps. Not an `Exception`, so that no framework takes it for a failure that it can handle."""


class Segment(NamedTuple):
    """Some steps."""

    wall_s: float
    cpu_s: float
    """Of the thread that trains, its wait for the device included where the driver spins."""


class StepTurns:
    """Steps on demand. `step_done` belongs to the thread that trains, `prepare` and `take` to the one that asks."""

    def __init__(self, synchronise: Callable[[], None], release: Callable[[], None]) -> None:
        self._asked: SimpleQueue[list[int] | None] = SimpleQueue()
        self._given: SimpleQueue[list[Segment] | Exception] = SimpleQueue()
        self._synchronise, self._release = synchronise, release
        self._lengths: list[int] = []
        self._done: list[Segment] = []
        self._left, self._since, self._cpu_since = 0, 0.0, 0.0

    def prepare(self) -> None:
        """Blocking: what comes before the first step; raises what it raised."""
        self.take()

    def take(self, *lengths: int) -> list[Segment]:
        """Blocking: so many steps, and then so many, ...; raises what the training raised."""
        self._asked.put(list(lengths))
        given = self._given.get()
        if isinstance(given, Exception):
            raise given
        return given

    def run(self, prepare: Callable[[], object], train: Callable[[Callable[[], None]], object]) -> None:
        """Blocking: `train(step_done)` calls `step_done` after every step and does not return by itself."""
        try:
            if self._asked.get() is None:
                return
            prepare()
            self._given.put([])
            self._wait()
            train(self.step_done)
            raise RuntimeError("the training ended by itself")
        except Over:
            return
        except Exception as error:  # noqa: BLE001 -- whoever asked for the step shows it
            self._given.put(error)

    def step_done(self) -> None:
        """Blocking where the turn is over, until the next one. Raises `Over` if there is none."""
        self._left -= 1
        if not self._left:
            self._end_segment()

    def end(self) -> None:
        """Local: the training is over when its turn is."""
        self._asked.put(None)

    def _end_segment(self) -> None:
        self._synchronise()
        self._done.append(Segment(perf_counter() - self._since, thread_time() - self._cpu_since))
        if self._lengths:
            self._begin_segment()
        else:
            self._release()
            self._given.put(self._done)
            self._wait()

    def _wait(self) -> None:
        asked = self._asked.get()
        if asked is None:
            raise Over
        self._lengths, self._done = asked, []
        self._begin_segment()

    def _begin_segment(self) -> None:
        self._left = self._lengths.pop(0)
        self._since, self._cpu_since = perf_counter(), thread_time()


class Loop(ABC):
    """A way to train, in a rank of its own. Local."""

    lead_steps = 3
    """Not timed at the beginning of each turn: batches that were read ahead while it waited cost nothing."""
    releases = False
    """Whether it gives memory back after its turn, so that more contenders fit on a GPU."""
    chosen = ""
    """What it found to be best, in words."""

    def prepare(self) -> None:  # noqa: B027 - some have nothing to prepare
        """Blocking: all that can be done while others use the GPU."""

    @abstractmethod
    def train(self, step_done: Callable[[], None]) -> None:
        """Blocking: does not return by itself."""

    @abstractmethod
    def loss(self) -> float:
        """Local, between turns: of the last step."""


def answer_of(loop: Loop, turns: StepTurns, memory_gib: Callable[[], float]) -> dict[str, Callable[..., Any]]:
    """Local: what the conductor may ask of a rank."""
    known = {"rate": 1.0, "cpu_us": 0.0}

    def warm(seconds: float) -> list[float]:
        first = turns.take(1)[0].wall_s
        turns.take(10)
        num_steps = 4
        while (wall_s := turns.take(num_steps)[0].wall_s) < seconds / 4:
            num_steps *= 2
        known["rate"] = num_steps / wall_s
        return [first]

    def time(seconds: float, num_calls: int) -> list[float]:
        lead = max(loop.lead_steps, round(0.1 * seconds * known["rate"]))
        num_steps = max(1, round(known["rate"] * seconds / num_calls))
        found = turns.take(lead, *[num_steps] * num_calls)[1:]
        known["rate"] = num_calls * num_steps / sum(segment.wall_s for segment in found)
        known["cpu_us"] = sum(segment.cpu_s for segment in found) / (num_calls * num_steps) * 1e6
        return [segment.wall_s / num_steps * 1e6 for segment in found]

    def state() -> dict[str, Any]:
        return {"loss": loop.loss(), "cpu_us": known["cpu_us"], "memory_gib": memory_gib(), "chosen": loop.chosen}

    return {"prepare": turns.prepare, "warm": warm, "time": time, "state": state}
