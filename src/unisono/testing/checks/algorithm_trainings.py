"""Small trainings for the contract of algorithms: one algorithm with one of its examples, on the ranks at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unisono.algorithms.base import Algorithm, find_algorithm
from unisono.comm.base import Communicator
from unisono.data.plan import Plan
from unisono.data.splits import Splits
from unisono.run import execute
from unisono.task.overrides import change
from unisono.task.task import Task
from unisono.task.train_config import TrainConfig
from unisono.training.work_layout import AlgorithmSetup, set_up_algorithm

SAMPLES, FEATURES, BATCH = 48, 5, 12
"""Four steps in an epoch; the batch can be divided by 1, 2, 3 and 4."""
LR = 0.05


class NotHere(Exception):
    """This check says nothing about this case on so many ranks."""


@dataclass(frozen=True)
class Case:
    """An algorithm, as users type it, and one of its examples."""

    name: str
    number: int = 0

    @cached_property
    def kind(self) -> type[Algorithm]:
        return find_algorithm(self.name)

    @property
    def changes(self) -> Mapping[str, Any]:
        """As `--set` gives them."""
        return self.kind.examples[self.number]

    def setup(self, size: int) -> AlgorithmSetup:
        """Local: what it makes of so many processes."""
        return set_up_algorithm(change(make_task(), self.changes), self.name, size)

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value}" for name, value in self.changes.items())
        return f"{self.name} ({shown})" if shown else self.name


@dataclass(frozen=True)
class Trained:
    """What is left of a training on this rank."""

    model: nn.Module
    summary: Mapping[str, Any]

    @property
    def weights_sha256(self) -> str:
        return str(self.summary["weights_sha256"])

    @property
    def losses(self) -> list[float]:
        return [row["metrics"]["loss"] for row in self.summary["history"]]


def make_task(model: Callable[[], nn.Module] | None = None, data: Callable[[], Splits] | None = None, **settings: Any) -> Task:
    """Local: a quadratic unless told otherwise, with a learning rate that falls."""
    usual = {"lr": LR, "global_batch": BATCH, "epochs": 3}
    return Task(
        model=model or linear,
        data=data or quadratic,
        loss="mse",
        optimizer="sgd",
        schedule=falling,
        name="contract",
        **{**usual, **settings},
    )


def falling(step: int) -> float:
    return 1.0 / (1.0 + 0.005 * step)


def linear() -> nn.Module:
    """The same weights everywhere."""
    model = nn.Linear(FEATURES, 1).double()
    with torch.no_grad():
        model.weight.copy_(torch.linspace(-1.0, 1.0, FEATURES))
        model.bias.fill_(0.5)
    return model


def normed() -> nn.Module:
    """With running statistics and a counter."""
    return nn.Sequential(linear(), nn.BatchNorm1d(1), nn.Linear(1, 1)).double()


def wide() -> nn.Module:
    """Of so many weights that what travels beside them is a few percent."""
    return nn.Sequential(nn.Linear(FEATURES, 2000), nn.Linear(2000, 1)).double()


def samples(num: int = SAMPLES) -> tuple[Any, Any]:
    """Pure: inputs, and targets that a linear model can learn exactly."""
    inputs = np.random.default_rng(7).normal(size=(num, FEATURES))
    return inputs, inputs.sum(1, keepdims=True) - 1.0


def quadratic() -> Splits:
    return Splits(train=samples(), validation=samples())


def only_training(num: int) -> Splits:
    """So many samples, and nothing to evaluate."""
    return Splits(train=samples(num))


def train(
    comm: Communicator,
    case: Case,
    out: Path,
    task: Task | None = None,
    max_steps: int | None = None,
    replay: Path | None = None,
) -> Trained:
    """Collective, blocking: a training as `unisono train` makes it; or the rest of one that is in this directory."""
    made: list[nn.Module] = []
    task = task or make_task()
    config = TrainConfig(
        task_file="",
        changes=case.changes,
        algorithm=case.name,
        out=str(out),
        max_steps=max_steps,
        replay=None if replay is None else str(replay),
        checkpoint_every="never",
        device="cpu",
        quiet=True,
    )
    ended = execute(config, comm, task=replace(task, model=partial(_noted, task.model, made)))
    return Trained(made[0], ended.summary)


def _noted(make: Callable[[], nn.Module], made: list[nn.Module]) -> nn.Module:
    made.append(make())
    return made[-1]


def plain_training(case: Case) -> dict[str, Tensor]:
    """Local: the weights after the same training by PyTorch alone."""
    task = change(make_task(), case.changes).task
    (inputs, targets), model = samples(), linear()
    plan = Plan(SAMPLES, BATCH, task.seed)
    optimizer = torch.optim.SGD(model.parameters(), LR, **task.optimizer_options)
    for step in range(task.epochs * plan.steps_per_epoch):
        epoch, step_in_epoch = divmod(step, plan.steps_per_epoch)
        batch = plan.order(epoch)[plan.batch(step_in_epoch)]
        optimizer.param_groups[0]["lr"] = LR * falling(step)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(torch.from_numpy(inputs[batch])), torch.from_numpy(targets[batch])).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {name: value.detach() for name, value in model.state_dict().items()}
