"""A task with a step of its own and two optimisers, for the critic and the generator of a small game."""

from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import softplus

import unisono as un


class Game(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(64, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
        self.generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64))

    def forward(self, inputs: Tensor) -> Any:
        return self.critic(inputs)


def step(self: un.OwnStep, batch: Any) -> None:
    real, _ = batch
    game: Any = self.model
    fake = game.generator(self.noise(len(real), 8))
    self.minimise(softplus(-game.critic(real)) + softplus(game.critic(fake.detach())), "critic")
    self.minimise(softplus(-game.critic(fake)), "generator")


def data() -> un.Splits:
    inputs, targets = un.digits()
    return un.split((inputs[:600], targets[:600, None].astype(np.float32) / 9), validation=0.3)


task = un.Task(
    model=Game,
    data=data,
    step=step,
    loss="mse",
    optimizer={"critic": ("adam", {"lr": 0.002}), "generator": ("sgd", {"lr": 0.05})},
    global_batch=48,
    epochs=2,
)
