"""Losses and metrics of users in whole trainings: what would be another number on other workers, or mean nothing, is refused; what
is computed equals torch and scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from torch import Tensor, nn
from torch.nn import functional

import unisono as un
from unisono.comm.single_process import single_process_communicator
from unisono.errors import UsageError
from unisono.run import execute
from unisono.task.train_config import TrainConfig

N, C = 48, 4
DRAW = np.random.default_rng(11)
SCORES = (2 * DRAW.standard_normal((N, C))).astype("float32")
LABELS = np.where(DRAW.random(N) < 0.7, SCORES.argmax(1), DRAW.integers(0, C, N))
ROWS = np.eye(C, dtype="float32")[LABELS]
BITS = (DRAW.random((N, 1)) < 0.5).astype("float32")


def model_of(width: int, *more: nn.Module, dtype: torch.dtype = torch.float32) -> Callable[[], nn.Module]:
    def model() -> nn.Module:
        linear = nn.Linear(width, width, bias=False)
        nn.init.eye_(linear.weight)
        return nn.Sequential(linear, *more).to(dtype)

    return model


def train(folder: Path, model: Callable[[], nn.Module], arrays: tuple[Any, ...], **settings: Any) -> dict[str, Any]:
    def data() -> un.Splits:
        return un.Splits(train=tuple(one[:4].copy() for one in arrays), validation=arrays)

    task = un.Task(model=model, data=data, **{"lr": 1e-30, "global_batch": 4, **settings})
    with single_process_communicator() as comm:
        return dict(execute(TrainConfig("", out=str(folder / "run")), comm, task=task).summary)


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().sum(1)


def brier(outputs: Tensor, targets: Tensor) -> Tensor:
    return squares(outputs, targets)


brier.predicts, brier.one_hot = "probabilities", True  # type: ignore[attr-defined]


def test_one_hot_targets_of_an_own_loss_are_refused_until_it_says_so(tmp_path: Path) -> None:
    softmax = model_of(C, nn.Softmax(1))
    for metric in ("accuracy", "f1"):
        with pytest.raises(UsageError, match=rf"'{metric}'.*either one-hot classes or labels .*`one_hot`.*of the validation"):
            train(tmp_path, softmax, (SCORES, ROWS), loss=squares, metrics=(metric,))
    found = train(tmp_path, softmax, (SCORES, ROWS), loss=brier, metrics=("accuracy", "f1"))
    assert found["metrics"]["val_accuracy"] == pytest.approx(sk.accuracy_score(LABELS, SCORES.argmax(1)))
    assert found["metrics"]["val_f1"] == pytest.approx(sk.f1_score(LABELS, SCORES.argmax(1), average="macro"))
    assert found["reading"]["predicts"] == "probabilities"


def test_probabilities_are_not_read_as_logits(tmp_path: Path) -> None:
    arrays = (SCORES[:, :1], BITS)
    sigmoid, expected = model_of(1, nn.Sigmoid()), sk.accuracy_score(BITS, SCORES[:, :1] > 0)
    with pytest.raises(UsageError, match=r"'accuracy' decides by the border .* the loss 'squares' does not say .*`predicts`"):
        train(tmp_path, sigmoid, arrays, loss=squares, metrics=("accuracy",))
    found = train(tmp_path, sigmoid, arrays, loss=nn.BCELoss(reduction="none"), metrics=("accuracy", "mse"))
    assert found["metrics"]["val_accuracy"] == pytest.approx(expected)
    assert expected != pytest.approx(BITS.mean()), "which it is where every probability is above 0"
    with pytest.raises(UsageError, match="'mse' compares outputs with targets as numbers, but the outputs for the loss 'bce'"):
        train(tmp_path / "no", model_of(1), arrays, loss="bce", metrics=("mse",))


def column_means(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean(0)


def test_means_over_the_samples_that_keep_another_axis_are_refused(tmp_path: Path) -> None:
    """Their number is that of the columns, not of the samples."""
    told = r"'column_means' returned 4 values for one sample and for two, so they are means over the samples"
    for settings in ({"loss": column_means}, {"loss": "mse", "metrics": (column_means,)}):
        with pytest.raises(UsageError, match=told):
            train(tmp_path, model_of(C), (SCORES, ROWS), **settings)
    found = train(tmp_path, model_of(C), (SCORES, ROWS), loss=squares, metrics=(squares,))
    expected = functional.mse_loss(torch.from_numpy(SCORES), torch.from_numpy(ROWS)).item() * C
    assert [found["metrics"][f"val_{name}"] for name in ("loss", "squares")] == pytest.approx([expected] * 2, rel=1e-6)


def test_means_over_the_samples_are_refused_without_validation_data(tmp_path: Path) -> None:
    """A batch of four gives four means, as many as there are samples."""
    task = un.Task(model=model_of(C), data=lambda: un.Splits(train=(SCORES, ROWS)), loss=column_means, lr=0.1, global_batch=4)
    with (
        single_process_communicator() as comm,
        pytest.raises(UsageError, match=r"'column_means' returned 4 values for one sample and for two.*of the training data"),
    ):
        execute(TrainConfig("", out=str(tmp_path / "run")), comm, task=task)


class TimeFirst(nn.Module):
    """Its outputs have the shape (places, samples), as those of a recurrent layer without batch_first."""

    def forward(self, inputs: Tensor) -> Tensor:
        return self.scale * inputs.T

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))


def of_time_first(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.T - targets).square().mean(1)


def of_time_means(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.mean(0) - targets.mean(1)).square()


def of_several_samples(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    outputs = outputs.squeeze()
    return (outputs - targets.squeeze()).square().sum(), len(outputs)


@pytest.mark.parametrize("own", [of_time_first, of_time_means])
def test_outputs_may_have_another_axis_first_than_the_sample(tmp_path: Path, own: Any) -> None:
    found = train(tmp_path, TimeFirst, (SCORES, ROWS), loss=own, metrics=(own,))["metrics"]
    each = (2 * SCORES - ROWS) ** 2 if own is of_time_first else (2 * SCORES - ROWS).mean(1) ** 2
    assert found["val_loss"] == pytest.approx(each.mean(), rel=1e-5)


@pytest.mark.parametrize("settings", [{"loss": of_several_samples}, {"loss": "mse", "metrics": (of_several_samples,)}])
def test_an_own_function_may_need_more_than_one_sample(tmp_path: Path, settings: Any) -> None:
    found = train(tmp_path, model_of(1), (BITS + SCORES[:, :1], BITS), **settings)["metrics"]
    assert found["val_loss"] == pytest.approx((SCORES[:, 0] ** 2).mean(), rel=1e-5)


def test_models_in_half_precision_do_not_round_targets_and_weights(tmp_path: Path) -> None:
    values = (300 + 3 * DRAW.standard_normal((N, 1))).astype("float32")
    inputs, weights = values + 2, DRAW.random(N).astype("float32")
    model = model_of(1, dtype=torch.bfloat16)
    found = train(tmp_path, model, (inputs, values, weights), loss="mae", metrics=("mae", "rmse"))["metrics"]
    with torch.no_grad():
        outputs = model()(torch.from_numpy(inputs).bfloat16()).double()
    errors = (outputs - torch.from_numpy(values)).numpy()
    exact = float(np.average(np.abs(errors)[:, 0], weights=weights))
    assert found["val_mae"] == pytest.approx(exact, rel=1e-9)
    assert found["val_loss"] == pytest.approx(exact, rel=1e-5)
    assert found["val_rmse"] == pytest.approx(np.sqrt(np.average(errors[:, 0] ** 2, weights=weights)), rel=1e-9)
    rounded = (outputs - torch.from_numpy(values).bfloat16()).abs().numpy()[:, 0]
    assert np.average(rounded, weights=weights) != pytest.approx(exact, rel=1e-3)
