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
            self._thread = threading.Thread(target=self._check_at_intervals, name="unisono-horovod-stall", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Ends the thread. Local, blocking for a moment."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(2 * REPORT_WAIT_S)

    def _check_at_intervals(self) -> None:
        """The thread: checks all channels four times in each limit, until it is closed."""
        period_s = min(limit_s for limit_s in (self._warn_s, self._end_s) if limit_s) / 4
        while not self._over.wait(period_s):
            channels = tuple(self._channels.values())
            self._told = {channel: self._told.get(channel, set()) for channel in channels}
            for channel in channels:
                self._check_channel(channel, self._told[channel], monotonic())

    def _check_channel(self, channel: Channel, reported: set[Entry], now: float) -> None:
        """Reports the operations of a channel that have waited longer than the warning limit, once each, and makes the channel fail
        after the limit for the end."""
        waiting = channel.waiting()
        reported.intersection_update(waiting)
        if self._warn_s and not self._control.lost:
            late = [entry for entry in waiting if now - entry.began_at > self._warn_s and entry not in reported]
            if late:
                reported.update(self._print_report(channel, late, self._current_reports(channel)))
        bound = [entry for entry in waiting if entry.request.kind != JOIN]  # who has joined may wait as long as others have data
        if self._end_s and bound and now - bound[0].began_at > self._end_s:
            self._fail_channel(channel, bound[0])

    def _fail_channel(self, channel: Channel, entry: Entry) -> None:
        """Makes a channel fail as this operation has waited too long, unless it is done, a lower rank reports it, or a rank was
        lost."""
        names_of = submissions_of(self._current_reports(channel), channel.title)
        if self._control.lost:  # somebody else has spoken, or is gone: the channel fails by itself
            return
        if not entry.done() and not self._is_reported_by_another(entry, channel, names_of):
            gone = _ranks_text(absent_ranks(_shown_name(entry), channel.ranks, names_of))
            channel.fail(
                f"{entry.request.name} was not submitted by {gone} within {self._end_s:g} s (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)"
            )

    def _is_reported_by_another(self, entry: Entry, channel: Channel, names_of: Mapping[int, Sequence[str]]) -> bool:
        """Whether a lower rank waits for the operation too: then that rank reports it, and this one only once that one has stopped
        waiting."""
        return any(_shown_name(entry) in names_of.get(rank, ()) for rank in channel.ranks if rank < self._control.rank)

    def _current_reports(self, channel: Channel) -> dict[int, Report]:
        """Asks the ranks of a channel what they do and returns the answers, by rank; ranks that do not answer are missing. Blocking
        for a moment."""
        return self._control.reports(channel.ranks, REPORT_WAIT_S)

    def _print_report(self, channel: Channel, late: Sequence[Entry], reports: Mapping[int, Report]) -> list[Entry]:
        """Prints which operations wait and for which ranks; returns the operations in the report."""
        names_of = submissions_of(reports, channel.title)
        if self._control.lost:  # ranks that fail forget what they had in flight, and would be accused of not having submitted it
            return []
        ours = [entry for entry in late if not entry.done() and not self._is_reported_by_another(entry, channel, names_of)]
        gone = {entry: absent_ranks(_shown_name(entry), channel.ranks, names_of) for entry in ours}
        lines = [f"  {_shown_name(entry)}: missing on {_ranks_text(ranks)}{_note_on_join(entry)}" for entry, ranks in gone.items()]
        if lines:
            more = [f"  and {len(lines) - SHOWN_NAMES} more"] if len(lines) > SHOWN_NAMES else []
            text = [
                f"unisono: some ranks have waited for {self._warn_s:g} s for operations that other ranks have not submitted "
                "(HOROVOD_STALL_CHECK_TIME_SECONDS); all ranks must make the same calls:",
                *lines[:SHOWN_NAMES],
                *more,
                *(_position_text(rank, names_of, reports) for rank in sorted({rank for ranks in gone.values() for rank in ranks})),
            ]
            print("\n".join(text), file=sys.stderr, flush=True)
        return ours


def _shown_name(entry: Entry) -> str:
    """Returns the name of an operation on one line."""
    return on_one_line(entry.request.name)


def _note_on_join(entry: Entry) -> str:
    """Returns a remark for reports on a join, that to wait for it is no fault while others have data; empty for other
    operations."""
    return ", which is normal as long as they have data" if entry.request.kind == JOIN else ""


def _ranks_text(ranks: Sequence[int]) -> str:
    """Returns the ranks as text; "no rank" if there are none."""
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


def _position_text(rank: int, names_of: Mapping[int, Sequence[str]], reports: Mapping[int, Report]) -> str:
    """Returns what a rank waits for and its stacks, as lines of a report; or that it did not answer."""
    report = reports.get(rank)
    if report is None:
        return f"--- rank {rank}: no answer within {REPORT_WAIT_S:g} s"
    others = [name for name in names_of.get(rank, ()) if name][:SHOWN_NAMES]
    return f"--- rank {rank} waits for {', '.join(others) if others else 'no operation'}:\n{users_part(report.stack)}"


def users_part(stacks: str) -> str:
    """Returns the stacks without our own threads, which only wait. Pure."""
    parts = re.split(r"\n(?=thread )", stacks)
    return "\n".join(part for part in parts if not part.startswith("thread unisono-"))
