"""When the state of a training is saved. All ranks agree on the step, rank 0 copies the state, and a thread writes the copy.

The copy is all that the training waits for. A write that fails is told and tried again; the training goes on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic, perf_counter_ns
from typing import Any

from torch import Tensor

from unisono.algorithms.base import Algorithm
from unisono.comm.base import Communicator
from unisono.errors import UsageError
from unisono.events import Spans
from unisono.model.base import ModelAdapter
from unisono.training.background import BackgroundWriter
from unisono.training.checkpoint import Snapshot
from unisono.training.staging import Staging
from unisono.training.state import TRAINER, gather_state, state_of_replica

RETRY_S = 60.0
"""After a write that failed the next one comes no later than this."""
LONGEST_WAIT_S = 60.0
"""How long a save waits for the one before; the other workers wait too, and not for ever."""
FORMS = re.compile(r"(\d{1,12})\s*(?:(steps?)|(epochs?)|([smh]))?")
UNIT_S: Mapping[str, float] = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Every:
    """How often: after so many steps, or epochs, or seconds; or never, but for the end."""

    steps: int | None = None
    epochs: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str) -> Every:
        """Pure: '500' or '500 steps', '2 epochs', '30s', '10m', '1h', 'never'."""
        if text.strip() == "never":
            return cls()
        found = FORMS.fullmatch(text.strip())
        if found is None or not int(found[1]):
            raise UsageError(
                f"--checkpoint-every must be like 500steps (or 500), 2epochs, 30s, 10m, 1h, or never; received {text!r}"
            )
        number = int(found[1])
        if found[4]:
            return cls(seconds=number * UNIT_S[found[4]])
        return cls(epochs=number) if found[3] else cls(steps=number)


@dataclass
class Best:
    """The best weights so far, in host memory of rank 0."""

    weights: dict[str, Tensor] = field(default_factory=dict)
    step: int = 0


@dataclass
class Saving:
    """One rank's part in the saves of a run. Only rank 0 has a writer."""

    comm: Communicator
    adapter: ModelAdapter
    algorithm: Algorithm
    every: Every
    writer: BackgroundWriter | None
    best: Best
    say: Callable[[str], None]
    spans: Spans | None = None
    blocked_s: list[float] = field(default_factory=list)
    """How long the training waited for each save."""

    num_bytes: int = 0
    """Of the state, once an optimiser has all of its own."""

    def __post_init__(self) -> None:
        self._staging = Staging()
        self._num_looks = 0
        self._asked = False
        self._num_told = 0
        self._next_s = monotonic() + (self.every.seconds or float("inf"))

    def wishes(self) -> bool:
        """Local; cheap enough for every step: whether it is time by the clock, which only rank 0 reads. True once for each save."""
        if self.writer is None or self._asked or self.writer.busy:
            return False
        self._look_back()
        self._num_looks += 1
        if self._num_looks == 2:  # after the first step an optimiser has all its state
            tensors = state_of_replica(self.adapter, self.algorithm)[1]
            num_states = self.comm.size // self.algorithm.group if self.algorithm.replicas_differ else 1
            self.num_bytes = num_states * sum(tensor.nbytes for tensor in tensors.values())
            self._staging.prepare(tensors)
        self._asked = monotonic() >= self._next_s
        return self._asked

    def after_step(self, step: int) -> bool:
        """Pure: whether a save is due after so many steps, on all ranks alike."""
        return self.every.steps is not None and step % self.every.steps == 0

    def after_epoch(self, epoch: int) -> bool:
        """Pure: the same after so many epochs."""
        return self.every.epochs is not None and epoch % self.every.epochs == 0

    def save(self, step: int, progress: Mapping[str, Any], mid_epoch: bool, is_last: bool) -> None:
        """Collective, blocking for a copy of the state, and until an earlier save is on the disk. Where that takes very long this
        one is left out, unless it is the last."""
        began = perf_counter_ns()
        state = gather_state(self.comm, self.adapter, self.algorithm, mid_epoch)
        if self.writer is None or state is None:
            return
        self._asked = False
        self._next_s = monotonic() + (self.every.seconds or float("inf"))
        if not self.writer.wait(None if is_last else LONGEST_WAIT_S):
            self.say(f"warning: the checkpoint before is not on the disk yet; the one of step {step} is left out")
            return
        self._look_back()
        plain, tensors = state
        snapshot = Snapshot(
            step, self._staging.copy(tensors), {**plain, TRAINER: dict(progress)}, self.best.weights or None, self.best.step
        )
        self.writer.submit(snapshot)
        ended = perf_counter_ns()
        self.blocked_s.append((ended - began) * 1e-9)
        if self.spans is not None:
            self.spans.add("save", "copy of the state", began, ended)

    def finish(self) -> str | None:
        """Local, blocking: until all is written. Gives why the newest state is not on the disk; None if it is."""
        if self.writer is None:
            return None
        self.writer.close()
        return self.writer.failure

    def _look_back(self) -> None:
        """Tell of a write that failed, and come back to it soon."""
        assert self.writer is not None
        if self.writer.complaint:
            self.say(f"warning: {self.writer.complaint}")
            self.writer.complaint = ""
        if self.writer.num_failed > self._num_told:
            self._num_told = self.writer.num_failed
            self._next_s = min(self._next_s, monotonic() + RETRY_S)
            self.say(f"warning: {self.writer.failure}. No checkpoint was saved; the training goes on and tries again")
