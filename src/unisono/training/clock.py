"""Measures how long steps, evaluations and saves take, for the deadline, and reports progress to status.json."""

from __future__ import annotations

from unisono.events import EpochDone, Observer, RunStarted, StepDone
from unisono.stopping.deadline import Deadline
from unisono.training.checkpointing.saving import Saving
from unisono.training.run_folder.run_status import Status

SIGN_OF_LIFE_S = 5.0
SLOW_DISK_BYTES_PER_S = 5e7
"""Assumed speed of a disk until it was measured."""


class Clock(Observer):
    """The observer on rank 0 that measures times. Cheap: most steps cost one comparison."""

    def __init__(self, deadline: Deadline, status: Status, saving: Saving) -> None:
        self._deadline = deadline
        self._status = status
        self._saving = saving
        self._is_measured = False
        self._last_s = 0.0
        self._sign_s = 0.0

    def started(self, event: RunStarted) -> None:  # noqa: ARG002
        """Forgets when the last step ended, as the run begins with none."""
        self._last_s = 0.0

    def step(self, event: StepDone) -> None:
        """Tells the deadline how long this step took, and now and then writes the progress to the run's status."""
        if self._last_s:
            self._deadline.step_took(event.wall_s - self._last_s)
        self._last_s = event.wall_s
        if event.wall_s - self._sign_s > SIGN_OF_LIFE_S:
            self._sign_s = event.wall_s
            self._status.update_progress(event.step + 1, event.epoch)
            self._tell_save_time()

    def epoch(self, event: EpochDone) -> None:
        """Tells the deadline how long the evaluation after this epoch took."""
        if self._last_s:
            self._deadline.evaluation_took(event.wall_s - self._last_s)
        self._last_s = 0.0  # what comes before the next step is no step

    def _tell_save_time(self) -> None:
        """Tells the deadline how long the last checkpoint took to write, or estimates it from its size before the first."""
        assert self._saving.writer is not None
        took_s = self._saving.writer.last_write_s
        if took_s is None:
            self._deadline.estimate_save(self._saving.num_bytes / SLOW_DISK_BYTES_PER_S)
            return
        self._deadline.save_took(took_s)
        if not self._is_measured and self._deadline.describe():
            self._saving.say(self._deadline.describe())
        self._is_measured = True
