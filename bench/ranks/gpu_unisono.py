"""Unisono as its users call it: `un.train` of a task whose images are bytes in memory, with console and metrics.jsonl."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

import unisono as un
from bench.gpu_cases import ENDLESS, Case, make_data, make_network
from bench.ranks.gpu_turns import Loop
from unisono.events import Observer, StepDone
from unisono.start_training import TRAIN_OPTIONS
from unisono.task.options import keywords_of

EPOCHS = 10**6
FACTOR = 1 / 255
RUN = "unisono.run"
"""Where a run opens its observers."""


class Turn(Observer):
    """Stands behind the usual observers, so that their work counts."""

    def __init__(self, step_done: Callable[[], None]) -> None:
        self._step_done, self.loss = step_done, float("nan")

    def step(self, event: StepDone) -> None:
        self.loss = event.loss
        self._step_done()


class Endless(un.Source):
    """Images in the memory of the host, again and again: more than any device holds."""

    in_memory = True

    def __init__(self, inputs: npt.NDArray[np.uint8], targets: npt.NDArray[np.int64]) -> None:
        self._inputs, self._targets = inputs, targets

    def __len__(self) -> int:
        return ENDLESS

    def read(self, indices: npt.NDArray[np.int64]) -> Any:
        numbers = indices % len(self._inputs)
        return self._inputs[numbers], self._targets[numbers]


class Unisono(Loop):
    """With these options of the command line; those that this version does not have are left out, which it says."""

    lead_steps = 10

    def __init__(self, case: Case, device: str, folder: Path, options: Mapping[str, Any]) -> None:
        known = keywords_of(*TRAIN_OPTIONS)
        self._case, self._folder = case, folder
        self._options = {"device": device, **{name: value for name, value in options.items() if name in known}}
        left_out = sorted(set(options) - set(known))
        given = " ".join(f"--{name} {value}" for name, value in self._options.items())
        self.chosen = given + (f" (without {', '.join(left_out)}, which this version does not have)" if left_out else "")

    def prepare(self) -> None:
        importlib.import_module(RUN)
        self._inputs, self._targets = make_data(self._case)

    def train(self, step_done: Callable[[], None]) -> None:
        run: Any = importlib.import_module(RUN)
        case, usual, self._turn = self._case, run.open_observers, Turn(step_done)

        def data() -> un.Splits:
            source = Endless if case.is_streamed else un.Arrays
            return un.Splits(train=source(self._inputs, self._targets).map_inputs(scaling()))

        task = un.Task(
            model=lambda: make_network(case),
            data=data,
            loss="cross_entropy",
            metrics=("accuracy",),
            optimizer="sgd",
            optimizer_options={"momentum": case.momentum},
            lr=case.lr,
            global_batch=case.batch,
            epochs=EPOCHS,
            name=case.name,
        )
        with mock.patch.object(run, "open_observers", lambda *given: [*usual(*given), self._turn]):
            un.train(task, out=self._folder / "run", **self._options)

    def loss(self) -> float:
        return self._turn.loss


def scaling() -> Callable[[Any], Any]:
    """Declared, so that it happens on the device; where this version cannot declare it, a function of the host."""
    declared: Any = getattr(un, "Scale", None)
    if declared is not None:
        made: Callable[[Any], Any] = declared(FACTOR)
        return made
    return lambda images: images.astype(np.float32) * np.float32(FACTOR)
