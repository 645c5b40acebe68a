"""Models whose steps cannot be recorded, and one for which a sample is no number."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import unisono as un
from tests.unit.training.device_path import LABELS, NUM, PICTURES, SIDE, net, task_of
from unisono.task.task import Task


class Counter(nn.Module):
    """Gives what it gets, the more the oftener it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += self.training
        return inputs * (1.0 + self.calls)


class Growing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.means: list[float] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.means.append(1.0)
        return inputs * len(self.means)


class Replaced(nn.Module):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        for _ in range(2):  # the memory of the first may be that of the last
            self.seen = self.seen + 0.5
        return inputs * self.seen


class Drawing(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * (random.random() if self.training else 1.0)


class DrawingNumPy(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * (float(np.random.rand()) if self.training else 1.0)


class Waiting(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * (2.0 if inputs.mean().item() > 0.5 else 1.0)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(2, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


class Means(nn.Module):
    """For pictures of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(1, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.body(inputs.mean((1, 2, 3))[:, None])
        return outputs


def crop(batch: Any, draws: un.SampleRandom) -> Any:
    """Cuts a batch to one of eight sizes, which the first sample decides."""
    number = int(draws.integers(0, 8)[0]) if len(batch[0]) > 2 else 0
    return batch[0][:, :, : SIDE - number % 6, : SIDE - number // 6], batch[1]


def with_first(make: Callable[[], nn.Module], **more: Any) -> Task:
    return task_of(model=lambda: nn.Sequential(make(), net()), **more)


BAD, MARK = 17, 200.0


class Breaks(nn.Module):
    """Gives NaN for the sample with the mark, which data may hold."""

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.where(inputs > MARK - 1, torch.nan, inputs)


def marked() -> un.Splits:
    inputs = (PICTURES[:NUM] % 100).astype(np.float32) / 64
    inputs[BAD, 0, 2, 2] = MARK
    return un.Splits((inputs, LABELS[:NUM]))


def plain() -> nn.Module:
    """Without batch-norm, whose statistics the bad sample would spoil for all others."""
    return nn.Sequential(Breaks(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(SIDE**2, 4))
