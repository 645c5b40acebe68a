"""Events that a run sends to its observers. Plain values, so that observers and training need not know each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True)
class RunStarted:
    """Event: a run has started. Sent once, before the first step."""

    name: str
    out: str
    """The run directory."""
    num_workers: int
    """Number of workers at the beginning; with some algorithms workers may join and leave."""
    rank: int
    engine: str
    device: str
    global_batch: int
    num_epochs: int
    steps_per_epoch: int
    num_samples: int
    num_parameters: int
    first_step: int = 0
    """More than 0 where the run resumes from a checkpoint of an earlier attempt."""
    first_epoch: int = 0
    monitor: str | None = None
    """The metric that says which epoch is best, e.g. "val_accuracy"."""
    num_servers: int = 0
    target: tuple[str, float] | None = None
    """Metric and value that the run shall reach, e.g. ("val_accuracy", 0.99)."""


class StepDone(NamedTuple):
    """Event: a step is done. Sent after every step; observers choose which they use."""

    step: int
    """Counted from 0 over the whole run."""
    epoch: int
    step_in_epoch: int
    loss: float
    """Exact mean over the global batch."""
    lr: float
    num_samples: int
    """Number of samples in the global batch."""
    wall_s: float
    """Since the run started."""
    data_wait_s: float
    """Seconds that this step waited for its data."""
    so_far: Callable[[], Mapping[str, float]] = dict
    """Computed only when asked, as most steps are not shown."""

    @property
    def sums(self) -> Mapping[str, float]:
        """Returns the metrics over this epoch so far, e.g. accuracy."""
        return self.so_far()


@dataclass(frozen=True)
class EpochDone:
    """Event: an epoch is done. Sent when its validation is over."""

    epoch: int
    step: int
    """Steps done so far."""
    metrics: Mapping[str, float]
    """loss, accuracy, val_loss, val_accuracy, ..."""
    lr: float
    samples_per_s: float
    """Samples per second of training, validation not counted."""
    wall_s: float
    data_wait_s: float
    """Waited for data in this epoch."""
    is_best: bool = False
    weights: str = ""
    """A short hash of the weights, so that two runs can be compared by eye."""


@dataclass(frozen=True)
class RunEnded:
    """Event: a run has ended. Sent once, after everything is written."""

    summary: Mapping[str, Any]
    reason: str
    """finished, target reached, stopped early, ..."""


class Observer:
    """Base of observers, which receive the events of a run and change nothing. Every method is local, quick and optional."""

    def started(self, event: RunStarted) -> None:
        """Called once at the start of an attempt, also when a run resumes."""

    def step(self, event: StepDone) -> None:
        """Called after each step."""

    def evaluating(self, done: int, total: int) -> None:
        """Called with the number of batches of a validation that are done."""

    def epoch(self, event: EpochDone) -> None:
        """Called after each epoch."""

    def saving(self) -> None:
        """Called before the state is saved. An attempt that resumes from it does not repeat the events so far."""

    def say(self, text: str) -> None:
        """Called with a line that a user should see, e.g. a warning."""

    def ended(self, event: RunEnded) -> None:
        """Called at the end of a run, with its summary and the reason."""

    def close(self) -> None:
        """Closes files and threads; also called when a run fails, with or without `ended`."""


@dataclass
class Spans:
    """A record of what this rank did when: (kind, name, begin, end) in nanoseconds of `time.perf_counter_ns`.

    Kinds are compute, communication, data and save. Recorded only with `--timeline`."""

    found: list[tuple[str, str, int, int]] = field(default_factory=list)

    def add(self, kind: str, name: str, begin_ns: int, end_ns: int) -> None:
        """Adds one span; times in nanoseconds."""
        self.found.append((kind, name, begin_ns, end_ns))
