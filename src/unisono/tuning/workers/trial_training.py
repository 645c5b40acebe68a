"""One part of a trial of a task: a training on one fold from one random start, by as many workers as a model has."""

from __future__ import annotations

import gc
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import wraps
from itertools import count
from pathlib import Path
from typing import Any

from unisono.algorithms.base import find_algorithm
from unisono.cluster.machine.worker_threads import set_threads
from unisono.cluster.topology import Topology
from unisono.comm.base import Communicator
from unisono.comm.connect import connect
from unisono.comm.single_process import single_process_communicator
from unisono.data.data_differences import REMEDY, Fingerprint, describe_other_data
from unisono.data.fingerprint import fingerprints
from unisono.data.fold_data import Folding, make_folds
from unisono.data.splits import Splits
from unisono.errors import AnotherRun, InUse, ReportedElsewhere, UsageError
from unisono.files.atomic import explain_os_errors
from unisono.run import EarlyStopHook, RunResult, execute
from unisono.task.averages import KEY
from unisono.task.overrides import change
from unisono.task.task import Task
from unisono.task.task_file import load_task
from unisono.task.train_config import TrainConfig
from unisono.training.batch_norms import refuse_synchronised
from unisono.training.frontends.factories import make_splits
from unisono.training.prepare import prepare
from unisono.training.progress import metrics_of
from unisono.training.run_folder.provenance import provenance, sources_of
from unisono.training.training_parts import EarlierAttempt
from unisono.training.work_layout import set_up_algorithm
from unisono.tuning.search.own_settings import ALGORITHM
from unisono.tuning.search.space import Space, defaults_of, space_of
from unisono.tuning.workers.messages import Message, MessageQueue
from unisono.tuning.workers.trial_worker import TrialRunner

GIVE_UP_S, PAUSE_S = 30.0, 0.1
CHECKPOINT_EVERY = "1m"
"""Of a trial: what it loses at most when it is given back."""


