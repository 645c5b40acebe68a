"""One part of a trial of a task: a training on one fold from one random start, by as many workers as a model has."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any

from unisono.cluster.threads import set_threads
from unisono.cluster.topology import Topology
from unisono.comm.base import Communicator
from unisono.comm.connect import connect
from unisono.comm.control_plane.channel import Channel
from unisono.comm.single import alone
from unisono.config import TrainConfig
from unisono.data.folded import Folding, folded
from unisono.data.splits import Splits
from unisono.errors import AlreadyTold, InUse, UsageError
from unisono.overrides import change
from unisono.run import Ended, Steering, execute
from unisono.task import Task
from unisono.taskfile import load_task
from unisono.training.assemble import make_splits
from unisono.training.job import prepare
from unisono.training.provenance import provenance, sources_of
from unisono.tuning.letters import Letter, post, wait_for
from unisono.tuning.space import ALGORITHM, Space, defaults_of, space_of
from unisono.tuning.worker import Work

GIVE_UP_S, PAUSE_S = 30.0, 0.1
CHECKPOINT_EVERY = "1m"
"""Of a trial: what it loses at most when it is given back."""


@dataclass
class TaskWork(Work):
    """Trials of a task file. The data are loaded once and shared by all trials whose data have the same arguments; a process that
    is forked from this one has them without loading."""

    file: str
    changes: Mapping[str, Any]
    """Settings that hold for all trials."""
    space_file: str | None
    folding: Folding
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
            self._space = space_of(self.task, None if self.space_file is None else Path(self.space_file))
        return self._space

    @property
    def fixed(self) -> dict[str, Any]:
        """Settings of all trials."""
        return {**self.changes, **self.space.fixed}

    def load(self) -> None:
        """Local, blocking: what all workers share. Nothing is computed, so that this process may fork."""
        first = defaults_of(self.task, self.space, self.fixed)
        make_splits(change(self.task, _of_task({**self.fixed, **first})))

    def about(self) -> dict[str, Any]:
        """Local, blocking. All mistakes that a user can make are told here, before anything starts."""
        twice = [name for name in self.changes if name in {*self.space.fixed, *(one.name for one in self.space.dimensions)}]
        if twice:
            raise UsageError(f"--set {twice[0]} and the space say different things of it; leave it out, or fix it in --space")
        first = defaults_of(self.task, self.space, self.fixed)
        values = _of_task({**self.fixed, **first})
        changed = change(self.task, values)
        whole = make_splits(changed)
        splits = folded(whole, self.folding)
        config = TrainConfig(task_file=self.file, changes=values, division=self._division(0, whole))
        parts = prepare(config, alone(), None, self.task, restores=False).parts
        made = provenance(Path(self.file), None, ())
        return {
            "task": changed.task.name or Path(self.file).stem,
            "space": self.space.described(),
            "fixed": self.fixed,
            "first": first,
            "epochs": changed.task.epochs,
            "metrics": dict(parts.judged),
            "monitor": parts.goals.monitor,
            "fold_by": splits[0].how.partition(",")[0],
            "num_samples": {name: len(part) for name, part in splits[0].parts().items()},
            "warnings": sorted({text for one in splits for text in one.warnings}),
            "sources": sources_of(made["task"]),
            "versions": made["versions"],
        }

    def do(self, letter: Letter, channel: Channel) -> dict[str, Any]:
        """Collective over the workers of the model, blocking."""
        at = Topology(**{**letter["at"], "gpus": tuple(letter["at"]["gpus"]), "our_gpus": tuple(letter["at"]["our_gpus"])})
        set_threads(letter["threads"])
        values = {**self.fixed, **letter["values"]}
        algorithm = values.pop(ALGORITHM, "allreduce")
        values["seed"] = int(values.get("seed", self.task.seed)) + letter["repeat"]
        whole = make_splits(change(self.task, values))
        config = TrainConfig(
            task_file=self.file,
            changes=values,
            algorithm=algorithm,
            out=letter["out"],
            checkpoint_every=CHECKPOINT_EVERY,
            keep=1,
            threads=letter["threads"],
            division=self._division(letter["fold"], whole),
            quiet=True,
            **letter["options"],
        )
        asks = letter["asks"]

        def goes_on(epoch: int, metrics: Mapping[str, float]) -> bool:
            told = {name: float(value) for name, value in metrics.items()}
            post(channel, {"is": "epoch", "id": letter["id"], "epoch": epoch, "metrics": told})
            return bool(wait_for(channel)["go"]) if asks else True

        with connect(topology=at, quiet=True) as comm:
            ended = _executed(config, comm, self.task, Steering(goes_on))
            if comm.rank == 0 and ended.summary["reason"] != "interrupted":
                shutil.rmtree(ended.out / "checkpoints", ignore_errors=True)  # nobody goes on from here
        return {
            "reason": ended.summary["reason"],
            "metrics": ended.summary["metrics"] if at.global_rank == 0 else {},
            "epochs": ended.summary["epochs"],
            "all_lives_s": ended.summary["wall_s"],
        }

    def _division(self, fold: int, splits: Splits) -> dict[str, Any]:
        held_out = {} if splits.test is None else {"test": len(splits.test)}
        return {"fold": fold, **asdict(self.folding), "held_out": held_out}


def _of_task(values: Mapping[str, Any]) -> dict[str, Any]:
    """Pure: without what only `train` has an option for."""
    return {name: value for name, value in values.items() if name != ALGORITHM}


def _executed(config: TrainConfig, comm: Communicator, task: Task, steering: Steering) -> Ended:
    """Collective, blocking. A worker that was killed a moment ago may still hold the directory."""
    until = time.monotonic() + GIVE_UP_S
    while True:
        try:
            return execute(config, comm, None, task, steering)
        except (InUse, AlreadyTold) as error:
            is_held = comm.broadcast_object(isinstance(error, InUse) and time.monotonic() < until)
            if not is_held:
                raise
            time.sleep(PAUSE_S)  # nothing tells when a lock is given up
