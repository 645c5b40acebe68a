"""Options of `unisono evaluate` and `unisono apply`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unisono.predict.finished_run import KINDS, SPLITS, WEIGHTS
from unisono.task.options import check, option

COMPUTED = "what is computed"
WRITTEN = "what is written"
COUNTED = "those whose results the training has reported"


@dataclass(frozen=True, kw_only=True)
class TaskSource:
    """Options for finding the task of a run again: where its file is now, and whether changes since the training are accepted."""

    task_file: str | None = option(None, "path of the task file, if it has moved", "TASK.py", group=COMPUTED, flag="--task")
    accept_changes: bool = option(False, "use the task file and the data although they have changed since the training")

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class EvaluateConfig(TaskSource):
    """Options of one evaluation, in plain values."""

    run: str
    split: str = option("test", f"part of the data: {', '.join(SPLITS)}", "SPLIT", choices=SPLITS)
    weights: str | None = option(None, f"weights of the run: final or best (default: {COUNTED})", "WEIGHTS", choices=tuple(WEIGHTS))
    save_predictions: bool = option(False, "also save outputs and targets, in RUN/predictions-SPLIT.npz", group=WRITTEN)


def _names(given: str | Sequence[str]) -> Sequence[str]:
    """Returns names given as a list, or as one text with commas."""
    return [name.strip() for name in given.split(",")] if isinstance(given, str) else given


@dataclass(frozen=True)
class ApplyConfig(TaskSource):
    """Options of one application of models, in plain values."""

    runs: Sequence[str]
    inputs: Sequence[str] = ()
    """Files or a folder; none stands for `split` of the task's own data."""
    split: str = option("test", f"part of the task's data, if no INPUTS are given: {', '.join(SPLITS)}", "SPLIT", choices=SPLITS)
    weights: str | None = option(
        None, f"weights of the runs: final or best (default: {COUNTED})", "WEIGHTS", choices=tuple(WEIGHTS)
    )
    kind: str | None = option(
        None,
        "what to write: label, the class (default for classification); probabilities, one for each class; scores, the probability "
        "of the second of two classes; raw, the outputs of the model (default otherwise)",
        "KIND",
        choices=KINDS,
    )
    options: Mapping[str, Any] = option(
        {}, "how INPUTS are opened, e.g. inputs=images (a key), file=image_id", "NAME=VALUE", flag="--open", example="size=224"
    )
    as_is: bool = option(False, "INPUTS are ready for the model; the task's data are not read")

    out: str = option("predictions.csv", "output file: .csv, .npy or .h5", "FILE", group=WRITTEN)
    columns: Sequence[str] = option(
        (), "headers of the columns, e.g. target; or NAME=FIELD to write only these fields: low=p0,high=p1", "NAMES", convert=_names
    )
    id_name: str | None = option(
        None, "header of the first column, which has the names of pictures or else the numbers of samples", "NAME", flag="--id"
    )
    overwrite: bool = option(False, "replace an existing file")
