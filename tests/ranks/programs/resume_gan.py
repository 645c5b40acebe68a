"""A task with its own step and two optimisers, one of them of a kind that torch does not have; stopped as in resume.py."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from resume import SelfStop  # type: ignore[import-not-found]
from torch import Tensor, nn
from torch.optim import Optimizer

import unisono as un


class Pulling(Optimizer):
    """Steps of a length that is learned for all parameters together, and every few of them halfway back to a slow copy."""

    state: Any

    def __init__(self, params: Iterable[nn.Parameter], lr: float = 0.05, every: int = 3) -> None:
        super().__init__(params, {"lr": lr, "pulls": 0})
        self.every = every
        self.num_steps = 0
        self.slow: dict[nn.Parameter, Tensor] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        together = self.state["together"]
        together["norm"] = together.get("norm", torch.zeros(())) * 0.9
        (group,) = self.param_groups
        self.num_steps += 1
        for parameter in group["params"]:
            together["norm"] += parameter.grad.norm()
            self.slow.setdefault(parameter, parameter.clone())
            parameter.sub_(parameter.grad / (1.0 + together["norm"]), alpha=group["lr"])
            if self.num_steps % self.every == 0:
                parameter.copy_(self.slow[parameter].lerp_(parameter, 0.5))
        group["pulls"] += self.num_steps % self.every == 0


class Game(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(SelfStop(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
        self.generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64))

    def forward(self, inputs: Tensor) -> Any:
        return self.critic(inputs)


def step(self: un.OwnStep, batch: Any) -> None:
    real, _ = batch
    game: Any = self.model
    fake = game.generator(self.noise(len(real), 8))
    self.minimise(nn.functional.softplus(-game.critic(real)) + nn.functional.softplus(game.critic(fake.detach())), "critic")
    self.minimise(nn.functional.softplus(-game.critic(fake)), "generator")


def data() -> un.Splits:
    inputs, targets = un.digits()
    return un.split((inputs[:600], targets[:600, None].astype(np.float32) / 9), validation=0.3)


task = un.Task(
    model=Game,
    data=data,
    step=step,
    loss="mse",
    optimizer={"critic": ("adam", {"lr": 0.002}), "generator": Pulling},
    schedule="cosine",
    global_batch=64,
    epochs=3,
)
