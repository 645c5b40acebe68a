"""Run directories as a training leaves them, without the training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def make_run(
    path: Path,
    metrics: dict[str, float | None],
    *,
    seed: int = 0,
    split: str = "aa",
    named: Sequence[str] = (),
    averages: Mapping[str, str] | None = None,
    **summary: Any,
) -> str:
    """A finished run; `summary` replaces or adds entries of its summary. `named` are the metrics of its task, which old versions
    recorded without their averages."""
    path.mkdir(parents=True)
    config: dict[str, Any] = {
        "task": "made",
        "task_file": "made.py",
        "model": {},
        "data": {},
        "settings": {"seed": seed, "lr": summary.pop("lr", 0.1), "loss_options": {}, "global_batch": 64},
        "num_workers": 2,
    }
    config["settings"] |= {"loss": summary.pop("loss", "cross_entropy"), "metrics": list(named)}
    if averages is not None:
        config["averages"] = dict(averages)
    found = {
        "reason": "finished",
        "metrics": metrics,
        "monitor_metric": "val_accuracy",
        "steps": 60,
        "wall_s": 2.0,
        "samples_per_s": 1000.0,
        "num_workers": 2,
        "split": {"sha256": split * 32, "num_samples": {"train": 1258, "validation": 180, "test": 359}},
        "weights_sha256": "ff" * 32,
        "provenance": {"task": {"file": "/nowhere/made.py", "sha256": "00", "imports": {}}},
        **summary,
    }
    (path / "config.json").write_text(json.dumps(config))
    (path / "summary.json").write_text(json.dumps(found))
    return str(path)
