"""`un.train` and `un.tune`: train and search from Python. The verbs `unisono train` and `unisono tune` use the same code."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unisono.errors import TrainingFailed, UsageError, unknown_name
from unisono.launch.this_process import cap_instruction_set
from unisono.launch.worker_options import WorkerOptions
from unisono.start_training import TRAIN_OPTIONS, train_config, work
from unisono.task.options import keywords_of, take, takes
from unisono.task.task import Task
from unisono.task.task_file import write_pickled
from unisono.task.train_config import TrainConfig
from unisono.tuning.study.study_options import TuneConfig

if TYPE_CHECKING:
    from unisono.run import RunResult


@takes(*TRAIN_OPTIONS)
def train(
    task: Task | str | Path,
    workers: int | None = None,
    out: str | Path | None = None,
    *,
    set: Mapping[str, Any] | None = None,
    show: bool = True,
    **options: Any,
) -> RunResult:
    """Train a task, or a task file, and give its run directory and its summary.

    Collective inside a job (srun, mpirun, torchrun or `unisono run`), where every process calls it; else local, with so many
    `workers` on this machine. Blocking. An existing run in `out` resumes. `set` holds changes as on the command line:
    {"model.width": 128}. Without `show` nothing is printed but errors. A mistake raises `UsageError`, a loss that is not finite
    `TrainingFailed`.

        ended = un.train(task, workers=4, epochs=10, best="val_f1", out="runs/digits")
        ended.summary["metrics"]["val_f1"]
    """
    from unisono.cluster.resolve import current_topology
    from unisono.launch.excepthook import install_excepthook

    install_excepthook()
    given = {"workers": workers, "out": out, "set": set, "quiet": not show, **options}
    for name in options:
        if name not in (known := keywords_of(*TRAIN_OPTIONS)):
            raise unknown_name("argument of un.train", name, {*known, "show"})
    task_file = "" if isinstance(task, Task) else str(task)
    start = WorkerOptions(**take(WorkerOptions, given))
    if current_topology().launcher == "local":
        start.check_restarts(None if out is None else str(out))
        if workers is not None and workers > 1:
            return _launch_call(task, train_config(task_file, given), start)
    cap_instruction_set(start.portable)
    return work(lambda: train_config(task_file, given), start, task if isinstance(task, Task) else None)


def _launch_call(task: Task | str | Path, config: TrainConfig, start: WorkerOptions) -> RunResult:
    """Local, blocking: trains on launched workers. The task is passed to them in a file, functions of a notebook by value."""
    from unisono.launch.launch import launch
    from unisono.run import RunResult

    with tempfile.TemporaryDirectory(prefix="unisono-") as folder:
        told = Path(folder) / "out.json"
        file = write_pickled(Path(folder), task, config, str(told))
        job = task.name if isinstance(task, Task) else Path(task).stem
        code = launch(start.launch_config(("-m", "unisono.cli", "train", str(file)), job))
        if not told.exists():
            if code == 128 + signal.SIGINT:
                raise KeyboardInterrupt
            raise TrainingFailed(f"the workers ended with exit code {code}; what they printed says why")
        news = json.loads(told.read_text())
    if "mistake" in news:
        raise UsageError(news["mistake"])
    if "failure" in news:
        raise TrainingFailed(news["failure"])
    out = Path(news["out"])
    return RunResult(out, json.loads((out / "summary.json").read_text()))


@dataclass(frozen=True)
class Tuned:
    """The result of `un.tune`: the best trial and the study."""

    out: Path
    best_params: Mapping[str, Any]
    best_values: Sequence[float]
    best_number: int

    @property
    def best_value(self) -> float:
        return self.best_values[0]

    def to_optuna(self, storage: str | None = None) -> Any:
        """Local, blocking: converts the whole study to one of Optuna, for its plots and its dashboard."""
        from unisono.tuning.study.export import to_optuna

        return to_optuna(self.out, storage)


DIRECTIONS: Mapping[str, str] = {"minimize": "min", "maximize": "max"}


@takes(TuneConfig)
def tune(
    objective: Callable[[Any], Any],
    trials: int = 100,
    blocks: int | None = None,
    out: str | Path | None = None,
    *,
    direction: str | Sequence[str] = "minimize",
    show: bool = True,
    **options: Any,
) -> Tuned:
    """Search with an objective of Optuna's, unchanged, `blocks` trials at a time, and give the best trial.

    Collective inside a job, else local; blocking. Every trial runs in a process of its own, so that one that fails, hangs
    (`trial_limit`) or dies ends nothing but itself. The folder `out` keeps what is finished; the same call resumes it.
    `direction` is minimize or maximize, or one of these for each value of the objective. Raises `TrainingFailed` where the study
    was stopped before its end.

        found = un.tune(objective, trials=100, blocks=4, out="studies/x")
        found.best_params, found.best_value
    """
    from unisono.cluster.terminal import terminal
    from unisono.launch.excepthook import install_excepthook
    from unisono.tuning.study.result import best_of
    from unisono.tuning.tune_job import run_tune_job
    from unisono.tuning.workers.objective import write_objective

    install_excepthook()
    for name in options:
        if name not in (known := keywords_of(TuneConfig)):
            raise unknown_name("argument of un.tune", name, {*known, "objective", "blocks", "direction", "show"})
    directions = [direction] if isinstance(direction, str) else list(direction)
    for one in directions:
        if one not in DIRECTIONS:
            raise UsageError(f"direction must be minimize or maximize; received {one!r}")
    folder = Path(out or f"studies/{getattr(objective, '__name__', 'objective')}")
    file = write_objective(objective, folder)
    names = ["value"] if len(directions) == 1 else [f"value_{number}" for number in range(len(directions))]
    config = TuneConfig(
        out=str(folder),
        order={"kind": "objective", "file": str(file)},
        trials=trials,
        metrics=tuple(f"{name}:{DIRECTIONS[one]}" for name, one in zip(names, directions, strict=True)),
        quiet=not show,
        **take(TuneConfig, options),
    )
    code = run_tune_job(config, blocks, terminal().columns if show else None)
    if code:
        raise TrainingFailed(f"the study was stopped before its end; run the same call to resume {folder}")
    _, best = best_of(folder)
    assert best.result is not None
    return Tuned(folder, dict(best.values or {}), best.result.values, best.number)
