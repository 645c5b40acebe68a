"""Checks whether a run can repeat another one: recorded calls make sense only in the same experiment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unisono.errors import UsageError
from unisono.training.run_folder.run_directory import as_json, differences

COMPARED = ("task", "model", "data", "settings", "algorithm", "init_from", "on_nan")

WHO = ("group", "simulate")
"""Options of the algorithm about the processes of workers, which need not be the same in a replay."""


def check_same_experiment(replay: Path, record: Mapping[str, Any]) -> None:
    """Local: refuses to repeat a run that was another experiment. Whether its workers were groups of processes does not matter."""
    beside = (replay if replay.is_dir() else replay.parent) / "config.json"
    if not beside.exists():  # a record by itself
        return
    there, here = _comparable_part(json.loads(beside.read_text())), _comparable_part(as_json(record))
    found = "; ".join(differences(there, here))
    if found:
        raise UsageError(f"the run to repeat (--replay {replay}) was another experiment: {found}; give the same settings")


def _comparable_part(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of a run's record that must be the same in a replay: those in `COMPARED`, without the options in
    `WHO`."""
    found = {name: record.get(name) for name in COMPARED}
    algorithm = found["algorithm"] or {}
    return {**found, "algorithm": {name: value for name, value in algorithm.items() if name not in WHO}}
