"""Ranking, grouping and refusals, on summaries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.predict.made_runs import make_run
from unisono.cli import main
from unisono.errors import UsageError
from unisono.predict.compare_runs import compare_runs
from unisono.predict.intervals import wilson


def test_runs_are_ranked_with_the_interval_of_their_counts(tmp_path: Path) -> None:
    low = make_run(tmp_path / "low", {"test_accuracy": 340 / 359, "val_accuracy": 0.9}, lr=0.1)
    high = make_run(tmp_path / "high", {"test_accuracy": 352 / 359, "val_accuracy": 0.8}, lr=0.2)
    found = compare_runs([low, high])
    assert found.metric == "test_accuracy" and found.higher_is_better
    assert [row.runs for row in found.rows] == [(high,), (low,)]
    assert found.rows[0].interval == wilson(352, 359)
    assert any("Wilson" in note for note in found.notes)
    assert any("--save-predictions" in note for note in found.notes)


def test_a_loss_is_better_when_lower_and_has_no_interval(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / str(loss), {"val_loss": loss}, lr=loss) for loss in (0.3, 0.2)]
    found = compare_runs(runs, "val_loss")
    assert [row.value for row in found.rows] == [0.2, 0.3]
    assert all(row.interval is None for row in found.rows)
    assert any(note.startswith("no interval") for note in found.notes)


def test_a_share_that_is_no_count_of_samples_has_no_interval(tmp_path: Path) -> None:
    found = compare_runs([make_run(tmp_path / "weighted", {"test_accuracy": 0.98765})])
    assert found.rows[0].interval is None


def test_an_own_metric_is_ranked_in_its_given_direction(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / str(error), {"test_my_error": error}, lr=error) for error in (0.3, 0.2)]
    assert [row.value for row in compare_runs(runs, "test_my_error").rows] == [0.3, 0.2]
    assert [row.value for row in compare_runs(runs, "test_my_error", lower_is_better=True).rows] == [0.2, 0.3]


def test_seeds_of_one_configuration_are_one_row(tmp_path: Path) -> None:
    seeds = [make_run(tmp_path / f"seed{seed}", {"test_accuracy": value}, seed=seed) for seed, value in enumerate((0.9, 0.8, 0.7))]
    other = make_run(tmp_path / "other", {"test_accuracy": 0.75}, lr=0.5)
    found = compare_runs([*seeds, other])
    assert [row.runs for row in found.rows] == [tuple(seeds), (other,)]
    assert found.rows[0].value == pytest.approx(0.8)
    assert found.rows[0].spread == pytest.approx(0.1)
    assert found.rows[0].interval is None and found.rows[1].spread is None


def test_repetitions_with_one_seed_are_not_taken_for_a_spread(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, {"test_accuracy": 0.9}) for name in ("a", "b")]
    assert [row.spread for row in compare_runs(runs).rows] == [None, None]


def test_kept_predictions_give_the_difference_to_the_best(tmp_path: Path) -> None:
    targets = np.arange(359) % 2
    runs = []
    for name, wrong in (("good", 5), ("bad", 60)):
        run = make_run(tmp_path / name, {"test_accuracy": (359 - wrong) / 359}, lr=wrong)
        outputs = np.eye(2, dtype=np.float32)[np.where(np.arange(359) < wrong, 1 - targets, targets)]
        kept: dict[str, Any] = {"outputs": outputs, "targets": targets, "split_sha256": "aa" * 32, "weights_sha256": "ff" * 32}
        np.savez(Path(run) / "predictions-test.npz", **kept)
        runs.append(run)
    low, high = compare_runs(runs).rows[1].difference or (0, 0)
    assert low < -55 / 359 < high < 0
    np.savez(Path(runs[1]) / "predictions-test.npz", **(kept | {"weights_sha256": "ee" * 32}))
    assert compare_runs(runs).rows[1].difference is None


def test_an_evaluation_of_earlier_best_weights_is_not_compared(tmp_path: Path) -> None:
    """After more epochs: neither the metrics that were measured with them, nor their predictions."""
    runs = [make_run(tmp_path / name, {"val_loss": 0.2}, lr=lr, best_weights_sha256="ee" * 32) for lr, name in enumerate("ab", 1)]
    targets = np.arange(359) % 2
    for run in runs:
        found: dict[str, Any] = {"split_sha256": "aa" * 32, "weights_sha256": "ee" * 32}
        Path(run, "evaluation-test-best.json").write_text(json.dumps({**found, "metrics": {"test_accuracy": 1.0}}))
        np.savez(Path(run) / "predictions-test-best.npz", outputs=np.eye(2, dtype=np.float32)[targets], targets=targets, **found)
    assert compare_runs(runs, "best_test_accuracy").rows[1].difference == (0, 0)
    np.savez(
        Path(runs[1]) / "predictions-test-best.npz",
        outputs=np.eye(2, dtype=np.float32)[targets],
        targets=targets,
        split_sha256="aa" * 32,
        weights_sha256="dd" * 32,
    )
    assert compare_runs(runs, "best_test_accuracy").rows[1].difference is None
    file = Path(runs[1], "evaluation-test-best.json")
    file.write_text(file.read_text().replace("ee", "dd"))
    with pytest.raises(UsageError, match=r"unknown metric.*evaluation-test-best.json is left out, as it is of other weights"):
        compare_runs(runs, "best_test_accuracy")
    assert any("evaluation-test-best.json is left out" in note for note in compare_runs(runs, "val_loss").notes)


def test_a_metric_can_be_named_by_its_weights(tmp_path: Path) -> None:
    best = make_run(tmp_path / "best", {"test_accuracy": 0.9, "final_val_loss": 0.4, "val_loss": 0.3}, lr=0.1, weights="best")
    final = make_run(tmp_path / "final", {"test_accuracy": 0.8, "val_loss": 0.2, "best_val_loss": 0.1}, lr=0.2)
    for metric, values in (("test_accuracy", [0.9, 0.8]), ("final_val_loss", [0.2, 0.4]), ("best_val_loss", [0.1, 0.3])):
        found = compare_runs([best, final], metric)
        assert ([row.value for row in found.rows], found.higher_is_better) == (values, metric == "test_accuracy")


def test_averages_that_differ_are_not_ranked(tmp_path: Path) -> None:
    """A run of an old version knew only means over the classes, whatever the outputs of its model."""
    score: dict[str, float | None] = {"test_f1": 0.8, "best_val_f1": 0.5, "test_f1_macro": 0.7, "test_accuracy": 0.9}
    old = make_run(tmp_path / "old", score, named=["f1", "f1_macro"], lr=1)
    positive = make_run(tmp_path / "positive", score, named=["f1", "f1_macro"], averages={"f1": "binary"}, lr=2)
    mean = make_run(tmp_path / "mean", score, named=["f1", "f1_macro"], averages={"f1": "macro"}, lr=3)
    logged = make_run(tmp_path / "logged", score, averages={}, lr=4)
    for name in ("test_f1", "best_val_f1"):
        with pytest.raises(UsageError, match=f"{name} means different things in these runs") as told:
            compare_runs([positive, old, mean], name)
        assert f"the positive class (f1_binary): {positive}; the mean over the classes (f1_macro): {old}, {mean}" in str(told.value)
    assert len(compare_runs([old, mean], "test_f1").rows) == 2
    assert len(compare_runs([positive, old, mean], "test_f1_macro").rows) == 3
    assert len(compare_runs([positive, old, mean], "test_accuracy").rows) == 3
    assert "test_f1 of 1 of the runs comes from its own model or function" in " ".join(compare_runs([old, logged], "test_f1").notes)


def test_the_difference_of_old_runs_is_that_of_what_they_recorded(tmp_path: Path) -> None:
    """The bootstrap of saved predictions takes the mean over the classes, of which half is that of the easy negative one."""
    targets = np.r_[np.zeros(300, int), np.ones(59, int)]
    intervals = {}
    for kind, averages in (("old", None), ("new", {"recall": "binary"})):
        runs = []
        for name, num_found in (("good", 59), ("bad", 0)):
            recall = num_found / 59 if averages else (1 + num_found / 59) / 2
            run = make_run(tmp_path / kind / name, {"test_recall": recall}, named=["recall"], averages=averages, lr=num_found)
            outputs = np.where(np.arange(359) >= 359 - num_found, 1.0, -1.0).astype(np.float32)
            kept: dict[str, Any] = {"outputs": outputs, "targets": targets, "split_sha256": "aa" * 32, "weights_sha256": "ff" * 32}
            np.savez(Path(run) / "predictions-test.npz", **kept)
            runs.append(run)
        intervals[kind] = compare_runs(runs, "test_recall").rows[1].difference
    assert intervals == {"old": (-0.5, -0.5), "new": (-1.0, -1.0)}


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    good = make_run(tmp_path / "good", {"test_accuracy": 0.9, "test_loss": None})
    other = make_run(tmp_path / "other", {"test_accuracy": 0.9}, split="bb")
    stopped = make_run(tmp_path / "stopped", {"test_accuracy": 0.9}, reason="interrupted")
    with pytest.raises(UsageError, match=r"different samples.*split aaaaaaaaaaaa: .*good; split bbbbbbbbbbbb: .*other"):
        compare_runs([good, other], "test_accuracy")
    with pytest.raises(UsageError, match=r"stopped is unfinished \(interrupted\)"):
        compare_runs([good, stopped])
    with pytest.raises(UsageError, match="given twice"):
        compare_runs([good, good])
    with pytest.raises(UsageError, match=r"unknown metric 'test_acuracy' of .*good.*did you mean 'test_accuracy'"):
        compare_runs([good], "test_acuracy")
    with pytest.raises(UsageError, match=r"unknown metric .* of .*good"):
        compare_runs([good], "test_loss")


def test_other_training_data_are_noted_and_other_test_data_refused(tmp_path: Path) -> None:
    """A paired comparison needs the same samples in the part on which the metric was measured, and in no other."""
    metrics: dict[str, float | None] = {"test_accuracy": 0.9, "val_accuracy": 0.8, "loss": 0.1}

    def run(name: str, lr: float, split: str, **parts: str) -> str:
        path = make_run(tmp_path / name, metrics, lr=lr, split=split)
        summary = json.loads(Path(path, "summary.json").read_text())
        summary["split"] |= {"parts_sha256": parts} if parts else {}
        Path(path, "summary.json").write_text(json.dumps(summary))
        return path

    one = run("one", 1, "aa", train="11", validation="22", test="33")
    less = run("less", 2, "bb", train="99", validation="22", test="33")
    old = run("old", 3, "bb")
    found = compare_runs([one, less], "test_accuracy")
    assert found.split_sha256 == "33" and len(found.rows) == 2
    (note,) = [note for note in found.notes if "data of these runs differ" in note]
    assert note.startswith("the training data") and f"split 11: {one}; split 99: {less}" in note
    assert compare_runs([one, less], "val_accuracy").split_sha256 == "22"
    assert not any("data of these runs differ" in note for note in compare_runs([less, old], "test_accuracy").notes)
    for runs, metric in (([one, less], "loss"), ([one, old], "test_accuracy")):
        with pytest.raises(UsageError, match="different samples"):
            compare_runs(runs, metric)


def test_a_study_beside_runs_is_left_out_with_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, study = make_run(tmp_path / "run", {"test_accuracy": 0.9}), tmp_path / "search"
    study.mkdir()
    (study / "study.json").write_text("{}")
    assert main(["compare", run, str(study)]) == 0
    told = capsys.readouterr().out
    assert f"{study} is left out: it is a study" in told and "0.9" in told
    assert main(["compare", str(study)]) == 2
    assert "is a study, not a run" in capsys.readouterr().err
