"""What every contender of `bench.checkpoint` shares: the model, the data in memory, and turns of single steps.

A step lasts from where its batch is in hand until the next one is, so a save after it is in its time. `... SOCKET GROUP FOLDER
PERIOD`: it is saved into the folder after every step whose number the period divides.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam, Optimizer

from bench.ranks.learning import Batches, Turns
from bench.saving_case import BATCH, CLASSES, FEATURES, LR, SIZES, STEPS_PER_EPOCH
from bench.training_cases import SEED


class SavedTraining:
    """The one rank of a contender."""

    def __init__(self) -> None:
        self.folder, self.period = Path(sys.argv[3]), int(sys.argv[4])
        self.folder.mkdir(parents=True)
        self.inputs, self.targets = make_data()
        self._turns = Turns()
        self.whole_s: list[float] = []
        """From the beginning of each save until it was done, where the training does not wait for it."""
        self.own_s: list[float] = []
        """How long each save kept the training waiting by the contender's own account, where it gives one."""
        torch.set_flush_denormal(True)

    def batches(self) -> Batches:
        return Batches(self.inputs, self.targets, BATCH, 0, 1, torch.Generator().manual_seed(SEED))

    def step_begins(self) -> None:
        """Blocking where the turn is over, until the next one; called when the batch of a step is in hand. What a turn counts are
        steps here, and the first of all is what comes before any step."""
        self._turns.epoch_done()

    def attend(
        self, versions: Mapping[str, str], model: nn.Module, train: Callable[[], object], settle: Callable[[], None]
    ) -> None:
        """Blocking: train as the conductor asks, until it hangs up. `settle()`, between turns, waits for a save under way."""

        def time(num_steps: int) -> list[float]:
            taken = self._turns.take(num_steps)
            settle()
            os.sync()  # what this contender leaves to the system must not slow down the next one
            return [round(seconds * 1e6, 1) for seconds in taken]

        def saves() -> dict[str, Any]:
            newest = max(self.folder.iterdir(), key=lambda path: path.stat().st_mtime)
            files = [newest] if newest.is_file() else [path for path in newest.rglob("*") if path.is_file()]
            return {
                "whole_us": [round(seconds * 1e6, 1) for seconds in self.whole_s],
                "own_us": [round(seconds * 1e6, 1) for seconds in self.own_s],
                "bytes": sum(path.stat().st_size for path in files),
                "threads": torch.get_num_threads(),
                "loss": self._loss(model),
            }

        self._turns.attend(0, 1, versions, {"time": time, "saves": saves}, train)

    def keep_newest(self) -> None:
        """Local: for contenders that remove nothing themselves."""
        for path in sorted(self.folder.iterdir(), key=lambda path: path.stat().st_mtime)[:-1]:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _loss(self, model: nn.Module) -> float:
        model.eval()
        with torch.no_grad():
            loss = functional.cross_entropy(model(self.inputs[:1024]), self.targets[:1024]).item()
        model.train()
        return loss


def make_data() -> tuple[Tensor, Tensor]:
    """Local: ten patterns and noise, as much as one epoch takes."""
    source = torch.Generator().manual_seed(SEED)
    patterns = torch.rand(CLASSES, FEATURES, generator=source)
    targets = torch.randint(0, CLASSES, (BATCH * STEPS_PER_EPOCH,), generator=source)
    return 0.5 * patterns[targets] + 0.5 * torch.rand(len(targets), FEATURES, generator=source), targets


def make_model() -> nn.Module:
    """Local: the same initial weights for everybody."""
    torch.manual_seed(SEED)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(SIZES):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def make_optimizer(model: nn.Module) -> Optimizer:
    """Local."""
    return Adam(model.parameters(), lr=LR)


def learn(training: SavedTraining, model: nn.Module, optimizer: Optimizer, save: Callable[[int], None]) -> None:
    """Local, blocking: a plain loop; `save(step)` is called when it is time."""
    model.train()
    batches, step = training.batches(), 0
    while True:
        for inputs, targets in batches:
            training.step_begins()
            loss = functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            if step % training.period == 0:
                save(step)
