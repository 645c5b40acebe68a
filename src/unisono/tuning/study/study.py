"""The state of a study: its trials, built from the records of its journal.

Records of different writers have no common order, so the state is the same in whatever order, and however often, they are applied.
A trial may be begun several times (attempts), as workers die; the first attempt that ended counts, and a second result is kept and
ignored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unisono.files.journal import Record

PROPOSED, BEGAN, REPORTED, GIVEN_BACK, ENDED = "asked", "began", "reported", "given back", "ended"
JOB, ALIVE, LEFT = "job", "alive", "left"
TRIAL_EVENTS = (PROPOSED, BEGAN, REPORTED, GIVEN_BACK, ENDED)
COMPLETE, PRUNED, FAILED = "complete", "pruned", "failed"
"""How an attempt ends."""
WAITING, RUNNING = "waiting", "running"


@dataclass(frozen=True)
class Attempt:
    """One attempt at a trial by one block."""

    number: int
    block_id: str
    """JOB/BLOCK."""
    began_s: float
    """Since 1970, by the clock of its machine."""


@dataclass(frozen=True, order=True)
class Result:
    """How an attempt ended. Results of the same trial compare by preference: the smallest counts."""

    attempt: int
    writer: str
    record_number: int
    """Of its record."""
    state: str = field(compare=False)
    values: Sequence[float] = field(compare=False)
    """One for each objective; empty where it failed."""
    reason: str = field(compare=False)
    took_s: float = field(compare=False)
    details: Mapping[str, Any] = field(compare=False)
    """E.g. `parts`, what every training of the trial gave: {"fold", "repeat", "values", "epochs", "best_epoch",
    "took_s"}."""


@dataclass(frozen=True)
class Job:
    """A set of processes that work on the study together."""

    name: str
    about: Mapping[str, Any]
    """`host`, `pid`, `num_ranks`, `num_blocks`, `block_size`, `command`, `at_s`."""


@dataclass
class Trial:
    """One trial of a study: its point, its attempts, its reports and its results."""

    number: int
    proposed: Mapping[str, Any] | None = None
    """What was proposed; None where the record that says it was lost."""
    ranges: Mapping[str, str] = field(default_factory=dict)
    """The ranges from which an objective chose its values, in Optuna's JSON form."""
    attempts: dict[int, Attempt] = field(default_factory=dict)
    reports: dict[int, float] = field(default_factory=dict)
    """Step -> the objective so far."""
    rungs: dict[int, int] = field(default_factory=dict)
    """Step -> how many rungs of successive halving the trial had passed after its report; empty for other pruning."""
    report_records: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Step -> the record that reported it."""
    given_back: dict[int, float] = field(default_factory=dict)
    """Attempt -> when, since 1970."""
    deaths: set[int] = field(default_factory=set)
    """Attempts that ended as a process of theirs died."""
    results: dict[tuple[str, int], Result] = field(default_factory=dict)

    @property
    def values(self) -> Mapping[str, Any] | None:
        """The point of the trial; where an objective chooses as it runs, the values that it asked for."""
        result = self.result
        return self.proposed if result is None else result.details.get("asked", self.proposed)

    @property
    def distributions(self) -> Mapping[str, str]:
        """The ranges of `values`, where an objective chose them."""
        result = self.result
        found: Mapping[str, str] = self.ranges if result is None else result.details.get("distributions", self.ranges)
        return found

    @property
    def result(self) -> Result | None:
        """The result that counts; None while there is none."""
        return min(self.results.values(), default=None)

    @property
    def state(self) -> str:
        """The state of its result; without one RUNNING or WAITING."""
        if (result := self.result) is not None:
            return result.state
        return RUNNING if self.attempts.keys() - self.given_back.keys() else WAITING

    @property
    def next_attempt(self) -> int:
        """The number that a new attempt gets."""
        return max((*self.attempts, *self.given_back), default=-1) + 1


@dataclass
class Study:
    """All trials and jobs of a study. Local; `apply` may see a record twice, and records in any order."""

    trials: dict[int, Trial] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    left_at: dict[str, float] = field(default_factory=dict)
    """Job -> when it left, since 1970; missing where it is at work, or died."""
    last_seen: dict[str, float] = field(default_factory=dict)
    """Job -> its last sign of life, since 1970, by the clock of its machine."""

    def apply(self, record: Record) -> None:
        """Applies one record of the journal; records with unknown events have no effect. Local."""
        event, value = record.value.get("event"), record.value
        if event == JOB:
            self.jobs[value["job"]] = Job(value["job"], value)
        elif event == ALIVE and "machine" in value:  # also says who, should the first record be lost
            self.jobs.setdefault(value["job"], Job(value["job"], value))
        elif event == LEFT:
            self.left_at[value["job"]] = value["at_s"]
        if event in (JOB, ALIVE, LEFT, BEGAN) and "at_s" in value:
            job = value["job"] if "job" in value else value["who"].partition("/")[0]
            self.last_seen[job] = max(value["at_s"], self.last_seen.get(job, -math.inf))
        if event not in TRIAL_EVENTS:
            return
        trial = self.trials.setdefault(value["trial"], Trial(value["trial"]))
        if event == PROPOSED:
            trial.proposed, trial.ranges = dict(value["values"]), dict(value.get("distributions", {}))
        elif event == BEGAN:
            trial.attempts[value["attempt"]] = Attempt(value["attempt"], value["who"], value["at_s"])
        elif event == REPORTED:
            before = trial.report_records.get(value["step"])
            if before is None or (record.writer, record.number) <= before:  # of several attempts always the same one
                trial.report_records[value["step"]] = (record.writer, record.number)
                trial.reports[value["step"]] = value["value"]
                if "rungs" in value:
                    trial.rungs[value["step"]] = value["rungs"]
        elif event == GIVEN_BACK:
            trial.given_back[value["attempt"]] = value["at_s"]
            if value.get("died"):
                trial.deaths.add(value["attempt"])
        else:
            trial.results[record.writer, record.number] = Result(
                value["attempt"],
                record.writer,
                record.number,
                value["state"],
                tuple(value["values"]),
                value.get("reason", ""),
                value["took_s"],
                value.get("details", {}),
            )

    def num_wanted(self, first: int) -> int:
        """Returns the number of trials that the study is to have: the most that any job asked for, at least `first`, its original
        number. Pure."""
        return max([first, *(int(job.about.get("trials") or 0) for job in self.jobs.values())])

    def in_state(self, *states: str) -> list[Trial]:
        """Returns the trials in any of these states, in the order of their numbers. Pure."""
        return [self.trials[number] for number in sorted(self.trials) if self.trials[number].state in states]

    def best(self, higher_is_better: bool) -> Trial | None:
        """Returns the complete trial with the best first value, of equals the earliest; None where there is none. Pure."""
        complete = [trial for trial in self.in_state(COMPLETE) if trial.result is not None and _is_number(trial.result.values)]
        sign = -1 if higher_is_better else 1
        return min(complete, key=lambda trial: (sign * trial.result.values[0], trial.number), default=None)  # type: ignore[union-attr]


def _is_number(values: Sequence[float]) -> bool:
    """Whether the first value is a finite number."""
    return bool(values) and math.isfinite(values[0])


def proposal_record(trial: int, values: Mapping[str, Any], distributions: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns the record of a proposal, with the ranges of its values where no space has them. Pure."""
    ranges = {} if distributions is None else {"distributions": dict(distributions)}
    return {"event": PROPOSED, "trial": trial, "values": dict(values), **ranges}


