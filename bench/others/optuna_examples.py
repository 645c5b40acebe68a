"""Examples of Optuna: their objectives, searched by `un.tune` in two processes, and each trial again by Optuna's own."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

import unisono as un
from bench.others.program import SEED, Found, Program, compiled

MOVED = "`un.tune(objective, ...)` in the place of `study.optimize`"
NUM_TRIALS = 6
PICTURES = "75 random pictures"


def _program(name: str, path: str, stand_in: str = "-", **more: Any) -> Program:
    given = {"moved": MOVED, "needs": "maximize", **more}
    return Program(family="optuna_examples", name=name, repository="optuna/optuna-examples", path=path, stand_in=stand_in, **given)


PROGRAMS = [
    _program("optuna quadratic", "basic/quadratic.py", needs="minimize"),
    _program("optuna pruning", "basic/pruning.py", edits=[(r"range\(100\)", "range(10)")]),
    _program("optuna multi_objective", "multi_objective/quadratic_simple.py", needs="minimize maximize"),
    _program("optuna sklearn_simple", "sklearn/sklearn_simple.py", edits=[(r"n_jobs=-1", "n_jobs=1")]),
    _program("optuna pytorch_simple", "pytorch/pytorch_simple.py", PICTURES, edits=[(r"(?m)^EPOCHS = 10", "EPOCHS = 3")]),
    _program("optuna enqueue_trial", "faq/enqueue_trial.py", edits=[(r"n_jobs=-1", "n_jobs=1")]),
    _program("optuna pytorch_checkpoint", "pytorch/pytorch_checkpoint.py", PICTURES),
]


def run(program: Program, texts: dict[str, str], is_moved: bool) -> Found:
    """Local, blocking: the values of all trials, by their number."""
    names: dict[str, Any] = {"__name__": "objective_of_others"}
    exec(compiled(program, next(iter(texts.values()))), names)

    def objective(trial: Any) -> Any:
        random.seed(SEED)
        np.random.seed(SEED)
        torch.manual_seed(SEED)
        return names["objective"](trial)

    file = Path("..") / "trials.json"
    if is_moved:
        directions = program.needs.split()
        direction = directions[0] if len(directions) == 1 else directions
        options: dict[str, Any] = {"search": "random", "seed": SEED, "show": False}
        try:
            study = un.tune(objective, NUM_TRIALS, 2, "study", direction=direction, **options).to_optuna()
        except un.UnisonoError as error:
            said = next(Path("study/trials").glob("*/*.txt")).read_text().strip().splitlines()[-1].removeprefix("AttributeError: ")
            raise (un.UsageError(said) if "is not available in un.tune" in said else error) from error
        trials = [
            {"params": one.params, "values": one.values, "reports": one.intermediate_values, "pruned": one.state.name == "PRUNED"}
            for one in study.trials
        ]
        failed = [one.number for one in study.trials if one.state.name == "FAIL"]
        if failed:
            raise RuntimeError(f"{len(failed)} of {len(study.trials)} trials failed: {study.trials[failed[0]].user_attrs}")
        file.write_text(json.dumps(trials))
        return _as_found(trials)
    return _as_found([_again(objective, one) for one in json.loads(file.read_text())])


def _again(objective: Any, trial: dict[str, Any]) -> dict[str, Any]:
    """Local, blocking: the same trial by Optuna, which prunes where the search did."""
    import optuna

    reports: dict[int, float] = {}

    class Again(optuna.trial.FixedTrial):
        def report(self, value: float, step: int) -> None:
            reports[step] = value

        def should_prune(self) -> bool:
            return trial["pruned"] and len(reports) == len(trial["reports"])

    again = Again(trial["params"])
    try:
        values = objective(again)
    except optuna.TrialPruned:
        return {"params": again.params, "values": None, "reports": reports, "pruned": True}
    return {"params": again.params, "values": np.ravel(values).tolist(), "reports": reports, "pruned": False}


def _as_found(trials: list[dict[str, Any]]) -> Found:
    found: Found = {"pruned": np.array([one["pruned"] for one in trials], float)}
    for number, one in enumerate(trials):
        found[f"trial {number}: values"] = np.array(one["values"] or [], float)
        found[f"trial {number}: reports"] = np.array(list(one["reports"].values()), float)
    return found
