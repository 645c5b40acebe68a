"""The result of a study, ready to be used: a command to type, a file to read, and the models of the best trial's folds."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unisono.errors import UsageError
from unisono.files.atomic import atomic_replacement
from unisono.task.name_value import literal
from unisono.tuning.search.own_settings import ALGORITHM
from unisono.tuning.search_progress import format_settings, format_values
from unisono.tuning.study.kept_models import WEIGHTS
from unisono.tuning.study.store import records_of
from unisono.tuning.study.study import Study, Trial
from unisono.tuning.study.study_file import ABOUT, known_sources, read_study
from unisono.tuning.study.trial_plan import Objective

BEST = "best.toml"
BARE = re.compile(r"[A-Za-z0-9_-]+")
"""A key that TOML takes without quotes."""


def load_study(folder: Path) -> tuple[dict[str, Any], Study]:
    """Returns the description (study.json) and the trials of a study on disk. Local, blocking."""
    about = read_study(folder)
    study = Study()
    for record in records_of(folder, about):
        study.apply(record)
    return about, study


def best_of(folder: Path) -> tuple[dict[str, Any], Trial]:
    """Returns the description of a study and its best trial by the first objective; refuses a study without a complete trial.
    Local, blocking."""
    about, study = load_study(folder)
    best = study.best(about["objectives"][0]["higher_is_better"])
    if best is None or best.values is None:
        raise UsageError(f"no trial of {folder} has given a value yet; continue the study first")
    return about, best


def settings_of(about: Mapping[str, Any], trial: Trial) -> dict[str, Any]:
    """Returns all settings of a trial, with those that the study has fixed. Pure."""
    return {**about.get("fixed", {}), **(trial.values or {})}


@dataclass(frozen=True)
class BestSettings:
    """The settings of the best trial, in the form that `unisono train` takes."""

    changes: Mapping[str, Any]
    algorithm: str
    epochs: int | None
    """Number of epochs for a training without validation data; None where the study does not say it."""


def best_settings(folder: Path, task_file: Path, accept_changes: bool) -> BestSettings:
    """Returns the best settings of a study of this task; refuses a study of another task or of a file that has changed since.
    Local, blocking."""
    about, best = best_of(folder)
    if not about.get("task_file"):
        raise UsageError(f"{folder} is a study of an objective, not of a task (--from-study); give one of this task")
    then = [one[task_file.name] for one in known_sources(about) if task_file.name in one]
    now = hashlib.sha256(task_file.read_bytes()).hexdigest() if task_file.is_file() else None
    if not accept_changes and (not then or (now is not None and now not in then)):
        what = "has changed since the study" if then else f"is not that of the study ({about['task_file']})"
        raise UsageError(
            f"{task_file} {what}, so the settings of {folder} may not suit it; to use them anyway add --accept-changes"
        )
    settings = settings_of(about, best)
    algorithm = settings.pop(ALGORITHM, "allreduce")
    if "defaults" not in about:  # an older study was made with older ones
        from unisono.algorithms.base import find_algorithm

        older = find_algorithm(algorithm).older_defaults
        settings = {**{f"algorithm.{name}": value for name, value in older.items()}, **settings}
    return BestSettings(settings, algorithm, epochs_of(about, best))


def epochs_of(about: Mapping[str, Any], trial: Trial) -> int | None:
    """Returns after how many epochs, in the mean of its trainings, a trial had the weights whose results are its value: those of
    the best epoch, or of the last where final weights count and where earlier versions recorded no other. Pure."""
    of_best = any(one["metric"].startswith("best_") for one in about["objectives"])
    parts = trial.result.details.get("parts", ()) if trial.result is not None else ()
    found = [part["best_epoch"] + 1 if of_best and "best_epoch" in part else part.get("epochs") for part in parts]
    return int(statistics.fmean(found) + 0.5) if found and None not in found else None


def command_of(about: Mapping[str, Any], trial: Trial) -> str:
    """Returns the command that trains with the settings of a trial and with those that the study has fixed. Pure."""
    values = {**((about.get("space") or {}).get("fixed") or {}), **(about.get("fixed") or {}), **(trial.values or {})}
    words = ["unisono", "train", str(about.get("task_file") or about.get("task") or "TASK")]
    if (workers := about.get("workers") or 1) > 1:
        words += ["-n", str(workers)]
    if ALGORITHM in values:
        words += ["--algorithm", str(values.pop(ALGORITHM))]
    for name, value in values.items():
        plain = str(value)
        is_same = type(literal(plain)) is type(value) and literal(plain) == value
        words += ["--set", f"{name}={plain if is_same else repr(value)}"]
    return shlex.join(words)


def command_from_study(folder: Path, about: Mapping[str, Any]) -> str:
    """Returns the command that trains with the best settings of a study on training and validation data together. Pure."""
    return shlex.join(("unisono", "train", str(about["task_file"]), "--from-study", str(folder)))


def write_best(folder: Path, best: Trial, about: Mapping[str, Any], objectives: Sequence[Objective]) -> None:
    """Writes the settings of the best trial as a file for --space with nothing left to search, e.g. to measure them on more folds.
    Local, blocking."""
    assert best.result is not None
    lines = [f"# the best of {folder.name}: trial {best.number}"]
    lines.append(f"# {format_values(objectives, best.result.values)}")
    lines.append(f"# {command_of(about, best)}")
    for name, value in settings_of(about, best).items():
        key = ".".join(json.dumps(part, ensure_ascii=False) if not BARE.fullmatch(part) else part for part in name.split("."))
        text = "none = true" if value is None else f"fixed = {json.dumps(value, ensure_ascii=False)}"  # TOML has no null
        lines += ["", f"[{key}]", text.replace("\x7f", "\\u007f")]
    with atomic_replacement(folder / BEST) as draft:
        draft.write_text("\n".join(lines) + "\n", encoding="utf-8")


def describe_best(folder: Path, best: Trial, about: Mapping[str, Any], objectives: Sequence[Objective], num_parts: int) -> str:
    """Returns the last lines that the command prints: the best trial and how to train with its settings. Pure."""
    assert best.result is not None
    spread = best.result.details.get("spread")
    over = f" over {num_parts} trainings" if spread else ""
    text = f"best: trial {best.number}, {format_values(objectives, best.result.values, spread)}{over}"
    if not about.get("task_file"):
        return f"{text}: {format_settings(best.values)}"
    return (
        f"{text}\nto train with its settings: {command_of(about, best)}\n"
        f"on training and validation data together: {command_from_study(folder, about)}"
    )


def is_study(path: Path) -> bool:
    """Whether a folder holds a study. Local."""
    return (path / ABOUT).is_file()


def fold_models(folder: Path) -> list[Path]:
    """Returns the run directories of the best trial, whose models predict together. Local."""
    _, best = best_of(folder)
    found = sorted(path.parent for path in (folder / "trials" / f"{best.number:06d}").glob(f"*/{WEIGHTS[0]}"))
    if not found:
        raise UsageError(
            f"{folder} has no models of its best trial, {best.number}; train one with its settings: --from-study {folder}"
        )
    return found
