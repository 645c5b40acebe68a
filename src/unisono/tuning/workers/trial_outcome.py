"""How a trial ends: the results of its parts, whether another wave follows, and whether a failed trial is begun again. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from unisono.tuning.study.study import COMPLETE, FAILED, PRUNED
from unisono.tuning.study.trial_plan import Part, Plan, final_values, mean_of, problem_of
from unisono.tuning.workers.blocks import RunningTrial
from unisono.tuning.workers.messages import Message
from unisono.tuning.workers.trial_worker import DISK, PEER

KILLED, LIMIT, STOPPED = "killed", "limit", "stopped"
"""Kinds of failures besides those that a worker reports."""
RETRIED = (STOPPED, KILLED, PEER, DISK)
NOT_COUNTED = (STOPPED, DISK)


class Outcome(NamedTuple):
    """The result of a trial."""

    state: str
    values: Sequence[float]
    reason: str


def part_result(plan: Plan, part: Part, message: Message) -> dict[str, Any]:
    """Returns the result of one part, from the last message of its first worker."""
    more = {name: message[name] for name in ("best_epoch", "user") if message.get(name) not in (None, {})}
    return {
        **part._asdict(),
        "values": final_values(plan.objectives, message),
        "epochs": message.get("epochs"),
        "took_s": message["took_s"],
        **more,
    }


def outcome_of(plan: Plan, running: RunningTrial, reports: Mapping[int, float]) -> Outcome | None:
    """Returns the outcome of a trial after a wave without a failure; None where another wave follows. `reports` are those of the
    trial so far."""
    is_pruned = any(message["reason"] == "pruned" for message in running.final_messages.values())
    is_last = running.wave == len(plan.waves)
    if is_pruned or (running.should_prune and not is_last):
        return Outcome(PRUNED, [reports[max(reports)]] if reports else (), "")
    values = [one["values"] for one in running.results]
    if problem := problem_of(plan.objectives, values):
        return Outcome(FAILED, (), problem)
    return Outcome(COMPLETE, mean_of(values), "") if is_last else None


def is_retried(kind: str, num_deaths: int, attempts: int) -> bool:
    """Whether a trial that failed in this way is begun again, after so many deaths of its processes."""
    return kind in NOT_COUNTED or (kind in RETRIED and num_deaths < attempts)
