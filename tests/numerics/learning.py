"""Training in this process, on one rank or on several threads, and the plain loops that it must equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import torch
import torch._inductor.config  # the first optimiser loads it, and it sets a variable of the environment
from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.algorithms.allreduce import AllReduce, Options
from unisono.algorithms.base import LockStepAlgorithm, StepInfo
from unisono.comm.base import Communicator
from unisono.data.sharding_plan import cut
from unisono.data.tree import map_tree
from unisono.model.base import StreamKey
from unisono.model.losses import resolve_loss
from unisono.model.tail import StepStats
from unisono.model.torch.adapter import TorchAdapter, trainable
from unisono.model.torch.body import LossBody
from unisono.task.overrides import change
from unisono.task.task import Task
from unisono.testing.thread_communicator import run_threads
from unisono.training.frontends.assemble import assemble
from unisono.training.progress import Progress
from unisono.training.trainer import Trainer
from unisono.training.training_parts import AssemblyOptions

Weights = dict[str, Tensor]

ONE_AT_A_TIME = Lock()
"""Threads share torch's random generator: models are made one after the other."""


@dataclass(frozen=True)
class Trained:
    """What is left of a training on one rank."""

    weights: Weights
    progress: Progress
    model: nn.Module


def train(task: Task, num_workers: int = 1, on_nan: str = "stop", algorithm: str = "allreduce") -> list[Trained]:
    """A whole training by its task, as `unisono train` does it; the results by rank."""

    def body(comm: Communicator) -> Trained:
        with ONE_AT_A_TIME:
            parts = assemble(change(task, {}), algorithm, comm, AssemblyOptions(on_nan=on_nan))
        assert isinstance(parts.algorithm, LockStepAlgorithm)
        done = Trainer(comm=comm, parts=parts, evaluation_batch=4).train()
        return Trained(weights_of(parts.adapter.model), done, parts.adapter.model)

    return run_threads(num_workers, body)


class Learner:
    """One replica and its algorithm, step by step, without a trainer."""

    def __init__(
        self,
        comm: Communicator,
        model: nn.Module,
        make_optimizer: Callable[[nn.Module], Optimizer],
        loss: Any = "mse",
        loss_options: Any = None,
        bucket_mb: float = 8.0,
        **settings: Any,
    ) -> None:
        body = LossBody(resolve_loss(loss, loss_options or {}))
        self.adapter = TorchAdapter(model, body, {"": trainable(model)}, comm.device, comm.empty, **settings)
        self.part = self.adapter.parts[""]
        self.optimizer = make_optimizer(model)
        self.part.set_optimizer(self.optimizer)
        self.algorithm = AllReduce(comm, self.adapter, Options(bucket_mb))
        self.algorithm.start()
        self.comm = comm
        self.num_steps = 0

    def step(self, micro_batches: Sequence[Any]) -> StepStats:
        at = StepInfo(
            self.num_steps, StreamKey(0, self.num_steps, self.comm.rank), {"": [{} for _ in self.optimizer.param_groups]}, 0
        )
        self.num_steps += 1
        (stats,) = self.algorithm.step(micro_batches, at)
        return stats


def learn(model: nn.Module, make_optimizer: Any, batches: Sequence[Any], num_workers: int = 1, **options: Any) -> list[Weights]:
    """The weights by rank after a step for each batch, of which every worker takes its part."""

    def body(comm: Communicator) -> Weights:
        learner = Learner(comm, deepcopy(model), make_optimizer, **options)
        for batch in batches:
            part = part_of(batch, comm.size, comm.rank)
            learner.step((part,) if rows(part) else ())
        return weights_of(learner.adapter.model)

    return run_threads(num_workers, body)


def plain(
    model: nn.Module,
    make_optimizer: Callable[[nn.Module], Optimizer],
    batches: Sequence[Any],
    loss: Callable[[nn.Module, Any], Tensor],
    clip_norm: float | None = None,
) -> Weights:
    """The loop that everybody writes."""
    model = deepcopy(model)
    optimizer = make_optimizer(model)
    for batch in batches:
        optimizer.zero_grad()
        loss(model, map_tree(torch.as_tensor, batch)).backward()  # type: ignore[no-untyped-call]
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
    return weights_of(model)


def part_of(batch: Any, num_workers: int, worker: int) -> Any:
    where = cut(rows(batch), num_workers, worker)
    return map_tree(lambda leaf: leaf[where], batch)


def rows(tree: Any) -> int:
    while not isinstance(tree, np.ndarray):
        tree = next(iter(tree.values())) if isinstance(tree, dict) else tree[0]
    return len(tree)


def weights_of(model: nn.Module) -> Weights:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def assert_same(found: Weights, expected: Weights, rtol: float = 1e-12) -> None:
    """Equal to `rtol` of the norm of each tensor."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        difference = torch.linalg.vector_norm((found[name] - tensor).double())
        assert difference <= rtol * max(1e-300, float(torch.linalg.vector_norm(tensor.double()))), (name, float(difference))
