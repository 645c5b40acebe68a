"""Reads a finished run's directory: its configuration, its results, and where its weights are. Loads no framework."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from unisono.errors import UsageError

WEIGHTS: Mapping[str, str] = {"final": "weights.safetensors", "best": "best.safetensors"}
SPLITS = ("test", "validation", "train")
KINDS = ("label", "probabilities", "scores", "raw")
"""Kinds of predictions that can be made from the outputs of a model."""
PREFIXES: Mapping[str, str] = {"train": "train_", "validation": "val_", "test": "test_"}
"""Part of the data -> how names of its metrics begin."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run in its directory. Methods are local."""

    path: Path
    config: Mapping[str, Any]
    summary: Mapping[str, Any]

    @property
    def has_best(self) -> bool:
        """Whether the weights of the best epoch were kept."""
        return (self.path / WEIGHTS["best"]).is_file()

    def weights(self, which: str) -> Path:
        """The path of the final weights, or of those of the best epoch."""
        file = self.path / WEIGHTS[which]
        if file.is_file():
            return file
        if which == "best":
            raise UsageError(f"{self.path} has no best weights, as its training had no validation; use --weights final")
        raise UsageError(f"{self.path} has lost its weights: there is no {file.name}; train it again")

    def num_samples(self, split: str) -> int:
        """Number of samples of a part of its data in the training."""
        counts: Mapping[str, int] = {**self.config.get("division", {}).get("held_out", {}), **self.summary["split"]["num_samples"]}
        if split not in counts:
            raise UsageError(f"the task of {self.path} has no {split} data (--split); it has {', '.join(counts)}")
        return counts[split]

    def evaluation(self, split: str, which: str) -> Path:
        """The path to which `unisono evaluate` writes its results."""
        return self.path / f"evaluation-{split}{_suffix(which)}.json"

    def predictions(self, split: str, which: str) -> Path:
        """The path to which `unisono evaluate --save-predictions` writes outputs and targets."""
        return self.path / f"predictions-{split}{_suffix(which)}.npz"

    def metrics(self) -> dict[str, float]:
        """All known metrics: of the training itself, and of later evaluations. Names of those of the best epoch's weights begin
        with best_."""
        found: dict[str, float] = {}
        for which in WEIGHTS:
            for split in SPLITS:
                file = self.evaluation(split, which)
                if file.is_file():
                    best = "best_" if which == "best" else ""
                    found |= {best + name: value for name, value in read_json(file)["metrics"].items()}
        return found | dict(self.summary["metrics"])


def open_run(path: str | Path) -> FinishedRun:
    """Local: opens a run directory; refuses what is none, or one whose training is not finished."""
    where = Path(path)
    if not where.exists():
        near = get_close_matches(where.name, [entry.name for entry in where.parent.iterdir()], 1) if where.parent.is_dir() else []
        hint = f"did you mean {where.with_name(near[0])}?" if near else "check the path"
        raise UsageError(f"there is no run directory {where}; {hint}")
    if not is_run(where):
        what = "has no config.json" if where.is_dir() else "is a file"
        raise UsageError(f"{where} is not a run directory (it {what}); give one that `unisono train` has written")
    if not (where / "summary.json").is_file():
        raise UsageError(f"{where} holds an unfinished run (there is no summary.json); wait for its end, or train it again")
    return FinishedRun(where, read_json(where / "config.json"), read_json(where / "summary.json"))


def refuse_idle_workers(num_workers: int, num_samples: int) -> None:
    """Pure: refuses more workers than samples."""
    if num_workers > num_samples:
        raise UsageError(f"{num_workers} workers are too many for {num_samples} samples (-n); use -n {num_samples} or fewer")


def is_run(path: Path) -> bool:
    """Local: whether a path is a run directory."""
    return (path / "config.json").is_file()


def read_json(path: Path) -> Any:
    """Local: reads a JSON file."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read ({error}); it is damaged: write or copy it again") from error


def _suffix(which: str) -> str:
    """Returns '-best' for file names about the best weights; empty for the final ones."""
    return "" if which == "final" else f"-{which}"
