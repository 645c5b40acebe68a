"""When each tensor was negotiated, queued, copied and sent, as rank 0 sees it, for `HOROVOD_TIMELINE`.

A tensor has a line of its own. On it stand NEGOTIATE_<OP> from its submission to the agreement, with a point for each rank that
told the others of it, and <OP> from the agreement to the end, with what was done inside it. A tensor that the cache knows is
not told again: then it is only known when all were ready, and there is one point, `all`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from typing import Protocol

from unisono.horovod._impl.engine.agreed_operation import Agreement
from unisono.horovod._impl.engine.operation_entry import Entry
from unisono.horovod._impl.engine.operation_request import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BROADCAST,
    REDUCESCATTER,
    Part,
    Request,
)
from unisono.horovod._impl.job.job_settings import HorovodSettings
from unisono.horovod._impl.timeline.trace_file import BEGIN, END, INSTANT, MARK, TraceFile

DYNAMIC = "DYNAMIC"
"""Instead of a path: the program starts and stops it."""
QUEUE, MEMCPY_IN, MEMCPY_OUT = "QUEUE", "MEMCPY_IN_FUSION_BUFFER", "MEMCPY_OUT_FUSION_BUFFER"
CYCLE_START = "CYCLE_START"
_SENT: Mapping[str, str] = {
    ALLREDUCE: "ALLREDUCE",
    ALLGATHER: "ALLGATHER",
    BROADCAST: "BCAST",
    ALLTOALL: "ALLTOALL",
    REDUCESCATTER: "REDUCESCATTER",
}


class Timeline(Protocol):
    """What a channel reports of its operations. `NoTimeline` ignores it, `Recorder` writes it to the file."""

    def on_round(self) -> None:
        """Called when this rank begins a round, or begins to wait until the others do."""

    def on_submit(self, entries: Iterable[Entry]) -> None:
        """Called when this rank will send these operations in the next round."""

    def on_requests(self, everybody: Sequence[Iterable[Request]]) -> None:
        """Called when each rank of the set has sent these requests, given by rank."""

    def on_agreement(self, agreements: Iterable[Agreement]) -> None:
        """Called when all ranks have agreed to carry these operations out, or to refuse them."""

    def on_start(self, bucket: Sequence[Agreement]) -> None:
        """Called when the operations of a bucket begin to be carried out."""

    def on_copy_in(self) -> None:
        """Called when the bucket's tensors begin to be copied into one vector."""

    def on_send(self, kind: str) -> None:
        """Called when the communicator begins to work on the bucket."""

    def on_copy_out(self) -> None:
        """Called when the bucket's results begin to be copied to their tensors."""

    def on_done(self) -> None:
        """Called when the bucket's operations are done."""


class NoTimeline(Timeline):
    """The timeline of a channel where none is written: its methods do nothing."""

    def on_round(self) -> None:
        pass

    def on_submit(self, entries: Iterable[Entry]) -> None:
        pass

    def on_requests(self, everybody: Sequence[Iterable[Request]]) -> None:
        pass

    def on_agreement(self, agreements: Iterable[Agreement]) -> None:
        pass

    def on_start(self, bucket: Sequence[Agreement]) -> None:
        pass

    def on_copy_in(self) -> None:
        pass

    def on_send(self, kind: str) -> None:
        pass

    def on_copy_out(self) -> None:
        pass

    def on_done(self) -> None:
        pass


OFF = NoTimeline()


class Recording:
    """The trace file of rank 0, or none at the moment. Any thread may start and stop it; other ranks never have a file."""

    def __init__(self, settings: HorovodSettings, rank: int) -> None:
        self.file: TraceFile | None = None
        self.marks_rounds = settings.timeline_mark_cycles
        self._allowed = bool(settings.timeline)
        self._writes = rank == 0

    def start(self, path: str, mark_cycles: bool = False) -> None:
        """Records into this file from now on; an open file is closed. `OSError` if it cannot be written, `ValueError` if the
        environment did not allow it at `init`. Local, blocking for a moment."""
        if not self._allowed:
            raise ValueError(
                "start_timeline needs HOROVOD_TIMELINE=DYNAMIC in the environment at hvd.init(); set it before the program starts"
            )
        if not self._writes:
            return
        if self.file is None or self.file.is_over or self.file.path != path:
            self.stop()
            self.file = TraceFile(path)
        self.marks_rounds = mark_cycles

    def stop(self) -> None:
        """Closes the file. Idempotent. Local, blocking until all is written."""
        file, self.file = self.file, None
        if file is not None:
            file.close()

    def timeline(self, ranks: Sequence[int], engine: str, set_id: int) -> Timeline:
        """Returns the timeline for the channel of a set; `OFF` where there will never be a file, which costs nothing. Local."""
        return Recorder(self, ranks, engine, set_id) if self._allowed and self._writes else OFF


