"""What every rank of a training contender shares: the model, the data in memory, and turns of whole epochs.

The training runs in the main thread, as its users run it, from epoch to epoch until nobody asks for more; a second thread sits
on the conductor's socket. Between turns both are blocked in the kernel.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from bench.ranks.slot import attend
from bench.training_cases import CASES, DIGITS, SEED, Case


class Over(BaseException):
    """Nobody asks for more epochs. Not an `Exception`, so that no framework takes it for a failure that it can handle."""


class Turns:
    """Epochs on demand. `epoch_done` belongs to the thread that trains, `take` to the one that asks."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[int] = SimpleQueue()
        self._given: SimpleQueue[list[float] | Exception] = SimpleQueue()
        self._wanted = 0
        self._times: list[float] = []
        self._since = 0.0

    def take(self, num_epochs: int) -> list[float]:
        """Blocking: the seconds of each of so many epochs; raises what the training raised."""
        self._asked.put(num_epochs)
        given = self._given.get()
        if isinstance(given, Exception):
            raise given
        return given

    def run(self, train: Callable[[], object]) -> None:
        """Blocking: `train()` calls `epoch_done` after every epoch and does not return by itself."""
        try:
            self._wait()
            train()
        except Over:
            return
        except Exception as error:  # noqa: BLE001 -- whoever asked for the epoch shows it
            self._given.put(error)

    def epoch_done(self) -> None:
        """Blocking where the turn is over, until the next one. Raises `Over` if there is none."""
        self._times.append(perf_counter() - self._since)
        if len(self._times) == self._wanted:
            self._given.put(self._times)
            self._wait()
        self._since = perf_counter()

    def end(self) -> None:
        """Local: the training is over when its turn is."""
        self._asked.put(0)

    def attend(
        self,
        rank: int,
        size: int,
        versions: Mapping[str, str],
        actions: Mapping[str, Callable[..., Any]],
        train: Callable[[], object],
    ) -> None:
        """Blocking: train here, while another thread serves the conductor, until it hangs up."""

        def listen() -> None:
            try:
                attend(rank, size, {"torch": torch.__version__, **versions}, actions)
            finally:
                self.end()

        listening = threading.Thread(target=listen)
        listening.start()
        self.run(train)
        listening.join()

    def _wait(self) -> None:
        self._wanted, self._times = self._asked.get(), []
        if not self._wanted:
            raise Over
        self._since = perf_counter()


@dataclass(frozen=True)
class Batches:
    """The batches of one worker, in an order that is new in every epoch and the same on all ranks."""

    inputs: Tensor
    targets: Tensor
    global_batch: int
    rank: int
    size: int
    source: torch.Generator

    def __len__(self) -> int:
        return len(self.inputs) // self.global_batch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        share = self.global_batch // self.size
        first = self.rank * share
        for batch in torch.split(torch.randperm(len(self.inputs), generator=self.source), self.global_batch):
            own = batch[first : first + share] if self.size > 1 else batch
            yield self.inputs.index_select(0, own), self.targets.index_select(0, own)


class Learning:
    """One rank: `... SOCKET GROUP CASE DATA RANK SIZE`, the last two where the contender's own launcher does not say them."""

    def __init__(self, rank: int | None = None, size: int | None = None) -> None:
        self.case: Case = CASES[sys.argv[3]]
        self.rank = int(sys.argv[5]) if rank is None else rank
        self.size = int(sys.argv[6]) if size is None else size
        with np.load(sys.argv[4]) as data:
            self.inputs, self.targets = torch.from_numpy(data["inputs"]), torch.from_numpy(data["targets"])
        self.turns = Turns()
        # Units that die leave momenta that shrink for ever; sums of such numbers are slow, and who has how many is chance.
        torch.set_flush_denormal(True)

    def batches(self) -> Batches:
        source = torch.Generator().manual_seed(SEED)
        return Batches(self.inputs, self.targets, self.case.global_batch, self.rank, self.size, source)

    def optimizer(self, model: nn.Module) -> Optimizer:
        made: Optimizer = getattr(torch.optim, self.case.optimizer)(
            model.parameters(), lr=self.case.lr, **self.case.optimizer_options
        )
        return made

    def attend(self, versions: Mapping[str, str], model: nn.Module, train: Callable[[], object]) -> None:
        """Blocking: train as the conductor asks, until it hangs up. `model` is the one whose weights `train` changes."""

        def take(num_epochs: int) -> list[float]:
            # One more comes first and is not timed: it wakes the ranks and fetches what others pushed out of the caches.
            taken = self.turns.take(num_epochs + 1)[1:]
            return [round(seconds / self.case.steps * 1e6, 1) for seconds in taken]

        self.turns.attend(self.rank, self.size, versions, {"time": take, "state": lambda: self._state(model)}, train)

    def _state(self, model: nn.Module) -> dict[str, Any]:
        """Local, between turns: the mean loss over all samples, the weights as a hash, the threads."""
        model.eval()
        with torch.no_grad():
            loss = functional.cross_entropy(model(self.inputs), self.targets).item()
        model.train()
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.detach().contiguous().view(torch.uint8).numpy().data)
        return {"loss": loss, "weights": digest.hexdigest(), "threads": torch.get_num_threads()}


def make_model(case: Case) -> nn.Module:
    """Local: the same initial weights for everybody who makes it himself."""
    torch.manual_seed(SEED)
    if case is DIGITS:
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 12 * 12, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )
