"""One part of a trial of a task: a training on one fold from one random start, by as many workers as a model has."""

from __future__ import annotations

import gc
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import wraps
from itertools import count
from pathlib import Path
from typing import Any

from unisono.cluster.machine.worker_threads import set_threads
from unisono.cluster.topology import Topology
from unisono.comm.base import Communicator
from unisono.comm.connect import connect
from unisono.comm.engines.single import alone
from unisono.data.fold_data import Folding, folded
from unisono.data.splits import Splits
from unisono.errors import AnotherRun, InUse, ReportedElsewhere, UsageError
from unisono.files.atomic import explain_os_errors
from unisono.run import EarlyStopHook, RunResult, execute
from unisono.task.overrides import change
from unisono.task.task import Task
from unisono.task.task_file import load_task
from unisono.task.train_config import TrainConfig
from unisono.training.frontends.factories import make_splits
from unisono.training.prepare import prepare
from unisono.training.run_folder.provenance import provenance, sources_of
from unisono.training.work_layout import set_up_algorithm
from unisono.tuning.search.space import ALGORITHM, Space, defaults_of, space_of
from unisono.tuning.workers.messages import Mailbox, Message
from unisono.tuning.workers.trial_worker import TrialRunner

GIVE_UP_S, PAUSE_S = 30.0, 0.1
CHECKPOINT_EVERY = "1m"
"""Of a trial: what it loses at most when it is given back."""


@dataclass
class TaskTrialRunner(TrialRunner):
    """Trials of a task file. The data are loaded once and shared by all trials whose data have the same arguments; a process that
    is forked from this one has them without loading."""

    file: str
    changes: Mapping[str, Any]
    """Settings that hold for all trials."""
    space_file: str | None
    folding: Folding
    workers: int = 1
    """That train one model together."""
    _task: Task | None = None
    _space: Space | None = None
    _data: dict[str, Any] = field(default_factory=dict)
    """What the task's data gave, by its arguments."""

    @property
    def task(self) -> Task:
        """The task, whose data are loaded once."""
        if self._task is None:
            task = load_task(self.file)

            @wraps(task.data)
            def data(**arguments: Any) -> Any:
                key = repr(sorted(arguments.items()))
                if key not in self._data:
                    self._data[key] = task.data(**arguments)
                return self._data[key]

            self._task = replace(task, data=data)
        return self._task

    @property
    def space(self) -> Space:
        if self._space is None:
            self._space = space_of(self.task, None if self.space_file is None else Path(self.space_file), self.changes)
        return self._space

    @property
    def fixed(self) -> dict[str, Any]:
        """Settings of all trials."""
        return {**self.changes, **self.space.fixed}

    def load(self) -> None:
        """Local, blocking: what all workers share. Nothing is computed, so that this process may fork."""
        first = defaults_of(self.task, self.space, self.fixed)
        make_splits(change(self.task, _of_task({**self.fixed, **first})))

    def describe(self) -> dict[str, Any]:
        """Local, blocking. All mistakes that a user can make are told here, before anything starts."""
        twice = [name for name in self.changes if name in {*self.space.fixed, *(one.name for one in self.space.dimensions)}]
        if twice:
            raise UsageError(f"--set {twice[0]} and the space say different things of it; leave it out, or fix it in --space")
        self._check_algorithms()
        first = defaults_of(self.task, self.space, self.fixed)
        values = _of_task({**self.fixed, **first})
        changed = change(self.task, values)
        whole = make_splits(changed)
        splits = folded(whole, self.folding)
        config = TrainConfig(task_file=self.file, changes=values, division=self._division(0, whole))
        parts = prepare(config, alone(), None, self.task, resumes=False).parts
        made = provenance(Path(self.file), None, ())
        return {
            "task": changed.task.name or Path(self.file).stem,
            "space": self.space.described(),
            "fixed": self.fixed,
            "first": first,
            "epochs": self.space.largest("epochs", changed.task.epochs),  # so that steps of two waves never have one number
            "metrics": dict(parts.comparable_metrics),
            "monitor": parts.goals.monitor,
            "fold_by": splits[0].how.partition(",")[0],
            "num_samples": {name: len(part) for name, part in splits[0].parts().items()},
            "warnings": sorted({text for one in splits for text in one.warnings}),
            "sources": sources_of(made["task"]),
            "versions": made["versions"],
        }

    def _check_algorithms(self) -> None:
        """Local: refuse algorithms, options of them and batches that so many workers cannot have. `prepare` cannot see that: it is
        asked for one worker, by whom nothing is divided."""
        is_searched = any(one.name == ALGORITHM for one in self.space.dimensions)
        for point in boundary_points(self.space, self.fixed):
            values = {**self.fixed, **point}
            algorithm = values.pop(ALGORITHM)
            try:
                set_up_algorithm(change(self.task, values), algorithm, self.workers)
            except UsageError as error:
                if not is_searched:
                    raise
                raise UsageError(
                    f"the space lets trials be trained by {algorithm} that cannot be: {error}; say in the space with which "
                    f"algorithm a setting goes, e.g. when = {{ algorithm = '{algorithm}' }}, or leave that algorithm out"
                ) from error

    def run(self, order: Message, mailbox: Mailbox) -> dict[str, Any]:
        """Collective over the workers of the model, blocking."""
        place = dict(order["at"])
        at = Topology(gpus=tuple(place.pop("gpus")), own_gpus=tuple(place.pop("our_gpus")), **place)
        set_threads(order["threads"])
        values = {**self.fixed, **order["values"]}
        algorithm = values.pop(ALGORITHM, "allreduce")
        values["seed"] = int(values.get("seed", self.task.seed)) + order["repeat"]
        whole = make_splits(change(self.task, values))
        config = TrainConfig(
            task_file=self.file,
            changes=values,
            algorithm=algorithm,
            out=order["out"],
            checkpoint_every=CHECKPOINT_EVERY,
            keep=1,
            threads=order["threads"],
            division=self._division(order["fold"], whole),
            quiet=True,
            **order["options"],
        )
        asks = order["asks"]

        def should_continue(epoch: int, metrics: Mapping[str, float]) -> bool:
            told = {name: float(value) for name, value in metrics.items()}
            mailbox.send({"is": "epoch", "id": order["id"], "epoch": epoch, "metrics": told})
            return bool(mailbox.wait_for_answer()["go"]) if asks else True

        try:
            with connect(topology=at, quiet=True) as comm:
                ended = _execute_when_free(config, comm, self.task, EarlyStopHook(should_continue))
                if comm.rank == 0 and ended.summary["reason"] != "interrupted":
                    shutil.rmtree(ended.out / "checkpoints", ignore_errors=True)  # nobody goes on from here
        finally:
            _free_gpu()
        return {
            "reason": ended.summary["reason"],
            "metrics": ended.summary["metrics"] if at.global_rank == 0 else {},
            "epochs": ended.summary["epochs"],
            "all_lives_s": ended.summary["wall_s"],
        }

    def _division(self, fold: int, splits: Splits) -> dict[str, Any]:
        held_out = {} if splits.test is None else {"test": len(splits.test)}
        return {"fold": fold, **asdict(self.folding), "held_out": held_out}


