"""Stragglers: members that are alive but do not come back, while the others have left the generation and could wait for ever.
Pure."""

from __future__ import annotations

from collections.abc import Sequence

from unisono.horovod._impl.elastic.elastic_worker import Worker

STALLED = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
"""Part of the reason that members report whose communication the stall check has ended."""
STALLED_S = 10.0
"""How long such a generation waits for the rest: the members that the check found missing were waited for already. Any generation
waits at least as long: members of a busy machine come one after the other."""


def straggler_limit_s(stalled: bool, timeout_s: float) -> float:
    """Returns the seconds from the first member that asks for a new rank to the end of those that have not asked. Pure."""
    return STALLED_S if stalled else max(STALLED_S, timeout_s)


def stuck_members(members: Sequence[Worker], limit_s: float, now: float) -> list[Worker]:
    """Returns the members that are to be killed. A member that has finished its training is not: it may have much to do, and the
    others do not need it. Pure."""
    asked = [one.ready_at for one in members if one.ready]
    if not asked or now - min(asked) < limit_s:
        return []
    return [one for one in members if not (one.ready or one.finished or one.given_up)]


def stuck_message(worker: Worker, limit_s: float, stalled: bool) -> str:
    """Returns the message that a member is stuck and is killed. Pure."""
    since = "the stall check ended the communication" if stalled else "the other workers left this generation (--elastic-timeout)"
    return f"{worker} is stuck and is killed: it did not come back within {limit_s:g} s after {since}"
