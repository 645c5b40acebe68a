"""The cost of a study and the use of its blocks: every attempt as a span of time on a block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unisono.tuning.report.findings import is_number
from unisono.tuning.study.store import DEAD_AFTER_S
from unisono.tuning.study.study import COMPLETE, FAILED, GIVEN_BACK, PRUNED, RUNNING, Attempt, Study, Trial

DUPLICATE = "done twice"
"""An attempt that ended after another whose result counts."""
LOST = "lost"
"""An attempt whose job died, or went without a word about it."""
ENDS = (COMPLETE, PRUNED, FAILED, GIVEN_BACK, LOST, DUPLICATE, RUNNING)


@dataclass(frozen=True)
class Span:
    """One attempt of a trial, as a span of time on a block."""

    trial: int
    attempt: int
    block_id: str
    """JOB/BLOCK; the job alone where the record of the beginning was lost."""
    began_s: float | None
    """None where that record was lost."""
    took_s: float
    end: str
    """One of ENDS."""
    block_size: int

    @property
    def job(self) -> str:
        """The name of the job that ran the attempt."""
        return _job(self.block_id)

    @property
    def worker_s(self) -> float:
        """Seconds times the workers of the block."""
        return self.took_s * self.block_size


@dataclass(frozen=True)
class Block:
    """One row of the Gantt chart: a block, from when its job started until it left or gave its last sign of life."""

    block_id: str
    began_s: float
    ended_s: float
    spans: Sequence[Span]

    @property
    def busy_share(self) -> float:
        """Share of the block's time in which it ran a trial."""
        length = self.ended_s - self.began_s
        return min(1.0, sum(span.took_s for span in self.spans) / length) if length > 0 else 0.0


def spans_of(study: Study, about: Mapping[str, Any], now_s: float) -> list[Span]:
    """Returns the spans of all attempts, also of those without a result. A running attempt lasts until now; one whose job died
    lasts until the last sign of life of the job, or until another job began the trial again. Pure."""
    return [span for number in sorted(study.trials) for span in _spans_of_trial(study, study.trials[number], about, now_s)]


def _spans_of_trial(study: Study, trial: Trial, about: Mapping[str, Any], now_s: float) -> Iterator[Span]:
    """Yields a span for each attempt at a trial, in order, with or without a result."""
    first = {result.attempt: result for result in sorted(trial.results.values(), reverse=True)}
    for number in sorted(trial.attempts.keys() | first.keys()):
        attempt, result = trial.attempts.get(number), first.get(number)
        began_s = None if attempt is None else attempt.began_s
        block_id = attempt.block_id if attempt is not None else first[number].writer
        if result is not None:
            took_s, end = result.took_s, result.state if result == trial.result else DUPLICATE
        else:
            took_s, end = _without_result(study, trial, trial.attempts[number], now_s)
        job = study.jobs.get(_job(block_id))
        block_size = (None if job is None else job.about.get("block_size")) or about.get("workers") or 1
        yield Span(trial.number, number, block_id, began_s, max(0.0, float(took_s)), end, int(block_size))


def _without_result(study: Study, trial: Trial, attempt: Attempt, now_s: float) -> tuple[float, str]:
    """Returns seconds and end of an attempt that has no result: given back, running, or lost."""
    if attempt.number in trial.given_back:
        return trial.given_back[attempt.number] - attempt.began_s, GIVEN_BACK
    job = _job(attempt.block_id)
    later = [other.began_s for other in trial.attempts.values() if other.number > attempt.number]
    seen_s = study.left_at.get(job, study.last_seen.get(job, attempt.began_s))
    if not later and job not in study.left_at and now_s - seen_s < DEAD_AFTER_S:
        return now_s - attempt.began_s, RUNNING
    return min(seen_s, *later, now_s) - attempt.began_s, LOST


def blocks_of(study: Study, spans: Sequence[Span]) -> list[Block]:
    """Returns every block that had a trial, and the blocks of known jobs that had none, ordered by the start of their jobs.
    Pure."""
    rows: dict[str, list[Span]] = {}
    for name, job in study.jobs.items():
        if is_number(job.about.get("at_s")):
            rows.update({f"{name}/{block}": [] for block in range(int(job.about.get("num_blocks") or 0))})
    for span in spans:
        if span.began_s is not None:
            rows.setdefault(span.block_id, []).append(span)
    times = {job: _times(study, job, spans) for job in {_job(block_id) for block_id in rows}}
    order = sorted(rows, key=lambda block_id: (times[_job(block_id)][0], _job(block_id), len(block_id), block_id))
    return [
        Block(block_id, *times[_job(block_id)], sorted(rows[block_id], key=lambda span: span.began_s or 0.0)) for block_id in order
    ]


def wall_s(blocks: Sequence[Block]) -> tuple[float, float]:
    """Returns the seconds from the first beginning to the last end, and for how many of them a job was there. Pure."""
    stretches = stretches_of(blocks)
    return stretches[-1][1] - stretches[0][0] if stretches else 0.0, sum(end - begin for begin, end in stretches)


def stretches_of(blocks: Sequence[Block], longest_gap_s: float = 0.0) -> list[tuple[float, float]]:
    """Returns the stretches of time in which a job was there, in their order; a gap of at most `longest_gap_s` is bridged. Pure."""
    found = list[tuple[float, float]]()
    for begin, end in sorted((block.began_s, block.ended_s) for block in blocks):
        if found and begin - found[-1][1] <= longest_gap_s:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def _job(block_id: str) -> str:
    """Returns the job in the id of a block ('job/number')."""
    return block_id.rpartition("/")[0] or block_id


def _times(study: Study, job: str, spans: Sequence[Span]) -> tuple[float, float]:
    """When a job came and went. A job that has not said that it left may have died: then its last sign of life or its last attempt
    counts as its end."""
    ends = [(span.began_s, span.began_s + span.took_s) for span in spans if span.job == job and span.began_s is not None]
    came = study.jobs[job].about.get("at_s") if job in study.jobs else None
    began = [float(came)] if came is not None and is_number(came) else []
    first = min([*began, *(begin for begin, _ in ends)])
    last = max([*(end for _, end in ends), first])
    return first, max(study.left_at.get(job, study.last_seen.get(job, last)), last)
