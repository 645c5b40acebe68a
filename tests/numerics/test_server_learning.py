"""Trainings through a server, with virtual workers in this process: what they equal and learn, and that they can be repeated."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unisono as un
from tests.numerics.learning import train, weights_of
from unisono.algorithms.base import find_algorithm, known_algorithms
from unisono.algorithms.roles import LayoutOptions
from unisono.algorithms.server.call_record import read_call_record
from unisono.comm.single_process import single_process_communicator
from unisono.errors import UsageError
from unisono.task.overrides import change
from unisono.task.task import Task
from unisono.training.frontends.assemble import assemble
from unisono.training.progress import Progress
from unisono.training.server.server_trainer import ServerSettings, ServerTrainer
from unisono.training.training_parts import AssemblyOptions

Weights = dict[str, Tensor]
ALL = [name for name in known_algorithms() if find_algorithm(name).has_server]
NUM = 50
"""Samples; no multiple of a batch."""
_RANDOM = np.random.default_rng(3)
INPUTS = _RANDOM.normal(size=(NUM, 6)) + 2.0
TARGETS = np.stack([INPUTS.sum(1), INPUTS[:, 0] - INPUTS[:, 1]], 1)


def trained(
    task: Task,
    algorithm: str,
    num_workers: int,
    changes: Mapping[str, Any] | None = None,
    call_record: Path | None = None,
    replay: Path | None = None,
) -> tuple[Weights, Progress]:
    """A whole training with virtual workers."""
    comm = single_process_communicator(torch.device("cpu"))
    record = None if replay is None else read_call_record(replay)
    options = AssemblyOptions(layout=LayoutOptions(simulate=num_workers), replay=record)
    parts = assemble(change(task, changes or {}), algorithm, comm, options)
    done = ServerTrainer(comm=comm, parts=parts, evaluation_batch=16, server=ServerSettings(call_record=call_record)).train()
    return weights_of(parts.adapter.model), done


def losses_of(done: Progress) -> list[float]:
    return [row["metrics"]["loss"] for row in done.history]


class Net(nn.Module):
    """In double precision; `spare` is used by no batch, or by those whose first number is above 2."""

    def __init__(self, spare: str = "") -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()
        self.spare = nn.Linear(2, 2).double() if spare else None
        self.is_used = spare == "sometimes"

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.body(inputs)
        if self.spare is not None and self.is_used and float(inputs[0, 0]) > 2:
            outputs = outputs + self.spare(outputs)
        return outputs


def task_of(model: Any = Net, **more: Any) -> Task:
    settings = {"lr": 0.05, "global_batch": 16, "epochs": 3, **more}
    return Task(model=model, data=lambda: un.Splits((INPUTS, TARGETS)), loss="mse", name="task", **settings)


MOMENTUM = {"optimizer": "sgd", "optimizer_options": {"momentum": 0.9}}


@pytest.mark.parametrize("num_workers", [1, 4, 16])
@pytest.mark.parametrize(
    "more",
    [
        {**MOMENTUM, "schedule": "cosine", "schedule_options": {"warmup_steps": 3}},
        {"optimizer": "adam", "clip_norm": 0.5},
    ],
    ids=["momentum, cosine with warm-up", "adam, clipped"],
)
def test_the_synchronous_server_equals_all_reduce(num_workers: int, more: dict[str, Any]) -> None:
    """Samples that are no multiple of the batch, more workers than the last round has batches."""
    task = task_of(**more)
    through_server, done = trained(task, "parameter_server", num_workers)
    (in_step,) = train(task)
    for name, value in in_step.weights.items():
        np.testing.assert_allclose(through_server[name].numpy(), value.numpy(), rtol=0, atol=1e-12)
    assert done.num_samples == 3 * NUM and done.epoch == 3
    np.testing.assert_allclose(losses_of(done), losses_of(in_step.progress), rtol=1e-12)


@pytest.mark.parametrize("optimizer_on", ["worker", "server"])
def test_downpour_with_one_worker_is_plain_training(optimizer_on: str) -> None:
    """Bit for bit, or where the server adds the difference, to rounding."""
    task = task_of(**MOMENTUM, schedule="cosine")
    through_server, _ = trained(task, "downpour", 1, {"algorithm.optimizer_on": optimizer_on})
    (plain,) = train(task)
    for name, value in plain.weights.items():
        np.testing.assert_allclose(through_server[name], value, rtol=0, atol=0 if optimizer_on == "server" else 1e-12)


@pytest.mark.parametrize("algorithm", ["parameter_server", "downpour"])
@pytest.mark.parametrize("spare", ["never", "sometimes"])
def test_parameters_that_no_batch_uses_are_not_updated_as_in_plain_training(algorithm: str, spare: str) -> None:
    """Momentum and decay would move it else."""
    task = task_of(lambda: Net(spare), optimizer="adamw", optimizer_options={"weight_decay": 0.1})
    through_server, _ = trained(task, algorithm, 1)
    (plain,) = train(task)
    for name, value in plain.weights.items():
        np.testing.assert_allclose(through_server[name].numpy(), value.numpy(), rtol=0, atol=1e-13)


@pytest.mark.parametrize("algorithm", ALL)
@pytest.mark.parametrize("spare", ["never", "sometimes"])
def test_virtual_workers_may_leave_parameters_unused(algorithm: str, spare: str) -> None:
    changes = {"algorithm.period": 2} if algorithm == "easgd" else {}
    task = task_of(lambda: Net(spare), **({} if algorithm == "gem" else MOMENTUM), epochs=8, global_batch=15, lr=0.002)
    weights, done = trained(task, algorithm, 3, changes)
    losses = losses_of(done)
    assert losses[-1] < 0.9 * losses[0]
    first = next(iter(train(task_of(lambda: Net(spare), lr=1e-300, epochs=1)))).weights
    moved = not torch.allclose(weights["spare.weight"], first["spare.weight"], rtol=0, atol=1e-9)
    assert moved == (spare == "sometimes")


def digits(**more: Any) -> Task:
    def data() -> un.Splits:
        inputs, targets = un.digits()
        return un.split((inputs[:1000], targets[:1000]), validation=0.2, seed=1)

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))

    settings = {"lr": 0.05, "global_batch": 24, "epochs": 4, "metrics": ("accuracy",), **more}
    return Task(model=model, data=data, loss="cross_entropy", name="digits", **settings)


@pytest.mark.parametrize("algorithm", ALL)
def test_each_learns_and_its_statistics_are_those_of_the_data(algorithm: str, tmp_path: Path) -> None:
    """With batch-norm and dropout; the same command gives the same bits, and so does its record on another clock."""
    task = digits(**({} if algorithm == "gem" else MOMENTUM))
    weights, done = trained(task, algorithm, 3, call_record=tmp_path / "arrivals.txt")
    assert done.history[-1]["metrics"]["val_accuracy"] > 0.85
    assert done.num_samples == 4 * 600 and done.reason == "finished"
    inputs = change(task, {}).task.data().train.read(np.arange(600))[0]
    seen = nn.functional.linear(torch.as_tensor(inputs), weights["0.weight"], weights["0.bias"])
    spread = seen.std(0)
    assert bool((abs(weights["1.running_mean"] - seen.mean(0)) < spread).all())
    assert bool((abs(weights["1.running_var"] / spread**2 - 1) < 0.8).all())
    again, _ = trained(task, algorithm, 3)
    assert all(torch.equal(again[name], value) for name, value in weights.items())
    slow = {"simulate.compute_s": 3.0, "simulate.speeds": 1.0}
    other, _ = trained(task, algorithm, 3, slow)
    repeated, _ = trained(task, algorithm, 3, slow, replay=tmp_path / "arrivals.txt")
    assert all(torch.equal(repeated[name], value) for name, value in weights.items())
    differs = any(not torch.equal(other[name], value) for name, value in weights.items())
    assert differs == (algorithm != "parameter_server"), "the clock decides the order, and the order the weights"


def test_a_period_longer_than_a_lease_is_kept() -> None:
    """One worker under a spring that it never feels but at the end is plain training."""
    task = task_of(**MOMENTUM, epochs=20, global_batch=2)
    (plain,) = train(task)
    _, done = trained(task, "easgd", 1, {"algorithm.period": 10_000})
    np.testing.assert_allclose(losses_of(done), losses_of(plain.progress), rtol=1e-12)


@pytest.mark.parametrize("algorithm", ["easgd", "downpour"])
def test_a_period_that_no_worker_completes_still_moves_the_server_weights(algorithm: str) -> None:
    """Four workers, four epochs of eight units: the epoch that ends the run is evaluated with all that the workers did."""
    periods = {"easgd": ("period",), "downpour": ("push_every", "pull_every")}[algorithm]
    data = lambda: un.Splits((INPUTS[:32], TARGETS[:32]), validation=(INPUTS[32:], TARGETS[32:]))  # noqa: E731
    task = Task(model=Net, data=data, loss="mse", name="task", lr=0.05, global_batch=16, epochs=4)
    weights, done = trained(task, algorithm, 4, {f"algorithm.{name}": 10 for name in periods})
    losses = [row["metrics"]["val_loss"] for row in done.history]
    assert losses[0] == losses[1] == losses[2] > losses[3] and done.step == 32
    model = Net()
    model.load_state_dict(weights)
    held = nn.functional.mse_loss(model(torch.as_tensor(INPUTS[32:])), torch.as_tensor(TARGETS[32:]))
    assert held.item() == pytest.approx(losses[3], rel=1e-9)


class Scaled(nn.Module):
    """Divides by a running scale that is no part of its weights."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(6, 2).double()
        self.register_buffer("scale", torch.full((), 1000.0, dtype=torch.float64), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.scale.lerp_(inputs.detach().std(), 0.5)
        outputs: Tensor = self.line(inputs / self.scale)
        return outputs


@pytest.mark.parametrize("algorithm", ALL)
def test_the_server_evaluates_with_buffers_that_are_not_saved(algorithm: str) -> None:
    """The reference is the trained model itself, evaluated by torch."""
    data = lambda: un.Splits((INPUTS[:32], TARGETS[:32]), validation=(INPUTS[32:], TARGETS[32:]))  # noqa: E731
    task = Task(model=Scaled, data=data, loss="mse", name="task", lr=0.01, global_batch=4, epochs=2)
    comm = single_process_communicator(torch.device("cpu"))
    parts = assemble(change(task, {}), algorithm, comm, AssemblyOptions(layout=LayoutOptions(simulate=2)))
    done = ServerTrainer(comm=comm, parts=parts, evaluation_batch=16).train()
    model = parts.adapter.model.eval()
    with torch.no_grad():
        held = nn.functional.mse_loss(model(torch.as_tensor(INPUTS[32:])), torch.as_tensor(TARGETS[32:]))
    assert isinstance(model.scale, Tensor) and model.scale.item() < 100
    assert done.history[-1]["metrics"]["val_loss"] == pytest.approx(held.item(), rel=1e-9)


class Replacing(Net):
    """Puts other tensors in the place of the values of its parameters, with the same numbers."""

    def forward(self, inputs: Tensor) -> Tensor:
        for parameter in self.parameters():
            parameter.data = parameter.data.clone()
        return super().forward(inputs)


@pytest.mark.parametrize("algorithm", ["parameter_server", "downpour", "easgd"])
def test_a_model_that_replaces_its_values_is_trained_with_the_weights_that_it_pulls(algorithm: str) -> None:
    found, expected = (trained(task_of(model), algorithm, 2)[0] for model in (Replacing, Net))
    for name, value in expected.items():
        assert torch.equal(found[name], value)


def test_virtual_workers_may_have_buffers_whose_elements_share_memory() -> None:
    """As those of positions that are expanded over the batch."""

    def model() -> nn.Module:
        made = Net()
        made.register_buffer("positions", torch.arange(6).expand(2, -1))
        return made

    found, expected = (trained(task_of(one), "downpour", 2)[0] for one in (model, Net))
    assert torch.equal(found.pop("positions"), torch.arange(6).expand(2, -1))
    assert all(torch.equal(found[name], value) for name, value in expected.items())


class WithTeacher(nn.Module):
    """Its teacher is a running mean of its weights; so a buffer or a frozen parameter."""

    def __init__(self, is_frozen: bool) -> None:
        super().__init__()
        self.line = nn.Linear(6, 2, bias=False).double()
        first = self.line.weight.detach().clone()
        if is_frozen:
            self.teacher = nn.Parameter(first, requires_grad=False)
        else:
            self.register_buffer("teacher", first)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.teacher.data.lerp_(self.line.weight.detach(), 0.1)
        outputs: Tensor = self.line(inputs) + 0.1 * inputs @ self.teacher.T
        return outputs


def test_a_teacher_of_frozen_parameters_is_refused_with_a_server() -> None:
    """Four virtual workers: in the first batch of each the teacher is what it follows."""
    with pytest.raises(UsageError, match=r"changes its frozen parameter teacher, .* make it a buffer"):
        trained(task_of(lambda: WithTeacher(is_frozen=True)), "gem", 4)
    first = WithTeacher(is_frozen=False)
    weights, _ = trained(task_of(lambda: deepcopy(first)), "gem", 4)
    assert not torch.equal(weights["teacher"], first.state_dict()["teacher"])
