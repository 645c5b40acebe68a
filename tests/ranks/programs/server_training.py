"""A task for a server and its workers. A file `plan` beside it says what one worker does in one of its steps (stop, die, nan or
raise), or what happens while the server evaluates: it is asked to stop, or the evaluation lasts while workers go on or a state is
saved. The samples of every step are written to a file for each process."""

from __future__ import annotations

import os
import select
import signal
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic, sleep

import torch
from torch import Tensor, nn

import unisono as un

PLAN = Path("plan")
"""E.g. "die 7": what comes in the seventh step of the process that is first there. "die-saved 60": a worker dies once `run` has a
checkpoint of step 60 or later, and evaluations last until then, but not longer than HELD_S. "die-unsaved 60": likewise, but after
HELD_S the server dies. "evaluate-late": the first evaluation lasts until workers have read more samples."""
AT_A_SAVE = ("die-saved", "die-unsaved")
HELD_S = 2.0
"""Much longer than a save takes that waits for nothing."""


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
        elif len(inputs) > 2:  # two samples are the try-out of every process
            what, _ = planned()
            if what == "stop-evaluating":
                PLAN.unlink()
                request = signal.getsignal(signal.SIGTERM).__self__  # type: ignore[union-attr]
                os.kill(os.getpid(), signal.SIGTERM)
                while not request.requested():  # the main thread hears it, and this is another
                    sleep(0.001)
            elif what == "evaluate-late":
                PLAN.unlink()
                before, until = num_read(), monotonic() + HELD_S
                while num_read() < before + 12 and monotonic() < until:
                    sleep(0.001)
            elif what in AT_A_SAVE and inputs[0, 0] == 0 and not a_worker_dies(HELD_S) and what == "die-unsaved":
                PLAN.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        outputs: Tensor = self.last(torch.tanh(self.norm(self.first(inputs[:, 1:]))))
        return outputs

    def _planned(self, inputs: Tensor) -> Tensor:
        what, step = planned()
        is_due = newest_checkpoint() >= step if what in AT_A_SAVE else self.num_steps == step
        with suppress(FileNotFoundError):  # another may have been first
            if step and is_due:
                PLAN.unlink()
                if what == "raise":
                    raise RuntimeError("this worker fails")
                if what == "nan":
                    return inputs * torch.nan
                os.kill(os.getpid(), signal.SIGUSR1 if what == "stop" else signal.SIGKILL)
        return inputs


def planned() -> tuple[str, int]:
    try:
        what, _, step = PLAN.read_text().partition(" ")
    except FileNotFoundError:
        return "", 0
    return what, int(step or 0)


def num_read() -> int:
    """Samples of all steps of all processes so far."""
    return sum(path.read_text().count("\n") for path in Path().glob("samples-*"))


def newest_checkpoint() -> int:
    return max((int(path.name.removeprefix("step-")) for path in Path("run/checkpoints").glob("step-*")), default=0)


def a_worker_dies(limit_s: float) -> bool:
    """Blocking: until one of the processes that train is dead, or for so long."""
    with ExitStack() as held:
        workers = []
        for path in Path().glob("samples-*"):
            try:
                workers.append(os.pidfd_open(int(path.name.removeprefix("samples-"))))
            except ProcessLookupError:
                return True
            held.callback(os.close, workers[-1])
        return bool(select.select(workers, [], [], limit_s)[0])


def model(norm: bool = False) -> nn.Module:
    return Net(norm)


def data(num: int = 120, test: int = 0) -> un.Splits:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(num, 8, generator=generator, dtype=torch.float64)
    targets = torch.stack([inputs[:, 1:].sum(1), inputs[:, 1] - inputs[:, 2]], 1)
    inputs[:, 0] = torch.arange(num)
    return un.Splits(
        (inputs.numpy(), targets.numpy()),
        validation=(inputs[:100].numpy(), targets[:100].numpy()),
        test=(inputs[:test].numpy(), targets[:test].numpy()) if test else None,
    )


task = un.Task(model=model, data=data, loss="mse", optimizer="sgd", lr=0.02, schedule="cosine", global_batch=8, epochs=3)
