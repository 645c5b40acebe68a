"""What one run is asked to do: plain values from the command line or from `un.train`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unisono.errors import UsageError

ON_NAN = ("stop", "skip")
MAX_THREADS = 4096
"""Of one worker; more than any machine has, and fewer than PyTorch dies of."""


@dataclass(frozen=True)
class TrainConfig:
    """One training. What belongs to the experiment itself stands in the task, and here only as a change to it."""

    task_file: str
    """The file with the task; also a pickled task from a notebook (.cloudpickle)."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Name -> value of `--set`, e.g. {"model.width": 128, "lr": 0.1}."""
    algorithm: str = "allreduce"
    group: int | None = None
    """Processes that form one worker of an algorithm whose workers learn by themselves."""
    servers: int | None = None
    """Processes that share the centre of an algorithm with one."""
    simulate: int | None = None
    """So many virtual workers in this process, on a virtual clock."""
    elastic: int | None = None
    """Workers that divide the batch, where workers are processes that come and go (ZeroMQ)."""
    host: str | None = None
    """The address of the server for workers that come and go; None is this machine alone."""
    silence_s: float = 10.0
    """After so long without a sign of life such a worker is counted as dead."""
    replay: str | None = None
    """A run whose order of calls is to be repeated."""
    local_batch: int | None = None
    """Samples of one worker in a step: the global batch grows with the workers."""
    out: str | None = None
    fresh: bool = False
    """Put aside the run that is in the directory, and start over."""
    accept_changes: bool = False
    """Go on in a run that was another experiment."""
    checkpoint_every: str = "10m"
    """As `training.saving.Every.parse` reads it."""
    keep: int = 3
    """Checkpoints."""
    time_limit_s: float | None = None
    """Since the command began: stop, and save, before that."""
    init_from: str | None = None
    on_nan: str = "stop"
    log_every: int = 50
    """Steps between lines of metrics.jsonl."""
    monitor: bool = False
    """Record the load and memory of each worker."""
    timeline: bool = False
    tensorboard: bool = False
    hash_every: int | None = None
    """Steps between rows of hashes.jsonl, which has the hash of every tensor; None for none."""
    max_steps: int | None = None
    """Stop after so many steps of the whole run, as if told to."""
    device: str = "auto"
    """Where the workers compute: auto, cpu, cuda or cuda:NUMBER."""
    threads: int | None = None
    """Of each worker; None takes what the launcher gave, or divides the CPUs."""
    division: Mapping[str, Any] | None = None
    """Of the task's data, where it is not the task's own (`data/folded.py`): one of several folds, or all for training."""
    quiet: bool = False
    command: tuple[str, ...] = ()
    """How it was started, for the record."""

    @property
    def comes_and_goes(self) -> bool:
        """Whether workers are processes that join and leave; where such a run is repeated, they are virtual."""
        return self.elastic is not None and self.replay is None

    def __post_init__(self) -> None:
        if self.on_nan not in ON_NAN:
            raise UsageError(f"--on-nan must be one of {', '.join(ON_NAN)}; received {self.on_nan!r}")
        for option, value in (
            ("--group", self.group),
            ("--servers", self.servers),
            ("--simulate", self.simulate),
            ("--elastic", self.elastic),
            ("--local-batch", self.local_batch),
            ("--log-every", self.log_every),
            ("--keep", self.keep),
            ("--threads", self.threads),
            ("--hash-every", self.hash_every),
            ("--max-steps", self.max_steps),
        ):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise UsageError(f"{option} must be a whole number of at least 1; received {value!r}")
        if not self.silence_s > 0:
            raise UsageError(f"--silence must be a number of seconds above 0; received {self.silence_s!r}")
        if self.comes_and_goes and (self.out is None or not self.task_file):
            raise UsageError("--elastic needs --out and a task file, so that workers can find the run and join it")
        for name in ("monitor", "timeline", "tensorboard", "quiet", "fresh", "accept_changes"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} of a run must be true or false; received {getattr(self, name)!r}")
        if self.threads is not None and self.threads > MAX_THREADS:
            raise UsageError(f"--threads must be at most {MAX_THREADS}; received {self.threads}")
        if self.fresh and self.accept_changes:
            raise UsageError("--fresh starts over and --accept-changes goes on; give one of them")
        if self.out is not None and not self.out.strip():
            raise UsageError("--out is empty; name a directory, or leave it out for runs/NAME")
        if self.local_batch is not None and "global_batch" in self.changes:
            raise UsageError("--local-batch and --global-batch say the same thing in two ways; give one of them")
