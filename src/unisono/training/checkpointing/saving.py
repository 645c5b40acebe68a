"""Saves the state of a training. All ranks agree on the step, rank 0 copies the state, and a thread writes the copy.

The training waits only for the copy. A write that fails is reported and tried again; the training continues.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic, perf_counter_ns
from typing import Any

from torch import Tensor, nn

from unisono.algorithms.base import Algorithm
from unisono.errors import UsageError
from unisono.events import Spans
from unisono.model.base import ModelAdapter
from unisono.training.checkpointing.background_writer import BackgroundWriter
from unisono.training.checkpointing.checkpoint import CheckpointStore, Loaded, Snapshot
from unisono.training.checkpointing.host_buffers import HostBuffers
from unisono.training.checkpointing.resume import TRAINER, gather_state, state_of_replica
from unisono.training.run_folder.weights import weights_of

RETRY_S = 60.0
"""After a write that failed the next one comes no later than this."""
LONGEST_WAIT_S = 60.0
"""How long a save waits for the one before; the other workers wait too, and not for ever."""
FORMS = re.compile(r"(\d{1,12})\s*(?:(steps?)|(epochs?)|([smh]))?")
UNIT_S: Mapping[str, float] = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class SaveInterval:
    """How often a run is saved: every so many steps, epochs or seconds; or only at the end."""

    steps: int | None = None
    epochs: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str) -> SaveInterval:
        """Pure: the interval from a text: '500' or '500 steps', '2 epochs', '30s', '10m', '1h', 'never'."""
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
class BestWeights:
    """The best weights so far, in host memory of rank 0."""

    weights: dict[str, Tensor] = field(default_factory=dict)
    step: int = 0

    @classmethod
    def from_checkpoint(cls, loaded: Loaded | None) -> BestWeights:
        """Pure: the best weights in the checkpoint of an earlier attempt; empty where there are none."""
        if loaded is None or loaded.snapshot.best is None:
            return cls()
        return cls(dict(loaded.snapshot.best), int(loaded.snapshot.best_version or 0))

    def keep(self, model: nn.Module, step: int) -> None:
        """Local, blocking for a copy: keeps the weights of a model as the best so far."""
        self.weights = {name: one.detach().cpu().clone() for name, one in weights_of(model).items()}
        self.step = step

    def forget(self) -> None:
        """Local: drops the weights, as something else decides now which are best."""
        self.weights = {}


@dataclass(kw_only=True)
class Saving:
    """One rank's part in the saves of a run."""

    adapter: ModelAdapter
    algorithm: Algorithm
    interval: SaveInterval
    store: CheckpointStore | None
    """Where checkpoints go, on rank 0; None on others."""
    say: Callable[[str], None]
    spans: Spans | None = None

    def __post_init__(self) -> None:
        store = self.store
        self.comm = self.algorithm.comm
        self.writer = None if store is None else BackgroundWriter(store.checkpoints, store.made_by)
        self.best = BestWeights.from_checkpoint(None if store is None else store.loaded)
        self.blocked_s: list[float] = []
        """How long the training waited for each save."""
        self.num_bytes = 0
        """Bytes of the state, once optimisers have all of theirs."""
        self._buffers = HostBuffers()
        self._num_checks = 0
        self._is_requested = False
        self._num_reported = 0
        self._next_s = monotonic() + (self.interval.seconds or float("inf"))

    def is_due_by_clock(self) -> bool:
        """Local, cheap enough for every step: whether a save is due by the clock of rank 0. True once for each save."""
        if self.writer is None or self._is_requested or self.writer.busy:
            return False
        self._report_failures()
        self._num_checks += 1
        if self._num_checks == 2:  # after the first step an optimiser has all its state
            tensors = state_of_replica(self.adapter, self.algorithm)[1]
            num_states = self.comm.size // self.algorithm.group if self.algorithm.replicas_differ else 1
            self.num_bytes = num_states * sum(tensor.nbytes for tensor in tensors.values())
            self._buffers.prepare(tensors)
        self._is_requested = monotonic() >= self._next_s
        return self._is_requested

    def after_step(self, step: int) -> bool:
        """Pure: whether a save is due after `step` steps; the same on all ranks."""
        return self.interval.steps is not None and step % self.interval.steps == 0

    def after_epoch(self, epoch: int) -> bool:
        """Pure: whether a save is due after `epoch` epochs; the same on all ranks."""
        return self.interval.epochs is not None and epoch % self.interval.epochs == 0

    def save(self, step: int, progress: Mapping[str, Any], mid_epoch: bool, is_last: bool) -> None:
        """Collective: saves the state. Blocks for a copy of it, and until an earlier save is on the disk; if that takes too long
        this save is left out, unless it is the last."""
        began = perf_counter_ns()
        state = gather_state(self.comm, self.adapter, self.algorithm, mid_epoch)
        if self.writer is None or state is None:
            return
        self._is_requested = False
        self._next_s = monotonic() + (self.interval.seconds or float("inf"))
        if not self.writer.wait(None if is_last else LONGEST_WAIT_S):
            self.say(f"warning: the previous checkpoint is still being written; that of step {step} is skipped")
            return
        self._report_failures()
        plain, tensors = state
        snapshot = Snapshot(
            step, self._buffers.copy(tensors), {**plain, TRAINER: dict(progress)}, self.best.weights or None, self.best.step
        )
        self.writer.submit(snapshot)
        ended = perf_counter_ns()
        self.blocked_s.append((ended - began) * 1e-9)
        if self.spans is not None:
            self.spans.add("save", "copy of the state", began, ended)

    def finish(self) -> str | None:
        """Local, blocking: waits until everything is written. Returns why the newest state is not on the disk; None if it is."""
        self.close()
        return None if self.writer is None else self.writer.failure

    def close(self) -> None:
        """Local, blocking: waits until a write that was begun is on the disk, or has failed. Idempotent."""
        if self.writer is not None:
            self.writer.close()

    def _report_failures(self) -> None:
        """Reports a write that failed, and makes the next save due soon."""
        assert self.writer is not None
        if warning := self.writer.pop_warning():
            self.say(f"warning: {warning}")
        if self.writer.num_failed > self._num_reported:
            self._num_reported = self.writer.num_failed
            self._next_s = min(self._next_s, monotonic() + RETRY_S)
            self.say(f"warning: {self.writer.failure}. No checkpoint was saved; the training continues and tries again")
