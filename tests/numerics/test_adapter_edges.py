"""Corners of the adapter that real models reach: odd buffers, empty workers, optimisers on the whole vector, several updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unisono as un
from tests.numerics.learning import ONE_AT_A_TIME, Learner, assert_same, train, weights_of
from unisono.comm.base import Communicator
from unisono.errors import UsageError
from unisono.model.torch.one_vector import ELEMENTWISE_OPTIMIZERS
from unisono.own_loop import DistributedOptimizer, ShardedLoader
from unisono.testing.thread_communicator import run_threads


def data(num_samples: int = 14) -> tuple[Any, Any]:
    draw = np.random.Generator(np.random.Philox(3))
    return draw.normal(size=(num_samples, 4)), draw.normal(size=(num_samples, 1))


def task(model: Any, **settings: Any) -> un.Task:
    made: dict[str, Any] = {"loss": "mse", "lr": 0.05, "global_batch": 5, "epochs": 2, **settings}
    return un.Task(model=model, data=lambda: un.Splits(train=data(), validation=data(9)), **made)


# ---- buffers -----------------------------------------------------------------------------------------------------------


class Masked(nn.Module):
    """With an infinite constant, as attention has, and a mean that it assigns anew in every step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.dense = nn.Linear(4, 1).double()
        self.register_buffer("mask", torch.full((3,), -torch.inf, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(4, dtype=torch.float64))
        self.mask: Tensor
        self.mean: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        out: Tensor = self.dense(x)
        return out


def test_infinite_and_assigned_buffers_are_the_same_everywhere() -> None:
    found = train(task(Masked), 2)
    for one in found:
        assert torch.isneginf(one.weights["mask"]).all()
        assert torch.equal(one.weights["mean"], found[0].weights["mean"])
        assert one.weights["mean"].abs().sum() > 0
    assert np.isfinite(found[0].progress.history[-1]["metrics"]["val_loss"])


class Counting(nn.Module):
    """Counts its passes, as batch normalisation does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.dense = nn.Linear(4, 1).double()
        self.register_buffer("passes", torch.tensor(0))
        self.passes: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.passes += 1
        out: Tensor = self.dense(x)
        return out


def test_counters_are_the_same_where_a_worker_had_nothing_to_count() -> None:
    found = train(task(Counting, global_batch=12), 3)  # the last batch has two samples, and so one worker none
    for one in found:
        assert one.weights["passes"] > 0
        for name, tensor in one.weights.items():
            assert torch.equal(tensor, found[0].weights[name]), name


def test_a_model_that_comes_in_eval_mode_learns_in_training_mode() -> None:
    seen = []

    class RecordsMode(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(self.training)
            return super().forward(x)

    train(task(lambda: RecordsMode(4, 1).double().eval()))
    assert any(seen)


# ---- optimisers on the whole vector ---------------------------------------------------------------------------------


class Sometimes(nn.Module):
    """Its second layer is used in some steps only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.always = nn.Linear(4, 1).double()
        self.sometimes = nn.Linear(4, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.always(x)
        return out + self.sometimes(x) if x[0, 0] > 0 else out


@pytest.mark.parametrize("cls", ELEMENTWISE_OPTIMIZERS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("unused", ["never", "first", "later"])
def test_every_optimiser_is_that_of_torch(cls: Any, unused: str) -> None:
    uses = {"never": [1, 1, 1, 1], "first": [0, 1, 1, 0], "later": [1, 1, 0, 1]}[unused]
    steps = []
    for number, used in enumerate(uses):
        x, y = data(6)
        x = np.abs(x + number) * (1 if used else -1)
        steps.append((x, y))

    def make(model: nn.Module) -> Any:
        return cls(model.parameters(), lr=0.05, weight_decay=0.1)

    learner = Learner(alone(), Sometimes(), make)
    assert learner.part.running is not learner.optimizer, "it begins with the whole vector"
    model = Sometimes()
    optimizer = make(model)
    for x, y in steps:
        learner.step(((x, y),))
        optimizer.zero_grad()
        loss = F.mse_loss(model(torch.as_tensor(x)), torch.as_tensor(y))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert (learner.part.running is learner.optimizer) == (unused != "never")
    assert_same(weights_of(learner.adapter.model), weights_of(model))


def alone() -> Communicator:
    (comm,) = run_threads(1, lambda comm: comm)
    return comm


# ---- a step of the task's own ---------------------------------------------------------------------------------------


def twice(self: un.OwnStep, batch: Any) -> None:
    x, y = batch
    for _ in range(2):
        self.minimise((self.model(x) - y) ** 2)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_several_updates_of_one_part_in_a_step(num_workers: int) -> None:
    found = train(task(linear, step=twice, loss=None), num_workers)
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in epochs(2, 5):
        for _ in range(2):
            optimizer.zero_grad()
            loss = F.mse_loss(model(torch.as_tensor(x)), torch.as_tensor(y))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    for one in found:
        assert_same(one.weights, weights_of(model))


def test_an_own_step_refuses_what_it_would_not_read() -> None:
    with pytest.raises(UsageError, match=r"accumulate 3 .*has no effect"):
        train(task(linear, step=twice, loss=None, accumulate=3))
    with pytest.raises(UsageError, match="patience of the task needs a metric or a loss"):
        train(task(linear, step=twice, loss=None, patience=1))


def linear() -> nn.Module:
    torch.manual_seed(5)
    return nn.Linear(4, 1).double()


def epochs(count: int, batch: int) -> list[tuple[Any, Any]]:
    from unisono.data.sharding_plan import Plan

    x, y = data()
    plan = Plan(len(x), batch)
    orders = [plan.order(epoch) for epoch in range(count)]
    return [(x[order[plan.batch(s)]], y[order[plan.batch(s)]]) for order in orders for s in range(plan.steps_per_epoch)]


# ---- nothing that counts --------------------------------------------------------------------------------------------


def test_a_batch_in_which_nothing_counts_is_left_out() -> None:
    weights = np.ones(14)
    weights[:] = 0
    weights[:3] = 1

    def weighted() -> un.Splits:
        return un.Splits(train=un.Arrays(*data(), weights))

    found = train(un.Task(model=linear, data=weighted, loss="mse", lr=0.05, global_batch=2, epochs=1), 2)[0]
    assert found.progress.reason == "finished"
    assert 0 < found.progress.num_skipped <= 6
    assert all(torch.isfinite(tensor).all() for tensor in found.weights.values())


# ---- the user's own loop --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [1, 2])
def test_an_own_loop_may_drop_gradients_in_its_own_way(num_workers: int) -> None:
    """`model.zero_grad()` of the loop as it was; the second layer is used in every other step."""

    def body(comm: Communicator) -> Any:
        with ONE_AT_A_TIME:  # they share the generator of the process
            model = Sometimes()
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model, comm)
        for x, y in steps:
            model.zero_grad()
            part = slice(comm.rank * 6 // comm.size, (comm.rank + 1) * 6 // comm.size)
            loss = F.mse_loss(model(torch.as_tensor(x[part])), torch.as_tensor(y[part]))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step(num_samples=part.stop - part.start)
        return weights_of(model)

    steps = [(np.abs(x) * (1 if number % 2 else -1), y) for number, (x, y) in enumerate([data(6)] * 4)]
    model = Sometimes()
    plain = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for x, y in steps:
        model.zero_grad()
        loss = F.mse_loss(model(torch.as_tensor(x)), torch.as_tensor(y))
        loss.backward()  # type: ignore[no-untyped-call]
        plain.step()
    for found in run_threads(num_workers, body):
        assert_same(found, weights_of(model))


class Numbers:
    """A data set as torch has them: samples by number."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        return np.full(3, number), number


def test_a_data_set_may_leave_a_worker_without_samples() -> None:
    def body(comm: Communicator) -> list[Any]:
        return [batch[1] for batch in ShardedLoader(Numbers(), comm, global_batch=4).epoch(0)]

    parts = run_threads(3, body)
    assert [len(part) for part in parts] == [3, 3, 3], "all take the same number of steps"
    assert sorted(int(number) for part in parts for batch in part for number in batch) == list(range(9))
