"""JEDI-net in a plain PyTorch loop, without any communication layer: `... SOCKET GROUP PARTICLES NUM_JETS EPOCHS PART PARTS`.

Model, jets, initial weights, batches and learning rates are those of `unisono train examples/jedi_net.py` with one worker and
nothing else: no messages, no loss or accuracy on the way. Of each batch it takes part PART of PARTS and knows of no other loop.
The first epoch warms it up; those that are left are timed.
"""

from __future__ import annotations

import sys
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.optim import Adam

from bench.groups import ROOT
from bench.ranks.slot import attend, stay_on_part
from unisono.data.sharding_plan import Plan
from unisono.data.source import Source
from unisono.model.base import StreamKey
from unisono.optim.curves import make_curve
from unisono.task.task_file import load_task

LAYERS = frozenset({"comm", "algorithms", "training", "run", "cli"})
"""Of Unisono: those that talk, and those that train."""


class PlainLoop:
    """One training. Local."""

    def __init__(self, particles: int, num_jets: int, num_epochs: int, part: int = 0, num_parts: int = 1) -> None:
        task = load_task(str(ROOT / "examples" / "jedi_net.py"))
        if (task.loss, task.optimizer, task.optimizer_options) != ("cross_entropy", "adam", {}) or task.lr is None:
            raise ValueError("the task no longer learns by cross entropy and plain Adam, and this loop would learn something else")
        splits = task.data(particles=particles, num_jets=num_jets)
        self.part, self.num_parts, self.lr = part, num_parts, task.lr
        self.inputs, self.targets = as_tensors(splits.train)
        self.validation = as_tensors(splits.validation)
        self.plan = Plan(len(splits.train), task.global_batch, task.seed)
        steps_per_epoch = self.plan.steps_per_epoch
        self.factor = make_curve(str(task.schedule), {}, num_steps=num_epochs * steps_per_epoch, steps_per_epoch=steps_per_epoch)
        torch.manual_seed(StreamKey(task.seed, -1, 0).value())
        self.model = task.model(particles=particles)
        # One tensor after the other takes about a millisecond more, which is no matter of communication.
        self.optimizer = Adam(self.model.parameters(), lr=task.lr, fused=True)

    def epoch(self, number: int) -> int:
        """Blocking: learn from every sample once; gives their number."""
        order, num_samples = torch.from_numpy(self.plan.order(number)), 0
        for step in range(self.plan.steps_per_epoch):
            own = order[self.plan.part(step, self.part, self.num_parts)]
            self.optimizer.param_groups[0]["lr"] = self.lr * self.factor(number * self.plan.steps_per_epoch + step)
            loss = functional.cross_entropy(self.model(self.inputs[own]), self.targets[own])
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            num_samples += len(own)
        return num_samples

    def validation_loss(self) -> float:
        """Blocking: shows that it has learned the same."""
        inputs, targets = self.validation
        with torch.no_grad():
            return functional.cross_entropy(self.model(inputs), targets).item()


def as_tensors(source: Source) -> tuple[Tensor, Tensor]:
    inputs, targets = source.read(np.arange(len(source)))
    return torch.from_numpy(inputs), torch.from_numpy(targets)


def main() -> None:
    particles, num_jets, num_epochs, part, num_parts = map(int, sys.argv[3:])
    stay_on_part(part, num_parts)
    torch.set_num_threads(1)
    loop = PlainLoop(particles, num_jets, num_epochs, part, num_parts)

    def timed() -> dict[str, Any]:
        """Blocking: the epochs that are left."""
        began = perf_counter()
        num_samples = sum(loop.epoch(number) for number in range(1, num_epochs))
        samples_per_s = num_samples / (perf_counter() - began)
        loaded = {name.split(".")[1] for name in sys.modules if name.startswith("unisono.")} & LAYERS
        if loaded:
            raise RuntimeError(f"this loop is to do without the communication layer, and has loaded {', '.join(sorted(loaded))}")
        return {"samples_per_s": samples_per_s, "val_loss": loop.validation_loss()}

    attend(part, num_parts, {}, {"warm_up": lambda: loop.epoch(0), "time": timed})


if __name__ == "__main__":
    main()
