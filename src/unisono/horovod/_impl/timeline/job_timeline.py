"""The timeline of a job: rank 0 has its file, and all ranks learn whether it could be opened."""

from __future__ import annotations

from collections.abc import Sequence

from unisono.comm.base import Communicator
from unisono.errors import UsageError
from unisono.horovod._impl.job.job_settings import HorovodSettings
from unisono.horovod._impl.timeline.operation_timeline import DYNAMIC, OFF, Recording, Timeline


class JobTimeline:
    """The timeline of a job; off until it is opened."""

    def __init__(self) -> None:
        self.recording: Recording | None = None

    def open(self, world: Communicator, settings: HorovodSettings) -> None:
        """Opens the file on rank 0. `UsageError` on all ranks if it cannot be written. Collective over all ranks, blocking."""
        self.recording = Recording(settings, world.rank)
        refusal = self._open_file(self.recording, settings) if world.rank == 0 else ""
        if settings.timeline:  # that of rank 0, so all come here or none
            refusal = world.broadcast_object(refusal)
        if refusal:
            raise UsageError(refusal)

    def of_set(self, ranks: Sequence[int], engine: str, set_id: int) -> Timeline:
        """Returns the timeline for the channel of a process set; one that does nothing on ranks that write none. Local."""
        return OFF if self.recording is None else self.recording.timeline(ranks, engine, set_id)

    def start(self, path: str, mark_cycles: bool) -> None:
        """Continues the timeline in this file; `ValueError` if that is not allowed or not possible. Local."""
        assert self.recording is not None
        try:
            self.recording.start(path, mark_cycles)
        except OSError as error:
            raise ValueError(_cannot_write_text(path, error, "hvd.start_timeline")) from error

    def stop(self) -> None:
        """Ends the timeline. Local, blocking until it is written."""
        assert self.recording is not None
        self.recording.stop()

    def close(self) -> None:
        """Ends the timeline for good. Idempotent. Local, blocking until all is written."""
        if self.recording is not None:
            self.recording.stop()

    def _open_file(self, recording: Recording, settings: HorovodSettings) -> str:
        """Opens the file; returns why it cannot be written, or an empty text."""
        if settings.timeline and settings.timeline != DYNAMIC:
            try:
                recording.start(settings.timeline, settings.timeline_mark_cycles)
            except OSError as error:
                return _cannot_write_text(settings.timeline, error, "HOROVOD_TIMELINE")
        return ""


def _cannot_write_text(path: str, error: OSError, place: str) -> str:
    """Returns the message that the timeline cannot be written to this path."""
    return f"the timeline cannot be written to {path}: {error.strerror or error} ({place}); name a file that rank 0 can write"
