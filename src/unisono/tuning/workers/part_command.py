"""The command that starts one part of a trial of a task or an objective, without the fields by which its workers meet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unisono.tuning.study.store import PendingTrial
from unisono.tuning.study.trial_plan import Part, Plan


def part_command(plan: Plan, pending: PendingTrial, values: Mapping[str, Any], part: Part, folder: Path) -> dict[str, Any]:
    """Returns the command for the workers of one part; `folder` is that of the trial. Pure."""
    name = f"fold-{part.fold}" + (f"-start-{part.repeat}" if plan.repeats > 1 else "")
    return {
        "do": "train",
        "number": pending.number,
        "values": dict(values),
        "fold": part.fold,
        "repeat": part.repeat,
        "out": str(folder / name),
        "output": str(folder / f"{name}.txt"),
        "asks": plan.prune not in ("none", "wilcoxon"),
        "options": dict(plan.options),
        "samples": dict(plan.samples),
    }
