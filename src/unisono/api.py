"""`un.train` and `un.tune`: train and search from Python. The verbs `unisono train` and `unisono tune` use the same code."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

from unisono.errors import TrainingFailed, UsageError, unknown_name
from unisono.launch.this_process import cap_instruction_set
from unisono.launch.worker_options import WorkerOptions
from unisono.start_training import TRAIN_OPTIONS, train_config, work
from unisono.stopping.stop_request import raise_stop
from unisono.task.options import keywords_of, options_for, takes
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
    """Trains a task and returns its run directory and its summary.

    It does what `unisono train` does. In a plain script or a notebook it starts `workers` processes on this machine; inside
    a job (srun, mpirun, torchrun, `unisono run`) every process calls it and is one worker. A run in `out` that is not
    finished resumes, with more `epochs` also one that is; with other settings it is refused. The result has `out`, the run
    directory, and `summary`, what its summary.json holds: metrics, steps, times.

    Wrong arguments and tasks raise `UsageError`. A loss that is not finite, or a started worker that dies, raises
    `TrainingFailed`, an `un.UnisonoError`. A run that is stopped saves a checkpoint, and the same call resumes it. After a time
    limit or `max_steps` the call returns with the reason "interrupted" in its summary; after Ctrl-C it raises
    `KeyboardInterrupt`, and after SIGTERM or SIGUSR1 `SystemExit` with code 75, so that no program continues with a
    half-trained model. Collective inside a job, else local; blocking.

    Example:
        from torch import nn
        import unisono as un

        def data():
            return un.split(un.digits(), how="stratified")

        task = un.Task(model=lambda: nn.Linear(64, 10), data=data, loss="cross_entropy", metrics="accuracy", lr=0.5)
        ended = un.train(task, epochs=3, out="runs/digits", show=False)
        ended.summary["metrics"]["val_accuracy"] > 0.8  # -> True

    Args:
        task: The task, or the path of a task file.
        workers: Number of processes to start on this machine; left out, 1, or those that the launcher of the job has
            started.
        out: The run directory; left out, a new one: runs/NAME, runs/NAME-2, and so on.
        set: Changes to the task by name, as with --set: {"model.width": 128, "optimizer.momentum": 0.9}.
        show: False prints nothing but errors.
    """
    from unisono.cluster.resolve import current_topology
    from unisono.launch.excepthook import install_excepthook

    install_excepthook()
    given = {"workers": workers, "out": out, "set": set, "quiet": not show, **options}
    for name in options:
        if name not in (known := keywords_of(*TRAIN_OPTIONS)):
            raise unknown_name("argument", name, {*known, "show"}, "of un.train")
    task_file = "" if isinstance(task, Task) else str(task)
    start = WorkerOptions(**options_for(WorkerOptions, given))
    if current_topology().launcher == "local":
        start.check_restarts(None if out is None else str(out))
        if workers is not None and workers > 1:
            return _returned(_launch_call(task, train_config(task_file, given), start))
    cap_instruction_set(start.portable)
    return _returned(work(lambda: train_config(task_file, given), start, task if isinstance(task, Task) else None))


def _returned(ended: RunResult) -> RunResult:
    """Local: returns the result of a training, or raises what a request to stop means for the program; all is saved by now."""
    raise_stop(ended.stop_reason)
    return ended


def _launch_call(task: Task | str | Path, config: TrainConfig, start: WorkerOptions) -> RunResult:
    """Local, blocking: trains on launched workers. The task is passed to them in a file, functions of a notebook by value."""
    from unisono.launch.launch import launch
    from unisono.run import RunResult

    with tempfile.TemporaryDirectory(prefix="unisono-") as folder:
        result_file = Path(folder) / "out.json"
        file = write_pickled(Path(folder), task, config, str(result_file))
        job = task.name if isinstance(task, Task) else Path(task).stem
        code = launch(start.launch_config(("-m", "unisono.cli", "train", str(file)), job))
        if not result_file.exists():
            if code == 128 + signal.SIGINT:
                raise KeyboardInterrupt
            raise TrainingFailed(f"the workers ended with exit code {code}; the reason is in their output")
        news = json.loads(result_file.read_text())
    if "mistake" in news:
        raise UsageError(news["mistake"])
    if "failure" in news:
        raise TrainingFailed(news["failure"])
    out = Path(news["out"])
    return RunResult(out, json.loads((out / "summary.json").read_text()), stop_reason=news["stop_reason"])


@dataclass(frozen=True)
class Tuned:
    """The result of `un.tune`: the best trial of a study.

    Attributes:
        out: The folder of the study.
        best_params: The values of the best trial, by name.
        best_values: What the objective returned for them, one number for each direction.
        best_number: The number of the best trial.
    """

    out: Path
    best_params: Mapping[str, Any]
    best_values: Sequence[float]
    best_number: int

    @property
    def best_value(self) -> float:
        """What the objective returned for the best trial; of several values the first."""
        return self.best_values[0]

    def to_optuna(self, storage: str | None = None) -> Any:
        """Returns the study as a study of Optuna, for its plots and its dashboard. Local, blocking; needs the package optuna.

        Args:
            storage: The URL of a database to which it is written; left out, it is in memory.
        """
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
    prune: str | None = None,
    show: bool = True,
    **options: Any,
) -> Tuned:
    """Searches for the arguments of a function that give the best value, and returns the best trial.

    The objective is written as for Optuna: a function of a trial that calls `trial.suggest_float("lr", 1e-4, 1, log=True)`
    and the like and returns a number. Every trial runs in its own process, `blocks` of them at a time. To tune a `un.Task`
    use `unisono tune`.

    A trial that raises, returns NaN or runs longer than `trial_limit` has failed, and so has one whose process dies again
    and again (`attempts`); the search continues without it. With one direction a trial that reports worse values than the
    median of the others is told so by `should_prune`. The folder `out` keeps every finished trial: the same call resumes a
    study, and more `trials` enlarge it. With several directions the best trial is that of the first value.

    At its `time_limit` a search ends and returns the best trial so far. After Ctrl-C it raises `KeyboardInterrupt`, after
    SIGTERM or SIGUSR1 `SystemExit` with code 75; running trials go back to the queue. A study that is stopped otherwise, or
    in which no trial gave a value, raises `TrainingFailed`, an `un.UnisonoError`. Collective inside a job, else local;
    blocking.

    Example:
        import unisono as un

        def objective(trial):
            x = trial.suggest_float("x", -5, 5)
            return (x - 2) ** 2

        found = un.tune(objective, trials=4, search="random", out="studies/parabola", show=False)
        found.best_value < 49  # -> True
        sorted(found.best_params)  # -> ['x']

    Args:
        objective: A function of a trial that returns a number, or one number for each direction.
        trials: Number of trials, over all calls for this study together.
        blocks: Number of trials that run at a time; left out, 1, or as many as the job has processes for.
        out: The folder of the study; left out, studies/ and the name of the objective.
        direction: "minimize" or "maximize", or a list of these, one for each value that the objective returns.
        prune: How hopeless trials are found: "median", "asha" or "none"; left out, as the study does it, and in a new one
            "median" for one direction, as in Optuna, and "none" for several.
        show: False prints nothing but errors.
    """
    from unisono.cluster.terminal import terminal
    from unisono.launch.excepthook import install_excepthook
    from unisono.tuning.study.result import best_of
    from unisono.tuning.tune_job import run_tune_job
    from unisono.tuning.workers.objective import write_objective

    called_unix_s = time()
    install_excepthook()
    for name in options:
        if name not in (known := keywords_of(TuneConfig)):
            raise unknown_name("argument", name, {*known, "objective", "blocks", "direction", "prune", "show"}, "of un.tune")
    directions = [direction] if isinstance(direction, str) else list(direction)
    for one in directions:
        if one not in DIRECTIONS:
            raise UsageError(f"direction must be minimize or maximize; received {one!r}")
    folder = Path(out or f"studies/{getattr(objective, '__name__', 'objective')}")
    file = write_objective(objective, folder)
    names = ["value"] if len(directions) == 1 else [f"value_{number}" for number in range(len(directions))]
    config = TuneConfig(
        out=str(folder),
        work_spec={"kind": "objective", "file": str(file)},
        trials=trials,
        metrics=tuple(f"{name}:{DIRECTIONS[one]}" for name, one in zip(names, directions, strict=True)),
        prune=prune or _usual_pruner(folder, len(directions)),
        quiet=not show,
        called_unix_s=called_unix_s,
        **options_for(TuneConfig, options),
    )
    code = run_tune_job(config, blocks, terminal().columns if show else None)
    if code:
        raise TrainingFailed(f"the study {folder} was stopped before its end; make the same call again to resume it")
    _, best = best_of(folder)
    assert best.result is not None
    return Tuned(folder, dict(best.values or {}), best.result.values, best.number)


def _usual_pruner(folder: Path, num_directions: int) -> str:
    """Local, blocking: the pruner of a study that is there; for a new one that of Optuna, which compares single values."""
    from unisono.tuning.study.study_file import ABOUT, read_study

    if (folder / ABOUT).exists():
        return str(read_study(folder).get("prune", "none"))
    return "median" if num_directions == 1 else "none"
