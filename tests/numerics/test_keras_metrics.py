"""Unisono's metrics of Keras models: the loss says what the outputs are. Equal to scikit-learn's of the outputs of plain Keras."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk

PROGRAM = Path(__file__).parent / "programs" / "keras_metrics.py"
CLASSES = {
    "f1": lambda truth, predicted: sk.f1_score(truth, predicted, average="macro"),
    "mean_iou": lambda truth, predicted: sk.jaccard_score(truth, predicted, average="macro"),
    "kappa": sk.cohen_kappa_score,
    "balanced_accuracy": sk.balanced_accuracy_score,
}
AREAS = {"auc": sk.roc_auc_score, "average_precision": sk.average_precision_score}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    folder = tmp_path_factory.mktemp("keras")
    env = {**os.environ, "KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(PROGRAM), str(folder)], env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "found.json").read_text()), dict(np.load(folder / "outputs.npz"))


@pytest.mark.parametrize("case", ["sigmoid", "logit"])
def test_metrics_of_one_output_decide_at_the_border_of_the_loss(trained: tuple[Any, Any], case: str) -> None:
    found, arrays = trained
    outputs, truth = arrays[f"{case}/outputs"].ravel(), arrays[f"{case}/targets"].ravel()
    predicted = outputs > (0.5 if case == "sigmoid" else 0)
    for name, reference in {**CLASSES, "f1": sk.f1_score}.items():
        assert found[case]["metrics"][f"val_{name}"] == pytest.approx(reference(truth, predicted), rel=1e-9), name
    for name, area in AREAS.items():
        assert found[case]["metrics"][f"val_{name}"] == pytest.approx(area(truth, outputs), rel=1e-9), name


@pytest.mark.parametrize("case", ["one-hot", "numbers", "column", "logits", "by name", "maps", "told"])
def test_metrics_of_classes_read_one_hot_targets_and_probabilities(trained: tuple[Any, Any], case: str) -> None:
    found, arrays = trained
    outputs, targets = arrays[f"{case}/outputs"], arrays[f"{case}/targets"]
    truth = targets.argmax(-1).ravel() if targets.shape == outputs.shape else targets.ravel()
    rows = outputs.reshape(-1, outputs.shape[-1]).astype("float64")
    if case in ("logits", "by name"):
        rows = np.exp(rows) / np.exp(rows).sum(1, keepdims=True)
    for name, reference in CLASSES.items():
        assert found[case]["metrics"][f"val_{name}"] == pytest.approx(reference(truth, rows.argmax(1)), rel=1e-9), name
    for name, area in AREAS.items():
        areas = [area(truth == k, column) for k, column in enumerate(rows.T)]
        assert found[case]["metrics"][f"val_{name}"] == pytest.approx(np.mean(areas), rel=1e-6), name


def test_metrics_of_keras_models_are_refused_where_the_loss_does_not_say_what_outputs_are(trained: tuple[Any, Any]) -> None:
    found, _ = trained
    assert "are either one-hot classes or labels that may hold together, and the loss 'own' does not say" in found["own"]["refused"]
    assert "decides by the border between two classes" in found["own binary"]["refused"]
    assert "the loss 'categorical_hinge' does not say whether the outputs are probabilities" in found["hinge"]["refused"]


def test_a_metric_of_keras_that_returns_a_list_of_one_number_is_that_number(trained: tuple[Any, Any]) -> None:
    """F1Score of a model with one output, as people use it for two classes."""
    found, arrays = trained
    assert "refused" not in found["one output"], found["one output"]
    expected = sk.f1_score(arrays["one output/targets"].ravel(), arrays["one output/outputs"].ravel() > 0.5)
    assert found["one output"]["metrics"]["val_f1_score"] == pytest.approx(expected, rel=1e-6)


def test_a_metric_of_keras_that_returns_several_numbers_is_refused_before_an_epoch(trained: tuple[Any, Any]) -> None:
    found, _ = trained
    assert "metric 'f1_score' returns 3 numbers, but epochs are compared by one" in found["several"]["refused"]
    assert not found["several"]["has begun"]


def test_a_metric_of_keras_without_a_direction_judges_nothing(trained: tuple[Any, Any]) -> None:
    """Fewer false positives are better; whether a larger spread is, nobody says."""
    found, _ = trained
    directions = {name: one for name, one in found["counts"]["higher_is_better"].items() if name != "loss"}
    assert list(directions.values()) == [False, None]
    assert found["counts"]["monitor_metric"] == f"val_{next(iter(directions))}"