class Recorder(Timeline):
    """Records the events of one channel, which calls it from one thread at a time. Events that began before the file have no end in
    it."""

    def __init__(self, recording: Recording, ranks: Sequence[int], engine: str, set_id: int) -> None:
        self._recording = recording
        self._ranks = tuple(ranks)
        self._engine = engine.upper()
        self._suffix = f" (process set {set_id})" if set_id else ""
        self._file: TraceFile | None = None
        self._negotiating: set[str] = set()
        self._told: set[str] = set()
        """Those of which it is known which ranks were ready."""
        self._running: dict[str, Request] = {}
        self._bucket: list[str] = []
        self._activity = ""

    def _current_file(self) -> TraceFile | None:
        """Returns the file to record into, None while there is none; forgets what belongs to an earlier file."""
        file = self._recording.file
        if file is not self._file:
            self._file = file
            self._negotiating.clear()
            self._told.clear()
            self._running.clear()
            self._bucket = []
        return file

    def _title_of(self, name: str) -> str:
        """Returns the name of an operation as the timeline shows it, with its process set."""
        return name + self._suffix

    def on_round(self) -> None:
        file = self._current_file()
        if file is not None and self._recording.marks_rounds:
            file.put(MARK, (), CYCLE_START, monotonic())

    def on_submit(self, entries: Iterable[Entry]) -> None:
        file = self._current_file()
        if file is not None:
            for entry in entries:
                self._begin_negotiation(file, entry.request, entry.began_at)

    def _begin_negotiation(self, file: TraceFile, request: Request, at: float) -> str:
        """Writes the beginning of the negotiation of an operation, unless it was written; returns the operation's title."""
        title = self._title_of(request.name)
        if title not in self._negotiating:
            self._negotiating.add(title)
            file.put(BEGIN, (title,), f"NEGOTIATE_{request.kind.upper()}", at)
        return title

    def on_requests(self, everybody: Sequence[Iterable[Request]]) -> None:
        file = self._current_file()
        if file is None:
            return
        now = monotonic()
        for rank, requests in zip(self._ranks, everybody, strict=False):
            titles = [self._begin_negotiation(file, request, now) for request in requests]
            if titles:
                self._told.update(titles)
                file.put(INSTANT, titles, str(rank), now)

    def on_agreement(self, agreements: Iterable[Agreement]) -> None:
        file = self._current_file()
        if file is None:
            return
        now = monotonic()
        known: list[str] = []
        errors: dict[str, str] = {}
        by_kind: dict[str, list[str]] = {}
        for agreement in agreements:
            title = self._begin_negotiation(file, agreement.first, now)
            if title not in self._told:
                known.append(title)
            if agreement.error is not None:
                errors[title] = agreement.error
            else:
                self._running[title] = agreement.first
                by_kind.setdefault(agreement.first.kind, []).append(title)
            self._negotiating.discard(title)
            self._told.discard(title)
        if known:
            file.put(INSTANT, known, "all", now)
        for title, error in errors.items():
            file.put(END, (title,), "", now, {"error": error})
        for kind, titles in by_kind.items():  # an event for many tensors at once: that is what makes it cheap
            file.put(END, titles, "", now)
            file.put(BEGIN, titles, kind.upper(), now)
            file.put(BEGIN, titles, QUEUE, now)

    def on_start(self, bucket: Sequence[Agreement]) -> None:
        if self._current_file() is not None:
            titles = [self._title_of(agreement.name) for agreement in bucket]
            self._bucket = [title for title in titles if title in self._running]
            self._activity = QUEUE

    def on_copy_in(self) -> None:
        self._next(MEMCPY_IN)

    def on_send(self, kind: str) -> None:
        self._next(f"{self._engine}_{_SENT[kind]}")

    def on_copy_out(self) -> None:
        self._next(MEMCPY_OUT)

    def _next(self, activity: str) -> None:
        """Writes the end of the bucket's current activity and the beginning of this one, if it is not empty."""
        file = self._current_file()
        if file is None or not self._bucket:
            return
        now = monotonic()
        if self._activity:
            file.put(END, self._bucket, "", now)
        self._activity = activity
        if activity:
            file.put(BEGIN, self._bucket, activity, now)

    def on_done(self) -> None:
        self._next("")
        file = self._file
        if file is not None:
            now = monotonic()
            by_parts: dict[tuple[Part, ...], list[str]] = {}
            for title in self._bucket:
                by_parts.setdefault(self._running.pop(title).parts, []).append(title)
            for parts, titles in by_parts.items():
                file.put(END, titles, "", now, _type_and_shape(parts))
            self._bucket = []


def _type_and_shape(parts: Sequence[Part]) -> dict[str, str]:
    """Returns type and shape of an operation's tensors as the timeline shows them; of a group those of all its tensors."""
    if not parts:
        return {}
    dtypes = dict.fromkeys(str(dtype).removeprefix("torch.") for dtype, _ in parts)
    return {"dtype": ", ".join(dtypes), "shape": ", ".join(str(list(shape)) for _, shape in parts)}