@dataclass
class TaskTrialRunner(TrialRunner):
    """Runs trials of a task file. The data are loaded once for all trials whose data have the same arguments, and a process that is
    forked from this one shares them."""

    file: str
    changes: Mapping[str, Any]
    """Settings that hold for all trials."""
    space_file: str | None
    folding: Folding
    workers: int = 1
    """Processes that train one model together."""
    _task: Task | None = None
    _space: Space | None = None
    _data: dict[str, Any] = field(default_factory=dict)
    """The result of the task's `data`, by its arguments."""
    _is_compared: bool = False
    """Whether the data of this process were compared with those of the study."""

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
        """The space that the trials search."""
        if self._space is None:
            self._space = space_of(self.task, None if self.space_file is None else Path(self.space_file), self.changes)
        return self._space

    @property
    def fixed(self) -> dict[str, Any]:
        """Settings that all trials share."""
        return {**self.changes, **self.space.fixed}

    def _defaults(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the options of algorithms that no setting gives and whose default was another in earlier versions: as they are,
        and all of them as they were."""
        searched = {one.name: one for one in self.space.dimensions}
        names = searched[ALGORITHM].boundary_values() if ALGORITHM in searched else [self.fixed.get(ALGORITHM, "allreduce")]
        now, older = dict[str, Any](), dict[str, Any]()
        for kind in map(find_algorithm, names):
            for option, value in kind.older_defaults.items():
                if (setting := f"algorithm.{option}") not in searched:
                    older[setting], now[setting] = value, getattr(kind.Options(), option)
        return {setting: value for setting, value in now.items() if setting not in self.fixed}, older

    def load(self) -> None:
        """Loads what all workers share. Computes nothing, so that this process may fork. Local, blocking."""
        self._load_data()

    def _load_data(self) -> Splits:
        """Returns the data of the first trial."""
        first = defaults_of(self.task, self.space, self.fixed)
        return make_splits(change(self.task, _without_algorithm({**self.fixed, **first})))

    def _expect_data_of_study(self, samples: Mapping[str, Fingerprint]) -> None:
        """Refuses data of this process that are not those of the study: trials are compared on the same samples."""
        if not self._is_compared:
            if other := describe_other_data(samples, fingerprints(self._load_data().parts())):
                raise UsageError(f"this worker ({socket.gethostname()}) holds other data than the study: {other}; {REMEDY}")
            self._is_compared = True

    def describe(self) -> dict[str, Any]:
        """Returns the description of the study's task. Refuses all mistakes that a user can make, before any trial starts. Local,
        blocking."""
        twice = [name for name in self.changes if name in {*self.space.fixed, *(one.name for one in self.space.dimensions)}]
        if twice:
            raise UsageError(f"{twice[0]} is given by --set and by the space; leave out --set {twice[0]}, or fix it in --space")
        num_learning = self._check_algorithms()
        first = defaults_of(self.task, self.space, self.fixed)
        values = _without_algorithm({**self.fixed, **first})
        changed = change(self.task, values)
        whole = make_splits(changed)
        splits = make_folds(whole, self.folding)
        config = TrainConfig(task_file=self.file, changes=values, division=self._division(0, whole))
        parts = prepare(config, single_process_communicator(), None, self.task, EarlierAttempt()).parts
        refuse_synchronised(parts.adapter.model, num_learning, parts.task.shards is not None)
        made = provenance(Path(self.file), None, ())
        defaults, older_defaults = self._defaults()
        return {
            "task": changed.task.name or Path(self.file).stem,
            "space": self.space.to_dict(),
            "fixed": self.fixed,
            "defaults": defaults,
            "older_defaults": older_defaults,
            "first": defaults_of(parts.task, self.space, self.fixed),  # with the learning rate and optimizer of its front end
            "epochs": self.space.largest("epochs", changed.task.epochs),  # so that steps of two waves never have one number
            "metrics": dict(parts.comparable_metrics),
            KEY: dict(parts.averages),
            "monitor": parts.goals.monitor,
            "weights": parts.goals.weights,
            "fold_by": splits[0].how.partition(",")[0],
            "num_samples": {name: len(part) for name, part in splits[0].parts().items()},
            "samples": fingerprints(whole.parts()),
            "warnings": sorted({text for one in splits for text in one.warnings}),
            "sources": sources_of(made["task"]),
            "versions": made["versions"],
        }

    def _check_algorithms(self) -> int:
        """Refuses algorithms, their options and batches that do not suit this number of workers. `prepare` cannot find these, as it
        is called for one worker, where nothing is divided. Returns the most processes that learn together. Local."""
        most = 1
        is_searched = any(one.name == ALGORITHM for one in self.space.dimensions)
        for point in boundary_points(self.space, self.fixed):
            values = {**self.fixed, **point}
            algorithm = values.pop(ALGORITHM)
            try:
                most = max(most, set_up_algorithm(change(self.task, values), algorithm, self.workers).roles.num_learning)
            except UsageError as error:
                if not is_searched:
                    raise
                raise UsageError(
                    f"the search space contains trials that {algorithm} cannot train: {error}; restrict settings to the algorithms "
                    f"that take them, e.g. when = {{ algorithm = '{algorithm}' }}, or leave out {algorithm}"
                ) from error
        return most

    def run(self, command: Message, messages: MessageQueue) -> dict[str, Any]:
        """Trains one part of a trial and returns its result. Collective over the workers of the model, blocking."""
        place = dict(command["at"])
        at = Topology(gpus=tuple(place.pop("gpus")), own_gpus=tuple(place.pop("our_gpus")), **place)
        set_threads(command["threads"])
        self._expect_data_of_study(command["samples"])
        values = {**self.fixed, **command["values"]}
        algorithm = values.pop(ALGORITHM, "allreduce")
        values["seed"] = int(values.get("seed", self.task.seed)) + command["repeat"]
        whole = make_splits(change(self.task, values))
        config = TrainConfig(
            task_file=self.file,
            changes=values,
            algorithm=algorithm,
            out=command["out"],
            checkpoint_every=CHECKPOINT_EVERY,
            keep=1,
            threads=command["threads"],
            division=self._division(command["fold"], whole),
            quiet=True,
            **command["options"],
        )
        asks = command["asks"]

        def should_continue(epoch: int, metrics: Mapping[str, float]) -> bool:
            told = {name: float(value) for name, value in metrics.items()}
            messages.send({"is": "epoch", "id": command["id"], "epoch": epoch, "metrics": told})
            return bool(messages.wait_for_answer()["go"]) if asks else True

        try:
            with connect(topology=at, quiet=True) as comm:
                ended = _execute_when_free(config, comm, self.task, EarlyStopHook(should_continue))
                if comm.rank == 0 and ended.summary["reason"] != "interrupted":
                    shutil.rmtree(ended.out / "checkpoints", ignore_errors=True)  # no later run resumes from here
        finally:
            _free_gpu()
        return {
            "reason": ended.summary["reason"],
            "metrics": metrics_of(ended.summary["history"], ended.summary["best_epoch"]) if at.global_rank == 0 else {},
            "epochs": ended.summary["epochs"],
            "best_epoch": ended.summary["best_epoch"],
            "all_lives_s": ended.summary["wall_s"],
        }

    def _division(self, fold: int, splits: Splits) -> dict[str, Any]:
        """Returns the record of how the data were divided for a fold."""
        held_out = {} if splits.test is None else {"test": len(splits.test)}
        return {"fold": fold, **asdict(self.folding), "held_out": held_out}


def boundary_points(space: Space, fixed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields points that a search may reach: with every algorithm, every value of a choice and the ends of every range, one
    dimension at a time, while the others have their first value. Pure."""
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


def _without_algorithm(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without the algorithm and its options, which a single worker does not use. Pure."""
    return {name: value for name, value in values.items() if name.partition(".")[0] != ALGORITHM}


def _execute_when_free(config: TrainConfig, comm: Communicator, task: Task, early_stop: EarlyStopHook) -> RunResult:
    """Trains as soon as the run directory is free: a worker that was killed a moment ago may still hold it. A run with other
    values, left where a damaged journal lost the values of the trial, is put aside. Collective, blocking."""
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
            time.sleep(PAUSE_S)  # no event tells when a lock is released


def put_aside(run: Path) -> Path:
    """Moves a run directory into a folder beside it, where no search for the models of a trial finds it, and returns the new path.
    Local, blocking."""
    target = next(path for number in count(1) if not (path := run.parent / f"old-{number}" / run.name).exists())
    with explain_os_errors(target):
        target.parent.mkdir(exist_ok=True)
        run.rename(target)
    return target


def _free_gpu() -> None:
    """Frees the GPU memory that PyTorch keeps for the next training, so that others that share the GPU can use it. Local."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        gc.collect()  # a training refers to itself in circles
        torch.cuda.empty_cache()
