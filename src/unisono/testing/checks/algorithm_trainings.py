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
from unisono.data.sharding_plan import Plan
from unisono.data.splits import Splits
from unisono.run import execute
from unisono.task.overrides import change
from unisono.task.task import Task
from unisono.task.train_config import TrainConfig
from unisono.training.work_layout import AlgorithmSetup, set_up_algorithm

SAMPLES, FEATURES, BATCH = 48, 5, 12
"""Four steps in an epoch; the batch can be divided by 1, 2, 3 and 4."""
LR = 0.05


class NotApplicable(Exception):
    """Raised by a check that does not apply to a case or to this number of ranks."""


@dataclass(frozen=True)
class Case:
    """One case of the contract: an algorithm by its name and one of its examples."""

    name: str
    number: int = 0

    @cached_property
    def kind(self) -> type[Algorithm]:
        """The class of the algorithm."""
        return find_algorithm(self.name)

    @property
    def changes(self) -> Mapping[str, Any]:
        """The settings of the example, as `--set` gives them."""
        return self.kind.examples[self.number]

    def setup(self, size: int) -> AlgorithmSetup:
        """Local: the setup of the algorithm on `size` processes."""
        return set_up_algorithm(change(make_task(), self.changes), self.name, size)

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value}" for name, value in self.changes.items())
        return f"{self.name} ({shown})" if shown else self.name


@dataclass(frozen=True)
class Trained:
    """The model and the summary of a finished training on this rank."""

    model: nn.Module
    summary: Mapping[str, Any]

    @property
    def weights_sha256(self) -> str:
        """The hash of the final weights, from the summary."""
        return str(self.summary["weights_sha256"])

    @property
    def losses(self) -> list[float]:
        """The training loss of every epoch."""
        return [row["metrics"]["loss"] for row in self.summary["history"]]


def make_task(model: Callable[[], nn.Module] | None = None, data: Callable[[], Splits] | None = None, **settings: Any) -> Task:
    """Local: makes a task: linear regression unless given otherwise, with a falling learning rate."""
    usual = {"lr": LR, "global_batch": BATCH, "epochs": 3}
    return Task(
        model=model or linear_model,
        data=data or quadratic_data,
        loss="mse",
        optimizer="sgd",
        schedule=falling_lr,
        name="contract",
        **{**usual, **settings},
    )


def falling_lr(step: int) -> float:
    """The learning rate at a step: 1 / (1 + 0.005 step)."""
    return 1.0 / (1.0 + 0.005 * step)


def linear_model() -> nn.Module:
    """A linear model with the same weights on all ranks."""
    model = nn.Linear(FEATURES, 1).double()
    with torch.no_grad():
        model.weight.copy_(torch.linspace(-1.0, 1.0, FEATURES))
        model.bias.fill_(0.5)
    return model


def model_with_norm() -> nn.Module:
    """A model with running statistics and a counter."""
    return nn.Sequential(linear_model(), nn.BatchNorm1d(1), nn.Linear(1, 1)).double()


def wide_model() -> nn.Module:
    """A model with so many weights that other traffic is only a few percent of theirs."""
    return nn.Sequential(nn.Linear(FEATURES, 2000), nn.Linear(2000, 1)).double()


def samples(num: int = SAMPLES) -> tuple[Any, Any]:
    """Pure: inputs, and targets that a linear model can fit exactly."""
    inputs = np.random.default_rng(7).normal(size=(num, FEATURES))
    return inputs, inputs.sum(1, keepdims=True) - 1.0


def quadratic_data() -> Splits:
    """Training and validation data, both of them `samples()`."""
    return Splits(train=samples(), validation=samples())


def only_training_data(num: int) -> Splits:
    """Training data without validation data."""
    return Splits(train=samples(num))


def train(
    comm: Communicator,
    case: Case,
    out: Path,
    task: Task | None = None,
    max_steps: int | None = None,
    replay: Path | None = None,
) -> Trained:
    """Collective, blocking: trains as `unisono train` does; resumes a training that is in `out`."""
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
    ended = execute(config, comm, task=replace(task, model=partial(_record_model, task.model, made)))
    return Trained(made[0], ended.summary)


def _record_model(make: Callable[[], nn.Module], made: list[nn.Module]) -> nn.Module:
    """Makes a model, appends it to `made`, and returns it."""
    made.append(make())
    return made[-1]


def plain_training(case: Case) -> dict[str, Tensor]:
    """Local: the weights after the same training with PyTorch alone."""
    task = change(make_task(), case.changes).task
    (inputs, targets), model = samples(), linear_model()
    plan = Plan(SAMPLES, BATCH, task.seed)
    optimizer = torch.optim.SGD(model.parameters(), LR, **task.optimizer_options)
    for step in range(task.epochs * plan.steps_per_epoch):
        epoch, step_in_epoch = divmod(step, plan.steps_per_epoch)
        batch = plan.order(epoch)[plan.batch(step_in_epoch)]
        optimizer.param_groups[0]["lr"] = LR * falling_lr(step)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(torch.from_numpy(inputs[batch])), torch.from_numpy(targets[batch])).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {name: value.detach() for name, value in model.state_dict().items()}
