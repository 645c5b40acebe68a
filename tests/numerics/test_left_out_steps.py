"""`--on-nan skip` with batch-norm: a step that is left out leaves no trace, as in a plain loop that never sees its batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unisono as un
from tests.numerics.learning import train, weights_of
from unisono.algorithms.roles import LayoutOptions
from unisono.comm.single_process import single_process_communicator
from unisono.data.sharding_plan import Plan
from unisono.task.overrides import change
from unisono.task.task import Task
from unisono.training.frontends.assemble import assemble
from unisono.training.server.server_trainer import ServerTrainer
from unisono.training.training_parts import AssemblyOptions

NUM, BATCH, BAD, LR = 40, 8, 13, 0.05
_RANDOM = np.random.default_rng(5)
INPUTS = _RANDOM.normal(size=(NUM, 6)) + 2.0
TARGETS = np.stack([INPUTS.sum(1), INPUTS[:, 0] - INPUTS[:, 1]], 1)
INPUTS[BAD, 2] = np.nan


class Net(nn.Module):
    """Beside the counter of batch-norm it counts samples in a number that is replaced, not changed."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2)).double()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.seen = self.seen + len(inputs)
        outputs: Tensor = self.body(inputs)
        return outputs


def task_of(**more: Any) -> Task:
    data = lambda: un.Splits((INPUTS, TARGETS))  # noqa: E731
    return Task(**{"model": Net, "data": data, "loss": "mse", "name": "task", "lr": LR, "global_batch": BATCH, "epochs": 2, **more})


def plain(batches: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """The batches in a plain loop of torch, without those that hold the bad sample."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for batch in batches:
        if BAD not in batch:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(torch.as_tensor(INPUTS[batch])), torch.as_tensor(TARGETS[batch]))
            torch.autograd.backward(loss)
            optimizer.step()
    return model.state_dict()


def batches_of(epochs: int) -> list[list[int]]:
    plan = Plan(NUM, BATCH, change(task_of(), {}).task.seed)
    return [plan.order(epoch)[plan.batch(step)].tolist() for epoch in range(epochs) for step in range(plan.steps_per_epoch)]


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert all(bool(torch.isfinite(one).all()) for one in expected.values())
    for name, value in expected.items():
        np.testing.assert_allclose(found[name].numpy(), value.numpy(), rtol=1e-12, atol=1e-14, err_msg=name)


@pytest.mark.parametrize("algorithm", ["allreduce", "local_sgd"])
def test_a_left_out_step_leaves_no_trace_in_buffers(algorithm: str) -> None:
    (one,) = train(task_of(), on_nan="skip", algorithm=algorithm)
    assert one.progress.num_skipped == 2
    assert_equal(one.weights, plain(batches_of(2)))


def test_a_left_out_step_of_shards_leaves_no_trace_in_buffers() -> None:
    one, other = train(task_of(shards=2), 2, on_nan="skip")
    assert int(one.weights["body.1.num_batches_tracked"]) == 8 and int(one.weights["seen"]) == 8 * BATCH // 2
    assert all(bool(torch.isfinite(value).all()) and torch.equal(value, other.weights[name]) for name, value in one.weights.items())


@pytest.mark.parametrize("algorithm", ["allreduce", "local_sgd"])
def test_a_left_out_step_of_one_worker_leaves_no_trace_in_the_mean(algorithm: str) -> None:
    for one in train(task_of(), 2, on_nan="skip", algorithm=algorithm):
        assert all(bool(torch.isfinite(value).all()) for value in one.weights.values())


def test_a_left_out_step_of_an_own_step_leaves_no_trace_in_buffers() -> None:
    def step(self: un.OwnStep, batch: tuple[Tensor, Tensor]) -> None:
        inputs, targets = batch
        self.minimise(((self.model(inputs) - targets) ** 2).mean(1))

    (one,) = train(task_of(step=step, loss=None), on_nan="skip")
    assert_equal(one.weights, plain(batches_of(2)))


@pytest.mark.parametrize(("algorithm", "options"), [("downpour", {"algorithm.optimizer_on": "server"}), ("parameter_server", {})])
def test_the_server_blends_no_statistics_of_a_left_out_step(algorithm: str, options: dict[str, object]) -> None:
    layout = LayoutOptions(simulate=1)
    parts = assemble(
        change(task_of(), options),
        algorithm,
        single_process_communicator(torch.device("cpu")),
        AssemblyOptions(layout=layout, on_nan="skip"),
    )
    done = ServerTrainer(comm=parts.algorithm.comm, parts=parts, evaluation_batch=8).train()
    assert done.num_skipped == 2
    expected = plain(batches_of(2))
    learned = {name: one for name, one in expected.items() if one.is_floating_point()}
    assert_equal(weights_of(parts.adapter.model), learned)


def test_a_gpu_puts_back_without_a_wait() -> None:
    """Where the flag is a tensor, both outcomes."""
    from unisono.model.torch.buffers import Buffers

    model = Net()
    buffers = Buffers(model, lambda numel, dtype: torch.empty(numel, dtype=dtype))
    for left_out in (True, False):
        buffers.keep()
        before = {name: one.clone() for name, one in model.named_buffers()}
        model(torch.as_tensor(INPUTS))
        after = {name: one.clone() for name, one in model.named_buffers()}
        buffers.put_back(torch.tensor(left_out))
        expected = before if left_out else after
        for name, one in model.named_buffers():
            np.testing.assert_array_equal(one.numpy(), expected[name].numpy())
