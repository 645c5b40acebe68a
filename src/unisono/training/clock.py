"""Watches the time: how long steps, evaluations and saves take, for the deadline, and signs of life for status.json."""

from __future__ import annotations

from unisono.cluster.deadline import Deadline
from unisono.events import EpochDone, Observer, RunStarted, StepDone
from unisono.training.background import BackgroundWriter
from unisono.training.status import Status

SIGN_OF_LIFE_S = 5.0


class Clock(Observer):
    """On rank 0. Cheap: most steps cost one comparison."""

    def __init__(self, deadline: Deadline, status: Status, writer: BackgroundWriter) -> None:
        self._deadline = deadline
        self._status = status
        self._writer = writer
        self._last_s = 0.0
        self._sign_s = 0.0

    def started(self, event: RunStarted) -> None:  # noqa: ARG002
        self._last_s = 0.0

    def step(self, event: StepDone) -> None:
        if self._last_s:
            self._deadline.step_took(event.wall_s - self._last_s)
        self._last_s = event.wall_s
        if event.wall_s - self._sign_s > SIGN_OF_LIFE_S:
            self._sign_s = event.wall_s
            self._status.at(event.step + 1, event.epoch)
            if self._writer.last_write_s is not None:
                self._deadline.save_took(self._writer.last_write_s)

    def epoch(self, event: EpochDone) -> None:
        if self._last_s:
            self._deadline.evaluation_took(event.wall_s - self._last_s)
        self._last_s = 0.0  # what comes before the next step is no step
