"""Labels, probabilities and scores, of one model and of several."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from unisono.errors import UsageError
from unisono.predict.kinds import make_kind
from unisono.task.task import Task


def task(loss: Any) -> Task:
    return Task(model=dict, data=dict, loss=loss)


A = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.1, 0.0]])
B = torch.tensor([[0.0, 9.0, 0.0], [0.0, 0.0, 0.3]])


def test_several_models_are_averaged_as_probabilities() -> None:
    kind = make_kind("probabilities", [task("cross_entropy")] * 2, [A, B])
    expected = (torch.softmax(A.double(), 1) + torch.softmax(B.double(), 1)) / 2
    assert np.array_equal(kind([A, B]), expected.float().numpy())
    labels = make_kind(None, [task("cross_entropy")] * 2, [A, B])
    assert labels.name == "label"
    assert labels([A, B]).tolist() == expected.argmax(1).tolist() == [1, 2]


def test_the_loss_says_how_outputs_are_read() -> None:
    one = torch.tensor([[1e-9], [-1e-9], [3.0]])
    assert make_kind("label", [task("bce")], [one])([one]).tolist() == [[1], [0], [1]]
    assert make_kind("scores", [task("bce")], [one])([one]).shape == (3,)
    two = torch.log_softmax(torch.tensor([[0.0, 1.0]]), 1)
    assert make_kind("scores", [task("nll")], [two])([two]) == pytest.approx([1 / (1 + np.exp(-1))])
    assert make_kind(None, [task("mse")], [one]).name == "raw"
    assert make_kind("label", [task(torch.nn.CrossEntropyLoss())], [A])([A]).tolist() == [0, 1]


def test_fields_have_names() -> None:
    exclusive = [task("cross_entropy")]
    assert make_kind("label", exclusive, [A]).fields((3,), ()) == ("label",)
    assert make_kind("probabilities", exclusive, [A]).fields((3,), ()) == ("p0", "p1", "p2")
    assert make_kind("probabilities", exclusive, [A]).fields((3,), ("a", "b", "c")) == ("a", "b", "c")
    assert make_kind("raw", [task("mse")], [A[:, 0]]).fields((), ()) == ("output",)
    assert make_kind("raw", [task("mse")], [A]).fields((3, 4), ()) is None


@pytest.mark.parametrize(
    ("kind", "losses", "first", "message"),
    [
        ("label", ["mse"], [A], "not known for loss 'mse'; use --kind raw"),
        ("label", ["cross_entropy", "bce"], [A, B], "in the same way .*'cross_entropy', loss 'bce'"),
        ("raw", ["cross_entropy"] * 2, [A, B[:, :2]], "outputs have different shapes .*apply each alone"),
        ("scores", ["cross_entropy"], [A], "two classes or one output"),
        ("raw", ["mse"], [(A, B)], "returns 2 outputs .*evaluation mode"),
        ("labels", ["bce"], [A], "unknown kind.*did you mean 'label'"),
    ],
)
def test_what_models_cannot_give_is_refused(kind: str, losses: list[str], first: list[Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_kind(kind, [task(loss) for loss in losses], first)
