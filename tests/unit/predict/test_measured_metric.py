"""Intervals belong to the metric that is shown, and errors are ranked as errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.predict.made_runs import make_run
from unisono.errors import UsageError
from unisono.predict.compare_runs import compare_runs

metrics = pytest.importorskip("sklearn.metrics")
RANDOM = np.random.default_rng(4)
TARGETS = RANDOM.integers(0, 2, 359)
HASHES: dict[str, Any] = {"split_sha256": "aa" * 32, "weights_sha256": "ff" * 32}


def saved(path: Path, value: float, outputs: Any, targets: Any = TARGETS, lr: float = 1.0, order: str = "", **more: Any) -> str:
    """A finished run with saved predictions, as `unisono evaluate` writes them."""
    run = make_run(path, {"test_accuracy": value}, lr=lr, **more)
    np.savez(Path(run) / "predictions-test.npz", outputs=outputs, targets=targets, order=order, **HASHES)
    return run


def test_the_interval_of_another_metric_than_the_one_shown_is_left_out(tmp_path: Path) -> None:
    """Sigmoid outputs lie above 0, so that read as logits all of them say yes, and two runs that differ much seem to be equal."""
    runs = []
    for name, sharpness in (("good", 2.0), ("bad", 0.3)):
        shares = 1 / (1 + np.exp(-(sharpness * (2 * TARGETS - 1) + RANDOM.normal(size=359))))
        value = float(metrics.accuracy_score(TARGETS, shares > 0.5))
        runs.append(saved(tmp_path / name, value, shares.astype(np.float32)[:, None], TARGETS[:, None], lr=sharpness))
    found = compare_runs(runs)
    assert [row.difference for row in found.rows] == [None, None]
    (note,) = [note for note in found.notes if note.startswith("no difference")]
    share = float(metrics.accuracy_score(TARGETS, np.ones(359)))
    assert f"test_accuracy of {runs[1]} is {found.rows[1].value:.6g}, but computed from its saved predictions {share:.6g}" in note


def test_the_interval_of_a_loss_that_ignores_a_label_of_its_own_is_left_out(tmp_path: Path) -> None:
    """A loss module is recorded by its name, without its ignore_index."""
    targets = np.where(np.arange(359) < 100, 2, TARGETS)
    runs = []
    for name, wrong in (("good", 10), ("bad", 90)):
        labels = np.where(np.arange(359) >= 359 - wrong, 1 - targets, targets)
        counted = targets != 2
        value = float(metrics.accuracy_score(targets[counted], labels[counted]))
        runs.append(saved(tmp_path / name, value, np.eye(3, dtype=np.float32)[np.where(labels == 2, 0, labels)], targets, lr=wrong))
    assert [row.difference for row in compare_runs(runs).rows] == [None, None]


def test_predictions_in_another_order_or_of_other_targets_are_no_pairs(tmp_path: Path) -> None:
    def run(name: str, wrong: int, rows: Any = None, **more: Any) -> str:
        right = np.arange(359) >= wrong
        targets = TARGETS if rows is None else TARGETS[rows]
        outputs = np.eye(2, dtype=np.float32)[np.where(right, targets, 1 - targets)]
        return saved(tmp_path / name, (359 - wrong) / 359, outputs, targets, lr=wrong, **more)

    best = run("best", 5, order="a")
    for other in (run("moved", 60, order="b"), run("turned", 50, rows=np.arange(359)[::-1], order="a")):
        found = compare_runs([best, other])
        assert found.rows[1].difference is None
        assert any("in another order, or of other targets, so they are no pairs" in note for note in found.notes)
    low, high = compare_runs([best, run("same", 61, order="a")]).rows[1].difference or (0.0, 0.0)
    assert low < -56 / 359 < high < 0


def test_an_error_of_peoples_own_is_ranked_by_its_recorded_direction(tmp_path: Path) -> None:
    def runs(folder: str, *directions: bool | None) -> list[str]:
        values = (0.3, 0.2, 0.25)
        return [
            make_run(tmp_path / folder / str(value), {"test_brier": value}, lr=value, higher_is_better={"brier": one})
            for value, one in zip(values, directions, strict=False)
        ]

    found = compare_runs(runs("known", False, False, False), "test_brier")
    assert ([row.value for row in found.rows], found.higher_is_better) == ([0.2, 0.25, 0.3], False)
    unknown = runs("unknown", None, None)
    with pytest.raises(UsageError, match=r"whether higher values of test_brier are better is not known.*test_brier:min"):
        compare_runs(unknown, "test_brier")
    assert [row.value for row in compare_runs(unknown, "test_brier:min").rows] == [0.2, 0.3]
    assert [row.value for row in compare_runs(unknown, "test_brier:max").rows] == [0.3, 0.2]
    with pytest.raises(UsageError, match="better when higher in some of these runs"):
        compare_runs(runs("mixed", True, False), "test_brier")
    for metric, lower in (("test_brier:up", False), ("test_brier:max", True)):
        with pytest.raises(UsageError, match=f"--metric {metric}"):
            compare_runs(unknown, metric, lower)


@pytest.mark.parametrize("name", ["accuracy", "top_2_accuracy"])
def test_a_share_of_labels_or_places_or_weights_is_no_count_of_samples(tmp_path: Path, name: str) -> None:
    """Five labels of each of 359 samples: 1,700 of 1,795 right are 340 of 359, but not 340 right samples."""
    form: dict[str, Any] = {"order": None, "source": {}, "is_stored": True}

    def has_interval(folder: str, shape: list[int] | None, has_weights: bool = False, loss: str = "cross_entropy") -> bool:
        known = {"test": {**form, "target_shape": shape, "has_weights": has_weights}}
        run = make_run(tmp_path / folder, {f"test_{name}": 340 / 359}, samples=known, loss=loss)
        return compare_runs([run], f"test_{name}").rows[0].interval is not None

    assert has_interval("classes", []) and has_interval("column", [1])
    assert not has_interval("labels", [5], loss="bce") and not has_interval("places", [8, 8])
    assert has_interval("one-hot", [5]), "cross_entropy reads them as one class"
    assert not has_interval("weighted", [], has_weights=True) and not has_interval("several", None)
