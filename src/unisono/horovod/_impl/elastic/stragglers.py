"""Members that live but do not come back: the others have left the generation and could wait for them for ever. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from unisono.horovod._impl.elastic.elastic_worker import Worker

STALLED = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
"""Stands in what members say whose communication the stall check has ended."""
STALLED_S = 10.0
"""How long such a generation waits for the rest: those whom the check found missing were waited for already. And the least that any
generation does: members of a busy machine come one after the other."""


def straggler_limit_s(stalled: bool, timeout_s: float) -> float:
    """From the first member that asks for a new place to the end of those that do not."""
    return STALLED_S if stalled else max(STALLED_S, timeout_s)


def stuck_members(members: Sequence[Worker], limit_s: float, now: float) -> list[Worker]:
    """Who is to be given up. Who has come to the end of its training is not: it may have much to do, and others do not need it."""
    asked = [one.ready_at for one in members if one.ready]
    if not asked or now - min(asked) < limit_s:
        return []
    return [one for one in members if not (one.ready or one.finished or one.given_up)]


def why_killed(worker: Worker, limit_s: float, stalled: bool) -> str:
    """For messages."""
    since = "the stall check ended the communication" if stalled else "others left this generation (--elastic-timeout)"
    return f"{worker} is stuck: it lives, but has not come back for {limit_s:g} s since {since}; it is killed"
