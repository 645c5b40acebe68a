"""Models of trials that are among the best are kept; all others go, and nothing else does."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from unisono.files.journal import Record
from unisono.tuning.report.findings import measures_of, pareto_front
from unisono.tuning.study.kept_models import KeptModels
from unisono.tuning.study.study import COMPLETE, FAILED, PRUNED, Study, Trial, begin_record, end_record, proposal_record

RUNS = ("fold-0", "fold-1-start-2", "old-1/fold-0")
FILES = ("weights.safetensors", "best.safetensors", "summary.json", "checkpoints/000004/state.safetensors")


def of(*records: Mapping[str, Any]) -> Study:
    study = Study()
    for number, record in enumerate(records):
        study.apply(Record("job", number, record))
    return study


def written(folder: Path, num_trials: int) -> set[tuple[int, str]]:
    """As trainings leave them: (trial, file)."""
    for trial in range(num_trials):
        for run in RUNS:
            for name in FILES:
                file = folder / "trials" / f"{trial:06d}" / run / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text("x")
    return there(folder)


def there(folder: Path) -> set[tuple[int, str]]:
    files = [file.relative_to(folder / "trials") for file in (folder / "trials").rglob("*") if file.is_file()]
    return {(int(file.parts[0]), str(Path(*file.parts[1:]))) for file in files}


def kept(folder: Path, study: Study, higher: Sequence[bool] = (True,)) -> KeptModels:
    models = KeptModels(folder, higher)
    for trial in study.trials.values():
        models.trial_ended(trial)
    models.remove_weights()
    return models


def with_weights(folder: Path) -> set[int]:
    return {trial for trial, file in there(folder) if file.endswith("weights.safetensors")}


def test_only_what_is_of_no_use_goes(tmp_path: Path) -> None:
    records = [proposal_record(number, {}) for number in range(5)] + [
        begin_record(3, 0, "job/0", 1.0),
        end_record(2, 0, PRUNED, [0.5], 1.0),
    ]
    records += [
        end_record(0, 0, COMPLETE, [0.1], 1.0),
        end_record(1, 0, COMPLETE, [0.9], 1.0),
        end_record(4, 0, FAILED, [], 1.0, "out of memory"),
    ]
    before = written(tmp_path, 6)
    study = of(*records)
    models = kept(tmp_path, study)
    gone = before - there(tmp_path)
    assert gone == {
        (trial, file)
        for trial, file in before
        if (trial in (0, 2, 4) and "weights" in file)
        or (trial in (0, 2, 4) and "best" in file)
        or (trial == 4 and "checkp" in file)
    }, "trial 1 is the best, 3 runs, of 5 nothing is known"
    kept(tmp_path, study)
    models.remove_weights()
    assert before - there(tmp_path) == gone, "once more does no harm"


def test_the_best_so_far_is_kept_until_another_is_better(tmp_path: Path) -> None:
    models = KeptModels(tmp_path, [False])
    written(tmp_path, 4)
    study = Study()
    for number, (value, expected) in enumerate([(3.0, {0, 1, 2, 3}), (5.0, {0, 2, 3}), (3.0, {0, 3}), (2.0, {3})]):
        study.apply(Record("job", number, end_record(number, 0, COMPLETE, [value], 1.0)))
        models.trial_ended(study.trials[number])
        models.remove_weights()
        assert with_weights(tmp_path) == expected, "of equals the first is the best"


@pytest.mark.parametrize("seed", range(4))
def test_of_several_objectives_the_front_is_kept_in_whatever_order_trials_end(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    results = [end_record(number, 0, COMPLETE, [draw.randint(0, 5), draw.randint(0, 5)], 1.0) for number in range(20)]
    study = of(*draw.sample(results, len(results)))
    written(tmp_path, 20)
    kept(tmp_path, study, (True, False))
    objectives = [{"metric": "a", "higher_is_better": True}, {"metric": "b", "higher_is_better": False}]
    best = study.best(True)
    assert best is not None
    assert with_weights(tmp_path) == {
        best.number,
        *(one.number for one in pareto_front(study, measures_of({"objectives": objectives}))),
    }


def test_values_that_are_no_numbers_are_not_the_best(tmp_path: Path) -> None:
    written(tmp_path, 3)
    values = ([float("inf")], [0.2], [float("nan")])
    kept(tmp_path, of(*(end_record(number, 0, COMPLETE, value, 1.0) for number, value in enumerate(values))))
    assert with_weights(tmp_path) == {1}


def test_a_result_that_comes_late_and_counts_is_weighed_again(tmp_path: Path) -> None:
    written(tmp_path, 2)
    study = of(end_record(0, 1, COMPLETE, [0.9], 1.0), end_record(1, 0, COMPLETE, [0.5], 1.0))
    models = KeptModels(tmp_path, [True])
    models.trial_ended(study.trials[0])
    study.apply(Record("late", 0, end_record(0, 0, FAILED, [], 1.0)))
    models.trial_ended(study.trials[0])
    models.trial_ended(study.trials[1])
    models.remove_weights()
    assert with_weights(tmp_path) == {1}


def test_the_observer_gets_the_same(tmp_path: Path) -> None:
    heard: list[object] = []

    class Watching:
        def trial_ended(self, trial: Trial) -> None:
            heard.append(trial.number)

        def say(self, text: str) -> None:
            heard.append(text)

    models = KeptModels(tmp_path, [True], Watching())
    models.trial_ended(of(end_record(7, 0, COMPLETE, [1.0], 1.0)).trials[7])
    models.say("a word")
    models.remove_weights()
    assert heard == [7, "a word"]
