"""The timeline and the tuner of a job: rank 0 has their files, and all ranks hear whether it could open them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from unisono.cluster.horovod_env import HorovodSettings
from unisono.comm.base import Communicator
from unisono.compat.horovod.autotune import UNTUNED, Follower, Leader, Tuning
from unisono.compat.horovod.autotune_log import Log
from unisono.compat.horovod.timeline import DYNAMIC, OFF, Recording, Timeline
from unisono.errors import UsageError


class Tracing:
    """Off until it is opened."""

    def __init__(self) -> None:
        self.recording: Recording | None = None
        self._tuning = UNTUNED

    def open(self, world: Communicator, settings: HorovodSettings) -> None:
        """Collective over all ranks, blocking. `UsageError` on all of them if rank 0 cannot write where it should."""
        self.recording = Recording(settings, world.rank)
        refusal = ""
        if world.rank == 0:
            refusal = self._open_timeline(settings) or self._open_tuning(settings, world.size)
        elif settings.autotune:
            self._tuning = Follower()
        if settings.timeline or settings.autotune:  # those of rank 0, so all come here or none
            refusal = world.broadcast_object(refusal)
        if refusal:
            raise UsageError(refusal)

    def timeline(self, ranks: Sequence[int], engine: str, set_id: int) -> Timeline:
        """Local: for the channel of a set."""
        return OFF if self.recording is None else self.recording.timeline(ranks, engine, set_id)

    def tuning(self, set_id: int) -> Tuning:
        """Local: only the set of all ranks is tuned."""
        return self._tuning if set_id == 0 else UNTUNED

    def start(self, path: str, mark_cycles: bool) -> None:
        """Local: the timeline goes on in this file; `ValueError` if it may not, or cannot."""
        assert self.recording is not None
        try:
            self.recording.start(path, mark_cycles)
        except OSError as error:
            raise ValueError(cannot_write("timeline", path, error, "hvd.start_timeline")) from error

    def stop(self) -> None:
        """Local, blocking until the timeline is written."""
        assert self.recording is not None
        self.recording.stop()

    def close(self) -> None:
        """Local, blocking until all is written. Idempotent."""
        if self.recording is not None:
            self.recording.stop()
        self._tuning.close()
        self._tuning = UNTUNED

    def _open_timeline(self, settings: HorovodSettings) -> str:
        assert self.recording is not None
        if settings.timeline and settings.timeline != DYNAMIC:
            try:
                self.recording.start(settings.timeline, settings.timeline_mark_cycles)
            except OSError as error:
                return cannot_write("timeline", settings.timeline, error, "HOROVOD_TIMELINE")
        return ""

    def _open_tuning(self, settings: HorovodSettings, size: int) -> str:
        if settings.autotune and size == 1:
            print("unisono: autotune has nothing to tune on one rank (HOROVOD_AUTOTUNE)", file=sys.stderr, flush=True)
        elif settings.autotune:
            try:
                self._tuning = Leader(settings, Log(settings.autotune_log, settings.cache_capacity > 0))
            except OSError as error:
                return cannot_write("log of the autotuning", settings.autotune_log, error, "HOROVOD_AUTOTUNE_LOG")
        return ""


def cannot_write(what: str, path: str, error: OSError, place: str) -> str:
    """Pure: in a sentence."""
    return f"the {what} cannot be written to {path}: {error.strerror or error} ({place}); name a file that rank 0 can write"
