"""A task for a server and its workers. A file `plan` beside it says what one worker does in one of its steps: stop, die, nan or
raise; or that the server is told to stop while it looks at the validation data. The samples of every step are written to a file for
each process."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from time import sleep

import torch
from torch import Tensor, nn

import unisono as un

PLAN = Path("plan")
"""E.g. "die 7": what comes in the seventh step of the process that is first there."""


class Net(nn.Module):
    """In double precision. The first number of a sample is its own."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(7, 8).double()
        self.norm = nn.BatchNorm1d(8).double() if norm else nn.Identity()
        self.last = nn.Linear(8, 2).double()
        self.num_steps = 0

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.num_steps += 1
            with Path(f"samples-{os.getpid()}").open("a") as file:
                file.writelines(f"{int(number)}\n" for number in inputs[:, 0])
            inputs = self._planned(inputs)
        elif len(inputs) > 2 and PLAN.exists() and PLAN.read_text() == "look":  # two samples are the try-out of every process
            PLAN.unlink()
            request = signal.getsignal(signal.SIGTERM).__self__  # type: ignore[union-attr]
            os.kill(os.getpid(), signal.SIGTERM)
            while not request.asked():  # the main thread hears it, and this is another
                sleep(0.001)
        outputs: Tensor = self.last(torch.tanh(self.norm(self.first(inputs[:, 1:]))))
        return outputs

    def _planned(self, inputs: Tensor) -> Tensor:
        with suppress(FileNotFoundError):  # another may have been first
            what, _, step = PLAN.read_text().partition(" ")
            if step and self.num_steps == int(step):
                PLAN.unlink()
                if what == "raise":
                    raise RuntimeError("this worker fails")
                if what == "nan":
                    return inputs * torch.nan
                os.kill(os.getpid(), {"stop": signal.SIGUSR1, "die": signal.SIGKILL}[what])
        return inputs


def model(norm: bool = False) -> nn.Module:
    return Net(norm)


def data(num: int = 120) -> un.Splits:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(num, 8, generator=generator, dtype=torch.float64)
    targets = torch.stack([inputs[:, 1:].sum(1), inputs[:, 1] - inputs[:, 2]], 1)
    inputs[:, 0] = torch.arange(num)
    return un.Splits((inputs.numpy(), targets.numpy()), validation=(inputs[:100].numpy(), targets[:100].numpy()))


task = un.Task(model=model, data=data, loss="mse", optimizer="sgd", lr=0.02, schedule="cosine", global_batch=8, epochs=3)
