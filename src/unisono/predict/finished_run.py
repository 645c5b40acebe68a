"""Reads a finished run's directory: its configuration, its results, and where its weights are. Loads no framework."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unisono.errors import UsageError, nearest_path
from unisono.task.task import BEST, FINAL
from unisono.training.run_folder.run_status import describe_unfinished

WEIGHTS: Mapping[str, str] = {FINAL: "weights.safetensors", BEST: "best.safetensors"}
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
        return (self.path / WEIGHTS[BEST]).is_file()

    def weights(self, which: str) -> Path:
        """The path of the final weights, or of those of the best epoch."""
        file = self.path / WEIGHTS[which]
        if file.is_file():
            return file
        if which == BEST:
            raise UsageError(f"{self.path} has no best weights, as its training had no validation; use --weights final")
        raise UsageError(f"{self.path} has lost its weights: there is no {file.name}; train it again")

    @property
    def weights_that_count(self) -> str:
        """`best` or `final`: the weights whose results its training reports. Earlier versions always reported the final ones."""
        return str(self.summary.get("weights", FINAL))

    def sha256(self, which: str) -> str | None:
        """The hash of the final or the best weights that the run wrote; None where there are none. That of the best is in the
        file itself where the run is of an earlier version."""
        name = "weights_sha256" if which == FINAL else "best_weights_sha256"
        found = self.summary[name] if name in self.summary or which == FINAL else _recorded_sha256(self.path / WEIGHTS[which])
        return None if found is None else str(found)

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
        """All known metrics: of the training itself, and of later evaluations of the same weights and samples. Those of other
        weights than the ones that count have names that begin with best_ or final_."""
        found: dict[str, float] = {}
        for which in WEIGHTS:
            for split in SPLITS:
                file = self.evaluation(split, which)
                if file.is_file() and self.is_current(which, evaluated := read_json(file)):
                    prefix = "" if which == self.weights_that_count else f"{which}_"
                    found |= {prefix + name: value for name, value in evaluated["metrics"].items()}
        return found | dict(self.summary["metrics"])

    def is_current(self, which: str, evaluated: Mapping[str, Any]) -> bool:
        """Whether what `unisono evaluate` has written is of the weights and samples that the run has now: after more epochs it is
        not. Of a run of an earlier version without its best weights it cannot be told, and counts."""
        known = self.sha256(which)
        is_unknown = known is None and "best_weights_sha256" not in self.summary
        of_other_data = "changed_data" in evaluated and str(evaluated["changed_data"])
        is_same_data = str(evaluated["split_sha256"]) == self.summary["split"]["sha256"] and not of_other_data
        return is_same_data and (is_unknown or str(evaluated["weights_sha256"]) == known)

    def samples(self, split: str) -> Mapping[str, Any] | None:
        """What the training, or else an evaluation, has recorded of the samples of a part of its data; None where an earlier
        version recorded nothing."""
        files = [(which, self.evaluation(split, which)) for which in WEIGHTS]
        evaluated = [read_json(file) for which, file in files if file.is_file()]
        found = [one.get("samples", {}) for one in (self.summary, *evaluated) if not one.get("changed_data")]
        return next((one[split] for one in found if split in one), None)

    def outdated(self) -> list[Path]:
        """The files of evaluations that are not of the weights and samples that the run has now."""
        files = [(which, self.evaluation(split, which)) for which in WEIGHTS for split in SPLITS]
        return [file for which, file in files if file.is_file() and not self.is_current(which, read_json(file))]


def open_run(path: str | Path) -> FinishedRun:
    """Local: opens a run directory; refuses what is none, or one whose training is not finished."""
    where = Path(path)
    if not where.exists():
        raise UsageError(f"there is no run directory {where}; {nearest_path(where)}")
    if not is_run(where):
        what = "has no config.json" if where.is_dir() else "is a file"
        raise UsageError(f"{where} is not a run directory (it {what}); give one that `unisono train` has written")
    if not (where / "summary.json").is_file():
        raise UsageError(f"{where} {describe_unfinished(where)}")
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
    return "" if which == FINAL else f"-{which}"


def _recorded_sha256(file: Path) -> str | None:
    """Returns the hash of its tensors that a safetensors file holds in its header; None where there is none."""
    if not file.is_file():
        return None
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            found: dict[str, Any] = json.loads(stream.read(length if length < file.stat().st_size else 0))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read ({error}); it may be cut short: write or copy it again") from error
    return found.get("__metadata__", {}).get("sha256")  # type: ignore[no-any-return]
