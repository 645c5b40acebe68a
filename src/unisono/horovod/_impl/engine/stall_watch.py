"""Reports which ranks the others wait for when they wait long: the operations, the ranks that have not submitted them, and their
stacks."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Mapping, Sequence
from time import monotonic

from unisono.comm.control_plane.control import Control, Report
from unisono.errors import join_ranks
from unisono.horovod._impl.engine.operation_entry import Entry
from unisono.horovod._impl.engine.operation_request import JOIN, on_one_line
from unisono.horovod._impl.engine.process_set_channel import Channel
from unisono.horovod._impl.job.job_settings import HorovodSettings

REPORT_WAIT_S = 3.0
SHOWN_NAMES = 20


class StallWatch:
    """A thread that checks the channels at long intervals. It needs no answer of their threads, which may wait for ever."""

    def __init__(self, channels: Mapping[int, Channel], control: Control, settings: HorovodSettings) -> None:
        self._channels = channels
        self._control = control
        self._warn_s, self._end_s = settings.stall_warning_s, settings.stall_shutdown_s
        self._told: dict[Channel, set[Entry]] = {}
        """What was reported and is still in flight."""
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if control.size > 1 and (self._warn_s or self._end_s):
            self._thread = threading.Thread(target=self._run, name="unisono-horovod-stall", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Ends the thread. Local, blocking for a moment."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(2 * REPORT_WAIT_S)

    def _run(self) -> None:
        period_s = min(limit_s for limit_s in (self._warn_s, self._end_s) if limit_s) / 4
        while not self._over.wait(period_s):
            channels = tuple(self._channels.values())
            self._told = {channel: self._told.get(channel, set()) for channel in channels}
            for channel in channels:
                self._check(channel, self._told[channel], monotonic())

    def _check(self, channel: Channel, reported: set[Entry], now: float) -> None:
        waiting = channel.waiting()
        reported.intersection_update(waiting)
        if self._warn_s and not self._control.lost:
            late = [entry for entry in waiting if now - entry.began_at > self._warn_s and entry not in reported]
            if late:
                reported.update(self._report(channel, late, self._reports(channel)))
        bound = [entry for entry in waiting if entry.request.kind != JOIN]  # who has joined may wait as long as others have data
        if self._end_s and bound and now - bound[0].began_at > self._end_s:
            self._end(channel, bound[0])

    def _end(self, channel: Channel, entry: Entry) -> None:
        names_of = submissions_of(self._reports(channel), channel.title)
        if self._control.lost:  # somebody else has spoken, or is gone: the channel fails by itself
            return
        if not entry.done() and not self._is_anothers(entry, channel, names_of):
            gone = _ranks(absent_ranks(_shown(entry), channel.ranks, names_of))
            channel.fail(
                f"{entry.request.name} was not submitted by {gone} within {self._end_s:g} s (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)"
            )

    def _is_anothers(self, entry: Entry, channel: Channel, names_of: Mapping[int, Sequence[str]]) -> bool:
        """Whether a lower rank waits for the operation too: then that rank reports it, and this one only once that one has stopped
        waiting."""
        return any(_shown(entry) in names_of.get(rank, ()) for rank in channel.ranks if rank < self._control.rank)

    def _reports(self, channel: Channel) -> dict[int, Report]:
        return self._control.reports(channel.ranks, REPORT_WAIT_S)

    def _report(self, channel: Channel, late: Sequence[Entry], reports: Mapping[int, Report]) -> list[Entry]:
        """Prints a report and returns the operations in it."""
        names_of = submissions_of(reports, channel.title)
        if self._control.lost:  # ranks that fail forget what they had in flight, and would be accused of not having submitted it
            return []
        ours = [entry for entry in late if not entry.done() and not self._is_anothers(entry, channel, names_of)]
        gone = {entry: absent_ranks(_shown(entry), channel.ranks, names_of) for entry in ours}
        lines = [f"  {_shown(entry)}: missing on {_ranks(ranks)}{_excuse(entry)}" for entry, ranks in gone.items()]
        if lines:
            more = [f"  and {len(lines) - SHOWN_NAMES} more"] if len(lines) > SHOWN_NAMES else []
            text = [
                f"unisono: some ranks have waited for {self._warn_s:g} s for operations that other ranks have not submitted "
                "(HOROVOD_STALL_CHECK_TIME_SECONDS); all ranks must make the same calls:",
                *lines[:SHOWN_NAMES],
                *more,
                *(_where(rank, names_of, reports) for rank in sorted({rank for ranks in gone.values() for rank in ranks})),
            ]
            print("\n".join(text), file=sys.stderr, flush=True)
        return ours


def _shown(entry: Entry) -> str:
    return on_one_line(entry.request.name)


def _excuse(entry: Entry) -> str:
    return ", which is no fault as long as they have data" if entry.request.kind == JOIN else ""


def _ranks(ranks: Sequence[int]) -> str:
    return join_ranks(ranks) if ranks else "no rank"


def submissions_of(reports: Mapping[int, Report], title: str) -> dict[int, tuple[str, ...]]:
    """Returns what each rank that answered has in flight in a channel, by rank of the job. Pure."""
    return {
        rank: tuple(report.current_calls[title].call.split("\n"))
        for rank, report in reports.items()
        if title in report.current_calls
    }


def absent_ranks(name: str, ranks: Sequence[int], names_of: Mapping[int, Sequence[str]]) -> list[int]:
    """Returns the ranks that have neither submitted the operation nor joined, or do not answer. Pure."""
    return [rank for rank in ranks if not {name, JOIN} & set(names_of.get(rank, ()))]


def _where(rank: int, names_of: Mapping[int, Sequence[str]], reports: Mapping[int, Report]) -> str:
    report = reports.get(rank)
    if report is None:
        return f"--- rank {rank}: no answer within {REPORT_WAIT_S:g} s"
    others = [name for name in names_of.get(rank, ()) if name][:SHOWN_NAMES]
    return f"--- rank {rank} waits for {', '.join(others) if others else 'no operation'}:\n{users_part(report.stack)}"


def users_part(stacks: str) -> str:
    """Returns the stacks without our own threads, which only wait. Pure."""
    parts = re.split(r"\n(?=thread )", stacks)
    return "\n".join(part for part in parts if not part.startswith("thread unisono-"))
