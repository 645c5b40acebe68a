"""What a job of a study was asked for, as the command line or `un.tune` says it, and what follows from it for the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unisono.errors import UsageError
from unisono.tuning.grid import describe_grid, grid
from unisono.tuning.plan import Objective
from unisono.tuning.space import Space

AUTO = "auto"
MOST_MODELLED, MOST_SERVED = 200, 32
"""Trials and blocks up to which `auto` is a Gaussian process, which takes tenths of a second for a proposal, later seconds."""
FILE, ANYWHERE = "sqlite:///", ("sqlite:////", "sqlite:///:memory:")
NUM_TRIALS = 20
"""Of a study of which nobody says how many."""


@dataclass(frozen=True)
class TuneConfig:
    """What a job of a study was asked for."""

    out: str
    order: Mapping[str, Any]
    """What its workers do: see `nursery.make_work`."""
    trials: int | None = None
    """Over all jobs; None: as many as the study has, NUM_TRIALS in a new one."""
    search: str = AUTO
    metrics: Sequence[str] = ()
    """NAME, or NAME:max, NAME:min; none: what the task is judged by."""
    prune: str = "none"
    folds: int = 1
    repeats: int = 1
    workers: int = 1
    parallel_folds: int = 1
    seed: int = 0
    storage: str | None = None
    """Of a database that keeps the study, in place of files."""
    attempts: int = 5
    trial_limit_s: float | None = None
    time_limit_s: float | None = None
    threads: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of every training, as `TrainConfig` has them."""
    joins: bool = False
    """The study must be there."""
    accept_changes: bool = False
    """Also where the files of the task have changed since the study was made."""
    quiet: bool = False
    command: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "storage", whole_url(self.storage))
        for name in ("trials", "folds", "repeats", "workers", "parallel_folds", "attempts", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                name = f"--{name.replace('_', '-')}"
                raise UsageError(f"{name} must be at least 1; received {value}")
        if not 0 <= self.seed < 2**32:
            raise UsageError(f"--seed must lie in 0..{2**32 - 1}; received {self.seed}")
        num_parts = self.folds * self.repeats
        if self.parallel_folds > num_parts:
            raise UsageError(
                f"--parallel-folds {self.parallel_folds} is more than the {num_parts} trainings of a trial (folds times repeats); "
                f"use at most {num_parts}"
            )


def whole_url(url: str | None) -> str | None:
    """Local: with the whole path of a file, so that it is the same from every folder."""
    if url is None or not url.startswith(FILE) or url.startswith(ANYWHERE):
        return url
    return FILE + str(Path(url.removeprefix(FILE)).resolve())


def search_of(config: TuneConfig, space: Space | None, num_trials: int, num_blocks: int) -> str:
    """Pure: the search that is meant. A Gaussian process finds more with few trials than other searches, but takes its time, which
    an objective may not, knows no conditions, and learns nothing from trials that were pruned."""
    if config.search != AUTO:
        return config.search
    is_plain = space is not None and not any(one.when for one in space.dimensions)
    is_small = num_trials <= MOST_MODELLED and num_blocks <= MOST_SERVED
    return "gp" if is_plain and is_small and config.prune == "none" and len(config.metrics) <= 1 else "tpe"


def trials_of(config: TuneConfig, space: Space | None, there: int | None = None) -> tuple[int, list[str]]:
    """Pure: how many trials there are to be as far as this job is concerned, and what its user is to know of that. `there`: trials
    that were asked for before, where the study is there."""
    found, said = config.trials or there or NUM_TRIALS, list[str]()
    if config.search == "grid" and space is not None:
        said.append(describe_grid(space, found))
        found = len(grid(space, found))
    if there is not None and found > there:
        said.append(f"the study grows from {there} to {found} trials")
    elif there is not None and found < there:
        said.append(f"this job works at the first {found} of {there} trials")
    return found, said


def description_of(
    config: TuneConfig, about: Mapping[str, Any], objectives: Sequence[Objective], space: Space | None
) -> dict[str, Any]:
    """Pure: what study.json says of a study that this job makes; `about` is what the work says of itself."""
    return {
        "task": about["task"],
        "task_file": config.order["typed"] if config.order["kind"] == "task" else None,
        "sources": about["sources"],
        "space": about["space"],
        "fixed": about["fixed"],
        "first": about["first"],
        "objectives": [one._asdict() for one in objectives],
        "folds": config.folds,
        "fold_by": about["fold_by"],
        "num_samples": about["num_samples"],
        "repeats": config.repeats,
        "search": config.search,
        "prune": config.prune,
        "trials": trials_of(config, space)[0],
        "seed": config.seed,
        "storage": config.storage,
        "workers": config.workers,
        "parallel_folds": config.parallel_folds,
        "order": dict(config.order),
        "made_by": about["versions"],
    }
