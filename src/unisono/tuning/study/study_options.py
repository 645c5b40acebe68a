"""The options of a job of a study, from the command line or `un.tune`, and what follows from them for the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unisono.errors import UsageError
from unisono.task.averages import KEY
from unisono.task.durations import DURATION_FORMS
from unisono.task.options import REQUIRED, check, option
from unisono.task.overrides import with_settings
from unisono.task.train_config import MACHINE, time_limit_option
from unisono.tuning.search.grid import describe_grid, grid
from unisono.tuning.search.space import Space
from unisono.tuning.study.trial_plan import Objective

AUTO = "auto"
MOST_MODELLED, MOST_SERVED = 200, 32
"""Trials and blocks up to which `auto` is a Gaussian process, which takes tenths of a second for a proposal, later seconds."""
FILE, ANYWHERE = "sqlite:///", ("sqlite:////", "sqlite:///:memory:")
NUM_TRIALS = 20
"""Trials of a new study without --trials."""
JOB_OPTIONS = ("trials", "accept_changes", "threads", "device", "time_limit", "trial_limit", "attempts", "quiet")
"""What may differ from job to job; all else is the study's."""
STUDY = "the study"
SEARCHED = "what is searched"
MEASURED = "how a trial is measured"
LIMITS = "limits"


@dataclass(frozen=True)
class TuneConfig:
    """The options of one job of a study."""

    out: str = option(REQUIRED, "folder of the study (default studies/NAME); an existing study is resumed", "DIR", group=STUDY)
    work_spec: Mapping[str, Any] = REQUIRED
    """The work of its workers, as `fork_server.make_runner` takes it."""
    trials: int | None = option(
        None,
        f"number of trials of all jobs together (default {NUM_TRIALS} in a new study); a larger number extends a study",
        "T",
        least=1,
    )
    seed: int = option(0, "random seed of the search and of the folds", "S", least=0, most=2**32 - 1)
    storage: str | None = option(None, "keep the study in an Optuna database (sqlite:///..., postgresql://...)", "URL")
    accept_changes: bool = option(False, "resume although files of the task have changed")

    search: str = option(AUTO, "auto (gp for few trials, else tpe), tpe, gp, cmaes, evolution, random or grid", "S", group=SEARCHED)
    prune: str = option(
        "none", "end hopeless trials early: asha, median or wilcoxon (over folds); un.tune with one direction: median", "P"
    )
    metrics: Sequence[str] = option(
        (),
        "metric to optimise: val_accuracy, best_val_loss, time_s, ...; M:max or M:min gives the direction; may be given several "
        "times (default: the metric that decides in the task)",
        "M",
        flag="--metric",
        is_keyword=False,
    )

    folds: int = option(
        1, "train on each of K folds (default 1: the task's own split)", "K", group=MEASURED, least=1, is_keyword=False
    )
    repeats: int = option(1, "trainings on each fold, with different random seeds", "R", least=1, is_keyword=False)

    workers: int = option(1, "processes that train one model together", "W", group=MACHINE, least=1, is_keyword=False)
    parallel_folds: int = option(1, "trainings of a trial that run at the same time", "P", least=1, is_keyword=False)
    threads: int | None = option(None, "threads of each rank (default: the CPUs divided by the ranks)", "T", least=1)
    device: str = option("auto", "auto, cpu or cuda", "D", is_keyword=False)

    time_limit_s: float | None = time_limit_option(
        "--time-limit", f"stop and save before this time is over: {DURATION_FORMS}", group=LIMITS
    )
    trial_limit_s: float | None = time_limit_option("--trial-limit", "a trial that runs longer counts as failed")
    attempts: int = option(5, "how often to start a trial whose processes are killed", "A", least=1)
    quiet: bool = option(False, "print nothing but errors", is_keyword=False)

    joins: bool = False
    """The study must be there."""
    called_unix_s: float | None = None
    """When `un.tune` was called; None for a command. A call's time limit counts from then and ends it normally; Ctrl-C raises."""
    command: Sequence[str] = ()

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of every training, in the form of `TrainConfig`."""
        return {} if self.device == "auto" else {"device": self.device}

    def __post_init__(self) -> None:
        object.__setattr__(self, "storage", whole_url(self.storage))
        check(self)
        num_parts = self.folds * self.repeats
        if self.parallel_folds > num_parts:
            raise UsageError(
                f"--parallel-folds {self.parallel_folds} is more than the {num_parts} trainings of a trial (folds times repeats); "
                f"use at most {num_parts}"
            )


@dataclass(frozen=True)
class TaskTrials:
    """The options of a study of a task. (A study of an objective has none of them.)"""

    space: str | None = option(
        None, "file of ranges and choices, which add to those of the task or replace them", "FILE.toml", group=SEARCHED
    )
    changes: Mapping[str, Any] = option(
        {}, "a setting of all trials, as in unisono train", "NAME=VALUE", flag="--set", example="model.width=128"
    )
    algorithm: str | None = option(None, "training algorithm, if it is not searched, as in unisono train", "A")
    fold_by: str | None = option(
        None,
        "how to make the folds: random, stratified, group or blocks (default: as the task splits its data)",
        "HOW",
        group=MEASURED,
    )
    block_size: int | None = option(None, "size of the spatial blocks (--fold-by blocks)", "PIXELS")

    def __post_init__(self) -> None:
        check(self)

    def work_spec(self, task: str, settings: Mapping[str, Any], folds: int, seed: int) -> dict[str, Any]:
        """Returns the description of the work that every worker gets; `settings` are those task settings that have an option of
        their own. Local."""
        if self.algorithm is not None:
            settings = {**settings, "algorithm": self.algorithm}
        return {
            "kind": "task",
            "file": str(Path(task).absolute()),
            "typed": task,
            "changes": with_settings(self.changes, settings),
            "space_file": None if self.space is None else str(Path(self.space).absolute()),
            "folding": {"folds": folds, "by": self.fold_by, "seed": seed, "block_size": self.block_size},
        }


def whole_url(url: str | None) -> str | None:
    """Returns the URL with the absolute path of a file, so that it is valid from every folder. Local."""
    if url is None or not url.startswith(FILE) or url.startswith(ANYWHERE):
        return url
    return FILE + str(Path(url.removeprefix(FILE)).resolve())


def choose_search(config: TuneConfig, space: Space | None, num_trials: int, num_blocks: int) -> str:
    """Returns the name of the search: the one asked for or, for `auto`, a Gaussian process or TPE. A Gaussian process finds more
    with few trials, but it is slow, which an objective may not afford, and it handles neither conditions nor pruned trials.
    Pure."""
    if config.search != AUTO:
        return config.search
    is_plain = space is not None and not any(one.when for one in space.dimensions)
    is_small = num_trials <= MOST_MODELLED and num_blocks <= MOST_SERVED
    return "gp" if is_plain and is_small and config.prune == "none" and len(config.metrics) <= 1 else "tpe"


def choose_num_trials(config: TuneConfig, space: Space | None, there: int | None = None) -> tuple[int, list[str]]:
    """Returns how many trials this job works towards, and messages on that for its user. `there` is the number of trials that an
    existing study was asked for. Pure."""
    found, said = config.trials or there or NUM_TRIALS, list[str]()
    if config.search == "grid" and space is not None:
        said.append(describe_grid(space, found))
        found = len(grid(space, found))
    if there is not None and found > there:
        said.append(f"the study grows from {there} to {found} trials")
    elif there is not None and found < there:
        said.append(f"this job works on the first {found} of {there} trials")
    return found, said


def description_of(
    config: TuneConfig, about: Mapping[str, Any], objectives: Sequence[Objective], space: Space | None
) -> dict[str, Any]:
    """Returns the content of study.json for a new study; `about` is the description that the worker gave of its work. Pure."""
    return {
        "task": about["task"],
        "task_file": config.work_spec["typed"] if config.work_spec["kind"] == "task" else None,
        "sources": about["sources"],
        **({} if about.get("captured") is None else {"captured": about["captured"]}),
        "space": about["space"],
        "fixed": about["fixed"],
        **{name: about[name] for name in ("defaults", "older_defaults") if name in about},
        "first": about["first"],
        "objectives": [one._asdict() for one in objectives],
        "weights": about["weights"],
        "folds": config.folds,
        "fold_by": about["fold_by"],
        "num_samples": about["num_samples"],
        KEY: about.get(KEY, {}),
        "samples": about["samples"],
        "repeats": config.repeats,
        "search": config.search,
        "prune": config.prune,
        "trials": choose_num_trials(config, space)[0],
        "seed": config.seed,
        "storage": config.storage,
        "workers": config.workers,
        "parallel_folds": config.parallel_folds,
        "order": dict(config.work_spec),
        "made_by": about["versions"],
    }
