"""The record of a run for TensorBoard (`--tensorboard`)."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from unisono.errors import UsageError
from unisono.events import EpochDone, Observer, RunStarted, StepDone

NO_TENSORFLOW = "tensorboard.compat.notf"


class TensorBoard(Observer):
    """Event files in a folder: `step/...` every `log_every` steps, `epoch/...` after every epoch, both over the steps done."""

    def __init__(self, folder: Path, log_every: int = 1) -> None:
        """Refuses at once if TensorBoard is not installed, so that no run ends without its record."""
        # TensorBoard's own switch: where it finds this module it does without TensorFlow, which else it loads just to write files,
        # and which takes seconds, and memory of the GPUs.
        sys.modules.setdefault(NO_TENSORFLOW, ModuleType(NO_TENSORFLOW))
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UsageError(
                f"--tensorboard needs the package tensorboard, which cannot be imported ({error}); pip install tensorboard"
            ) from error
        self._make = SummaryWriter
        self._folder = folder
        self._log_every = log_every
        self._writer: Any = None

    def started(self, event: RunStarted) -> None:
        """Opens the event file; steps that a resumed run repeats are hidden."""
        # What an earlier attempt wrote beyond the step from which this one resumes is hidden by `purge_step`.
        self._writer = self._make(str(self._folder), purge_step=event.first_step or None)

    def step(self, event: StepDone) -> None:
        """Writes loss, learning rate and metrics of every `log_every`th step."""
        if event.step % self._log_every:
            return
        for name, number in {"loss": event.loss, "lr": event.lr, **event.sums}.items():
            self._writer.add_scalar(f"step/{name}", number, event.step + 1)

    def epoch(self, event: EpochDone) -> None:
        """Writes the metrics and the speed of an epoch."""
        for name, number in {**event.metrics, "samples_per_s": event.samples_per_s}.items():
            self._writer.add_scalar(f"epoch/{name}", number, event.step)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
