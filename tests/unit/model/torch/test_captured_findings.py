"""Recorded steps where a value of the host, a place or a type could go wrong without a word: the numbers of steps that run as they
are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.unit.model.torch.tape import RefusingRecorder, TapeRecorder
from tests.unit.training.device_path import RESIDENT, SIDE, Train, expect_same, task_of, train_with
from unisono.model.torch.body import compute_loss
from unisono.model.torch.compiled_loss import CompiledLoss
from unisono.model.torch.stored_batch import laid_out

WIDTH = SIDE**2


@pytest.fixture
def train() -> Iterator[Train]:
    with pytest.MonkeyPatch.context() as patched:
        yield train_with(patched)


class Scaled(nn.Module):
    """A linear model times a number of the host."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 4)
        self.generator = np.random.default_rng(0)
        self.held: Any = type("Held", (), {})()
        self.held.number = 1.0
        self.factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        self.change(len(x))
        found: Tensor = self.linear(x.flatten(1)) * (self.factor * self.held.number)
        return found

    def change(self, length: int) -> None:
        """Changes a number, or none."""


class OwnGenerator(Scaled):
    def change(self, length: int) -> None:  # noqa: ARG002
        self.factor = 1.0 if not self.training or self.generator.random() < 0.5 else 2.0


class InAnObject(Scaled):
    def change(self, length: int) -> None:  # noqa: ARG002
        if self.training:
            self.held.number += 0.1


class InEvaluations(Scaled):
    def change(self, length: int) -> None:
        if not self.training and length < 7:
            self.factor *= 0.9


@pytest.mark.parametrize(
    ("make", "reason"), [(OwnGenerator, "it changes "), (InAnObject, "it changes held"), (InEvaluations, "factor")]
)
def test_a_number_of_the_host_is_not_repeated(train: Train, make: Callable[[], nn.Module], reason: str) -> None:
    found, expected = (train(task_of(model=make, epochs=4), one, RESIDENT) for one in (TapeRecorder(), RefusingRecorder()))
    assert reason in found.captured.reason
    expect_same(found, expected)


@pytest.mark.parametrize(
    "case",
    [
        {"model": lambda: Scaled(), "global_batch": 19, "accumulate": 2, "epochs": 8},  # a last batch of one sample is a whole step
        {"model": lambda: Scaled().double(), "epochs": 4},
    ],
    ids=["whole steps and parts", "float64"],
)
def test_sums_and_weights_are_those_of_steps_as_they_are(train: Train, case: dict[str, Any]) -> None:
    found, expected = (train(task_of(**case), one, RESIDENT) for one in (TapeRecorder(), RefusingRecorder()))
    assert not found.captured.reason
    expect_same(found, expected)


def test_each_training_compiles_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch compiles one code for eight models, and leaves the ninth as it is."""
    codes: list[Any] = []

    def compiled(function: Any, **_: Any) -> Any:
        codes.append(function.__code__)
        return function

    monkeypatch.setattr(torch, "compile", compiled)
    for _ in range(2):
        CompiledLoss(compute_loss, frozenset(), True, print)
    assert len({id(code) for code in codes}) == 2


def test_images_lie_alike_in_each_way_to_the_device() -> None:
    inputs, masks = torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 4, 5)
    images, others = laid_out((inputs, masks), channels_last=True)
    assert images.is_contiguous(memory_format=torch.channels_last) and others is masks
    assert laid_out((inputs, masks), channels_last=False)[0] is inputs
