"""What a model, its loss and the generators keep on the host is compared before and after a step."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from unisono.data.random_streams import restored_generators
from unisono.model.losses import resolve_loss
from unisono.model.torch.host_state import HostState


class Keeps(nn.Module):
    counter: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.BatchNorm1d(2)
        self.register_buffer("counter", torch.zeros(1))
        self.calls, self.scale, self.names = 0, float("nan"), ["a"]
        self.sizes: dict[str, Any] = {"a": [1, 2]}
        self.newest: deque[int] = deque([1, 2], maxlen=2)
        self.seen = np.zeros(3)
        self.total = np.int64(1)
        self.nothing: Any = None

    @cached_property
    def table(self) -> Tensor:
        return torch.ones(2)


def replace_twice(model: Keeps) -> None:
    """The memory of the second may be that of the one before."""
    for _ in range(2):
        model.counter = model.counter + 1


def append(model: Keeps) -> None:
    model.newest.append(3)


def assign(name: str, value: Any, model: Keeps) -> None:
    setattr(model, name, value)


CHANGES: list[tuple[Callable[[Keeps], object], str]] = [
    (partial(assign, "calls", 1), "calls"),
    (partial(assign, "scale", 1.0), "scale"),
    (lambda model: model.names.append("b"), "names"),
    (lambda model: model.sizes["a"].append(3), "sizes"),
    (append, "newest"),
    (lambda model: model.seen.__setitem__(1, 5.0), "seen"),
    (partial(assign, "total", np.int64(2)), "total"),
    (partial(assign, "nothing", torch.ones(1)), "nothing"),
    (partial(assign, "more", 1), "more"),
    (lambda model: delattr(model, "calls"), "calls"),
    (replace_twice, "counter"),
    (lambda model: model.inner.eval(), "inner.training"),
    (lambda model: setattr(model.inner, "momentum", 0.5), "inner.momentum"),
]


@pytest.mark.parametrize(("change", "name"), CHANGES)
def test_a_change_is_named(change: Callable[[Keeps], object], name: str) -> None:
    model = Keeps()
    before = HostState(model)
    assert before.change() == ""
    change(model)
    assert before.change() == f"it changes {name}, which is not a tensor in place"


def test_what_recorded_work_repeats_is_no_change() -> None:
    """Tensors in place, of the model or beside it, and what is computed once."""
    model = Keeps()
    before = HostState(model)
    model.counter += 1
    model.inner(torch.randn(4, 2))
    with torch.no_grad():
        model.inner.weight.mul_(2)
    model.table.mul_(2)
    model.inner.weight.grad = torch.ones(2)
    assert before.change() == "it draws from the generator of torch on the host"
    assert HostState(model, seeded=("torch",)).change() == ""


@pytest.mark.parametrize(
    ("draw", "name"), [(random.random, "Python"), (np.random.rand, "NumPy"), (partial(torch.rand, 1), "torch")]
)
def test_draws_on_the_host_are_seen(draw: Callable[[], object], name: str) -> None:
    with restored_generators():
        before = HostState(nn.Linear(1, 1))
        draw()
        assert before.change() == f"it draws from the generator of {name} on the host"
        seeded = HostState(nn.Linear(1, 1), seeded=("torch",))
        draw()
        assert bool(seeded.change()) == (name != "torch"), "a repetition seeds the generator of the device"


class Counting:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls += 1
        return (outputs - targets).square()

    def method(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self(outputs, targets)


class CountingModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MSELoss(reduction="none")
        self.inner.calls = 0  # type: ignore[assignment]

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.inner.calls += 1  # type: ignore[operator, assignment]
        found: Tensor = self.inner(outputs, targets)
        return found


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (Counting(), "the loss Counting.calls"),
        (Counting().method, "the loss Counting.calls"),
        (CountingModule(), "the loss CountingModule.inner.calls"),
    ],
)
def test_a_loss_may_keep_something_too(loss: Any, name: str) -> None:
    resolved = resolve_loss(loss)
    before = HostState(nn.Linear(1, 1), resolved)
    resolved(torch.zeros(2, 1), torch.zeros(2, 1), None)
    assert before.change() == f"it changes {name}, which is not a tensor in place"


@pytest.mark.parametrize("loss", ["mse", nn.functional.mse_loss, SimpleNamespace, None])
def test_other_losses_keep_nothing(loss: Any) -> None:
    resolved = resolve_loss("mse") if loss == "mse" else loss
    before = HostState(nn.Linear(1, 1), resolved)
    if loss == "mse":
        resolved(torch.zeros(2, 1), torch.zeros(2, 1), None)
    assert before.change() == ""