def boundary_points(space: Space, fixed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Pure: points that a search may come to: with every algorithm, every value of a choice and the ends of every range, one
    dimension at a time, while the others have their first value."""
    known = Space(space.dimensions, fixed)
    searched = [one.boundary_values() for one in space.dimensions if one.name == ALGORITHM]
    others = [one for one in space.dimensions if one.name != ALGORITHM]
    for algorithm in searched[0] if searched else (fixed.get(ALGORITHM, "allreduce"),):
        for varied, value in [(one.name, value) for one in others for value in one.boundary_values()] or [("", None)]:
            point = {ALGORITHM: algorithm}
            for one in others:  # those that others depend on come first
                if known.is_active(one, point):
                    point[one.name] = value if one.name == varied else one.boundary_values()[0]
            yield point


def _of_task(values: Mapping[str, Any]) -> dict[str, Any]:
    """Pure: without the algorithm and its options, of which one worker by itself has no use."""
    return {name: value for name, value in values.items() if name.partition(".")[0] != ALGORITHM}


def _execute_when_free(config: TrainConfig, comm: Communicator, task: Task, early_stop: EarlyStopHook) -> RunResult:
    """Collective, blocking. A worker that was killed a moment ago may still hold the directory; and it may hold a run with other
    values, where the journal was damaged and has lost what the trial was to try: that run is put aside."""
    until = time.monotonic() + GIVE_UP_S
    while True:
        try:
            return execute(config, comm, None, task, early_stop)
        except (InUse, AnotherRun, ReportedElsewhere) as error:
            is_held = isinstance(error, InUse) and time.monotonic() < until
            if isinstance(error, AnotherRun):  # only rank 0 looks at the directory
                assert config.out is not None
                put_aside(Path(config.out))
            if not comm.broadcast_object(is_held or isinstance(error, AnotherRun)):
                raise
            time.sleep(PAUSE_S)  # nothing tells when a lock is given up


def put_aside(run: Path) -> Path:
    """Local, blocking: move a run directory into a folder beside it, out of the way of those who look for the models of a trial."""
    target = next(path for number in count(1) if not (path := run.parent / f"old-{number}" / run.name).exists())
    with explain_os_errors(target):
        target.parent.mkdir(exist_ok=True)
        run.rename(target)
    return target


def _free_gpu() -> None:
    """Local: what PyTorch keeps of the last training for the next one is taken from those who share the GPU."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        gc.collect()  # a training refers to itself in circles
        torch.cuda.empty_cache()
