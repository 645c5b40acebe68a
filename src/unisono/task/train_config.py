"""The configuration of one run: plain values from the command line or from `un.train`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unisono.errors import UsageError
from unisono.task.durations import DURATION_FORMS, parse_duration
from unisono.task.options import check, option
from unisono.task.task import EXPERIMENT

RESUME = "stop and resume"
SHOWN = "what is shown"
MACHINE = "the machine"
WITHOUT_SERVER = "allreduce, local_sgd, post_local_sgd, slowmo or diloco"
WITH_SERVER = "downpour, easgd, gem or parameter_server"
"""Names for messages, written here because the algorithms load PyTorch; a test compares them."""
ON_NAN = ("stop", "skip")
AUTO_OFF = ("auto", "off")
MAX_THREADS = 4096
"""Limit for one worker; more than any machine has, and fewer than PyTorch crashes with."""


def threads_option(but: str = "", **facts: Any) -> Any:
    """Declares the option --threads of a command that has workers."""
    words = f"threads of each worker (default: the CPUs divided by the workers{but})"
    return option(None, words, "T", least=1, most=MAX_THREADS, **facts)


def time_limit_option(flag: str, help: str, **facts: Any) -> Any:
    """Declares an option that is a time limit: text as people and SLURM write it, seconds in the configuration."""
    return option(None, help, "T", convert=lambda given: parse_duration(str(given), flag), flag=flag, **facts)


@dataclass(frozen=True)
class TrainConfig:
    """The options of one training. What belongs to the experiment itself stands in the task, and here only as a change to it."""

    task_file: str
    """The file with the task; also a pickled task from a notebook (.cloudpickle)."""
    changes: Mapping[str, Any] = option(
        {},
        "change a setting: model.NAME, data.NAME, optimizer.NAME, schedule.NAME, loss.NAME, algorithm.NAME, simulate.NAME or a "
        "field of the task",
        "NAME=VALUE",
        group=EXPERIMENT,
        flag="--set",
        example="model.width=128",
    )
    algorithm: str = option(
        "allreduce",
        f"training algorithm: {WITHOUT_SERVER}; with a server: {WITH_SERVER}; or your own: a module or a file",
        "A",
    )
    group: int | None = option(
        None, "processes that form one worker, with algorithms whose workers learn by themselves between exchanges", "G", least=1
    )
    servers: int | None = option(None, f"processes that share the work of the server (default 1; {WITH_SERVER})", "K", least=1)
    simulate: int | None = option(None, f"run N virtual workers in one process, on a virtual clock ({WITH_SERVER})", "N", least=1)
    elastic: int | None = option(
        None,
        f"start a server and W workers; workers may join, leave or die at any time ({WITH_SERVER}; needs ZeroMQ)",
        "W",
        least=1,
    )
    replay: str | None = option(
        None, "repeat an asynchronous run bit for bit, in its recorded order (an --elastic run: in one process)", "RUN"
    )
    local_batch: int | None = option(
        None, "samples of one worker in a step, in place of --global-batch: the batch grows with the workers", "B", least=1
    )
    init_from: str | None = option(None, "start from the weights in a file (.safetensors, .pt)", "FILE")

    out: str | None = option(
        None, "run directory (default a new one: runs/NAME, runs/NAME-2, ...); an existing run is resumed", "DIR", group=RESUME
    )
    fresh: bool = option(False, "start over; an existing run is moved to DIR/earlier-N")
    accept_changes: bool = option(False, "resume although the task or its settings have changed")
    checkpoint_every: str = option(
        "10m",
        "how often to save a checkpoint: in steps (500), epochs (2epochs) or time (30s, 10m, 1h); never: only at the end",
        "E",
        convert=str,
    )
    keep: int = option(3, "number of checkpoints to keep", "K", least=1)
    time_limit_s: float | None = time_limit_option("--time-limit", f"stop and save before this time is over: {DURATION_FORMS}")
    max_steps: int | None = option(None, "stop after K steps of the run; with a larger K the same command resumes it", "K", least=1)

    on_nan: str = option(
        "stop", "what to do when a loss is not finite: stop, or skip the update", "WHAT", group=SHOWN, choices=ON_NAN
    )
    log_every: int = option(50, "steps between lines of metrics.jsonl", "K", least=1)
    monitor: bool = option(
        False, "record CPU, GPU and memory of each worker, and its waits for the GPU (--best chooses the metric that decides)"
    )
    timeline: bool = option(False, "write one trace of all ranks for Perfetto or Chrome")
    tensorboard: bool = option(False, "also write the metrics for TensorBoard")
    hash_every: int | None = option(None, "write the hash of every weight tensor to hashes.jsonl, every K steps", "K", least=1)
    quiet: bool = option(False, "print nothing but errors and the last line", is_keyword=False)

    device: str = option("auto", "auto, cpu, or cuda where several workers share a GPU", "D", group=MACHINE)
    capture: str = option(
        "auto", "on a GPU, record each training step as one CUDA graph and repeat it: auto, or off", "C", choices=AUTO_OFF
    )
    resident: str = option("auto", "on a GPU, keep data there that fit: auto, or off", "R", choices=AUTO_OFF)
    threads: int | None = threads_option("; 1 with --shards")
    host: str | None = option(
        None, "with --elastic: address at which workers reach the server (default: that of this node)", "ADDRESS"
    )
    silence_s: float = option(
        10.0, "with --elastic: seconds without a sign of life after which a worker counts as dead", "S", flag="--silence", above=0
    )

    division: Mapping[str, Any] | None = None
    """How the data are divided where not as the task says (`data/fold_data.py`): one of several folds, or all for training."""
    averages: Mapping[str, str] | None = None
    """How metrics average whose names do not say it (`task/averages.py`), in the trials of a study; None: as the outputs say, or
    as the run that is resumed has it."""
    command: tuple[str, ...] = ()
    """The command that started it, for the record."""

    @property
    def comes_and_goes(self) -> bool:
        """Whether workers are processes that join and leave; where such a run is replayed, they are virtual."""
        return self.elastic is not None and self.replay is None

    def __post_init__(self) -> None:
        given: Any = self.monitor
        if isinstance(given, str):
            raise UsageError(monitor_remedy(given))
        check(self)
        if self.comes_and_goes and (self.out is None or not self.task_file):
            raise UsageError("--elastic needs --out and a task file, so that workers can find the run and join it")
        if self.fresh and self.accept_changes:
            raise UsageError("--fresh starts over and --accept-changes resumes; give one of them")
        if self.out is not None and not self.out.strip():
            raise UsageError("--out is empty; name a directory, or leave it out for runs/NAME")
        if self.local_batch is not None and "global_batch" in self.changes:
            raise UsageError("--local-batch and --global-batch both set the batch; give one of them")


def monitor_remedy(metric: str) -> str:
    """Pure: returns the remedy for a user who takes --monitor for the option that names a metric."""
    return f"--monitor records CPU, GPU and memory; to choose the metric that decides which epoch is best, use --best {metric}"
