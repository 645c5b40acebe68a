"""Small studies as tests start them, and what is written of them on the disk."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unisono.files.journal import Reader
from unisono.tuning.study.result import load_study
from unisono.tuning.study.study import ENDED, Result

UNISONO = str(Path(sys.executable).parent / "unisono")

TASK = """
import time
from pathlib import Path
from typing import Annotated

import numpy as np
from torch import nn

import unisono as un

HOLD, SLOW = (Path(__file__).with_name(name) for name in ("hold", "slow"))
LABELS = np.arange(60) % 3
INPUTS = np.eye(3, 4, dtype=np.float32)[LABELS] + np.random.default_rng(0).normal(0, 0.3, (60, 4)).astype(np.float32)

def model(width: Annotated[int, un.Range(2, 8)] = 4, bias: Annotated[bool, un.Choice(True, False)] = True) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width, bias=bias), nn.ReLU(), nn.Linear(width, 3))


def data() -> un.Splits:
    return un.split((INPUTS, LABELS), validation=0.2, test=0.2)


def loss(outputs, targets):
    time.sleep(0.05 if SLOW.exists() else 0)
    while HOLD.exists() and outputs.requires_grad:  # without is to see whether it works at all
        time.sleep(0.01)
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


task = un.Task(model=model, data=data, loss=loss, metrics=("accuracy",), lr=0.1, global_batch=12, epochs=2)
"""
SPACE = """
[lr]
low = 1e-3
high = 1.0
log = true

[optimizer]
choice = ["sgd", "adamw"]

[optimizer.momentum]
low = 0.0
high = 0.99
when = { optimizer = "sgd" }

[global_batch]
choice = [6, 12]

[algorithm]
choice = ["allreduce", "local_sgd"]
"""


def written_task(folder: Path) -> str:
    """Local: the path of a file with TASK. While a file `hold` is beside it nothing is learned, with `slow` slowly."""
    file = folder / "task.py"
    file.write_text(TASK)
    return str(file)


def records(study: Path, *events: str) -> list[Mapping[str, Any]]:
    """Local: all that jobs have written of these kinds, and that can be read."""
    return [one.value for one in Reader(study / "journal").read(is_over=True) if one.value["event"] in events]


def all_ended_once(study: Path, num_trials: int) -> dict[int, Result]:
    """Local: how each trial ended, after having seen that each has, and has once."""
    times = Counter(one["trial"] for one in records(study, ENDED))
    assert times == dict.fromkeys(range(num_trials), 1), f"trials and how often each has ended: {dict(times)}"
    results = {number: trial.result for number, trial in load_study(study)[1].trials.items()}
    return {number: result for number, result in sorted(results.items()) if result is not None}


def first_steps(study: Path, trial: int, part: str = "fold-0") -> list[int]:
    """Local: the step at which each attempt of a training began."""
    file = study / "trials" / f"{trial:06d}" / part / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [row["first_step"] for row in rows if row["event"] == "started"]
