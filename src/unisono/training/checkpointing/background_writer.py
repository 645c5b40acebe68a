"""Writes checkpoints in the background. A write that fails never ends the training; the reason is kept."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Thread
from time import monotonic
from typing import Any

from unisono.errors import UsageError
from unisono.training.checkpointing.checkpoint import Checkpoints, Snapshot


class BackgroundWriter:
    """Writes one checkpoint at a time, each in a thread of its own, for which the end of the program waits. One thread at a time
    calls this."""

    def __init__(self, checkpoints: Checkpoints, made_by: Mapping[str, Any]) -> None:
        self.failure: str | None = None
        """Why the last write failed; None if it did not."""
        self.num_failed = 0
        self._warning = ""
        """What a successful write could not do besides, e.g. remove old checkpoints."""
        self.last_write_s: float | None = None
        """How long the last write took, failed or not."""
        self._checkpoints = checkpoints
        self._made_by = made_by
        self._thread: Thread | None = None

    @property
    def busy(self) -> bool:
        """Local: whether a write is under way."""
        return self._thread is not None and self._thread.is_alive()

    def submit(self, snapshot: Snapshot) -> None:
        """Local, returns at once: begins to write. The caller checks `busy` first."""
        if self.busy:
            raise RuntimeError(f"a checkpoint is being written; that of step {snapshot.step} must wait until `busy` is False")
        self._thread = Thread(target=self._write, args=(snapshot,), name="unisono-checkpoint")
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Local, blocking: waits until no write is under way; False if that takes longer than `timeout_s`."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return not self.busy

    def pop_warning(self) -> str:
        """Local: returns the warning of the last successful write and forgets it; empty if there is none."""
        warning, self._warning = self._warning, ""
        return warning

    def close(self) -> None:
        """Local, blocking: waits until what was submitted is on the disk, or has failed. Idempotent."""
        self.wait()

    def _write(self, snapshot: Snapshot) -> None:
        """Writes the checkpoint, and notes how long it took; an error becomes `failure` and is not raised."""
        started = monotonic()
        try:
            self._checkpoints.write(snapshot, self._made_by)
            self._warning = self._checkpoints.not_removed
        except UsageError as error:
            self._record_failure(str(error))
        except Exception as error:  # noqa: BLE001  (whatever it is, a training of days continues and can be saved later)
            self._record_failure(f"cannot write the checkpoint of step {snapshot.step}: {type(error).__name__}: {error}")
        else:
            self.failure = None
        self.last_write_s = monotonic() - started

    def _record_failure(self, reason: str) -> None:
        self.failure = reason
        self.num_failed += 1