def begin_record(trial: int, attempt: int, block_id: str, at_s: float) -> dict[str, Any]:
    """Returns the record that a block begins an attempt at a trial. Pure."""
    return {"event": BEGAN, "trial": trial, "attempt": attempt, "who": block_id, "at_s": at_s}


def report_record(trial: int, step: int, value: float, num_rungs: int | None = None) -> dict[str, Any]:
    """Returns the record of the objective at a step of a trial, by which others may be pruned, and of the rungs of successive
    halving that it had then passed. Pure."""
    rungs = {} if num_rungs is None else {"rungs": num_rungs}
    return {"event": REPORTED, "trial": trial, "step": step, "value": value, **rungs}


def give_back_record(trial: int, attempt: int, reason: str, at_s: float, died: bool = False) -> dict[str, Any]:
    """Returns the record of an attempt that was given up, as it was stopped or as one of its processes died. Pure."""
    return {"event": GIVEN_BACK, "trial": trial, "attempt": attempt, "reason": reason, "at_s": at_s, "died": died}


def end_record(
    trial: int,
    attempt: int,
    state: str,
    values: Sequence[float],
    took_s: float,
    reason: str = "",
    details: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the record of a result. Pure."""
    return {
        "event": ENDED,
        "trial": trial,
        "attempt": attempt,
        "state": state,
        "values": list(values),
        "took_s": took_s,
        "reason": reason,
        "details": dict(details or {}),
    }
