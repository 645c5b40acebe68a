"""What travels between workers and server: the kinds of calls and replies, and the numbers beside the vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from unisono.comm.exchange.base import Numbers

HELLO, PUSH, STATE, READY = 1, 2, 3, 4
"""Calls: a worker joins; it has done its lease; it sends its own state, which it was asked for; it has taken the state that it had
in an earlier attempt."""
GO, SEND_STATE, END, TAKE_STATE = 1, 2, 3, 4
"""Replies: a new lease; the server saves and wants the worker's state; there is nothing left to do; what the worker sent before a
stop."""

MOST_UNITS = 256
"""Most units of one lease. A worker also calls, if only to report, so often that an epoch has a call of each."""


class Report(NamedTuple):
    """Sums and counts of a worker's finished lease, sent to the server with its update."""

    wanted: int
    """Units until its next call."""
    num_steps: int
    """Units it has done since it joined."""
    num_stops: int
    loss_sum: float
    weight: float
    num_samples: int
    num_not_finite: int
    wait_s: float
    """Seconds that it waited for the server since the last report."""
    work_s: float

    def numbers(self, metric_sums: Numbers, of_rule: Sequence[float]) -> Numbers:
        """Pure: the report as the numbers of a call, followed by the sums of metrics and the numbers of the rule."""
        return np.concatenate([np.array(self, dtype=np.float64), metric_sums, np.asarray(of_rule, dtype=np.float64)])


HEAD = len(Report._fields)


def read_report(tail: Numbers, num_sums: int) -> tuple[Report, Numbers, Numbers]:
    """Pure: the report, the sums of metrics, and the numbers of the rule, from the numbers of a call."""
    wanted, steps, stops, loss, weight, samples, not_finite, wait_s, work_s = tail[:HEAD].tolist()
    report = Report(int(wanted), int(steps), int(stops), loss, weight, int(samples), int(not_finite), wait_s, work_s)
    return report, tail[HEAD : HEAD + num_sums].copy(), tail[HEAD + num_sums :].copy()


class WorkAssignment(NamedTuple):
    """The batches that a worker computes next, as the server's reply GO names them."""

    step: int
    """The server's counter when the units were assigned; the learning rate is a function of it."""
    units: tuple[int, ...]

    def numbers(self) -> Numbers:
        """Pure: the assignment as the numbers of a reply."""
        return np.array([self.step, *self.units], dtype=np.float64)


def read_assignment(tail: Numbers) -> WorkAssignment:
    """Pure: the assignment from the numbers of a reply GO."""
    step, *units = (int(number) for number in tail)
    return WorkAssignment(step, tuple(units))


def most_numbers(num_sums: int, num_tensors: int) -> int:
    """Pure: the most numbers that a call or a reply carries beside its vector."""
    return max(HEAD + num_sums + 2 + num_tensors, 1 + MOST_UNITS)
