"""Rounds of workers that learn by themselves: each takes some steps alone, then they agree, and so on.

A worker is one process, or a group of them (`--group G`) that does exact all-reduce within itself: its steps are those of
`AllReduce` on the communicator of the group. A round ends after `period` steps and at the end of every epoch, so that all replicas
are equal whenever the model is looked at. One grouped operation then moves what the rule of the algorithm wants to be summed, the
changes of the running statistics, and the sums of the round's steps; so votes to stop or to save act at the end of a round.
Counters are made those of rank 0 after an epoch.

A rule says what is summed (`outgoing`), what becomes of the sum (`arrive`), and the new weights (`take`). Between the first two the
exchange may be under way while the next `overlap` steps are computed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, ClassVar

from torch import Tensor

from unisono.algorithms.allreduce import AllReduce
from unisono.algorithms.allreduce import Options as AllReduceOptions
from unisono.algorithms.base import Algorithm, Roles, StepInfo
from unisono.algorithms.rounds.statistics import RunningStatistics
from unisono.algorithms.rounds.tails import Rows, Tails
from unisono.comm.base import Communicator, Work
from unisono.comm.replicate import replicate
from unisono.comm.single import alone
from unisono.errors import UsageError
from unisono.model.tail import StepStats
from unisono.model.torch import TorchAdapter


@dataclass
class LocalRounds(Algorithm):
    """See the top of this file. An algorithm adds its rule."""

    adapter: TorchAdapter
    has_own_replicas: ClassVar[bool] = True
    takes_group: ClassVar[bool] = True

    # ---- the rule --------------------------------------------------------------------------------------------------

    @abstractmethod
    def prepare(self) -> None:
        """Local, at the start: all replicas are equal."""

    @abstractmethod
    def outgoing(self) -> Sequence[Tensor]:
        """Local: what is to be summed over all processes, in place. One process speaks for each worker (`speaks`), the others
        give zeros."""

    @abstractmethod
    def arrive(self) -> None:
        """Local: the sums are there; they must not depend on the number of workers any more."""

    @abstractmethod
    def take(self) -> None:
        """Local: the new weights."""

    def rule_state(self, in_flight: bool) -> dict[str, Any]:  # noqa: ARG002 - most have none
        """Local: what the rule must keep; `in_flight`: also what has arrived and is not taken yet. Tensors are not copied."""
        return {}

    def restore_rule(self, state: Mapping[str, Any]) -> None:
        """Local, after `prepare`: go on with what `rule_state` gave, perhaps to another algorithm."""

    # ---- the round -------------------------------------------------------------------------------------------------

    @classmethod
    def plan(cls, options: Any, size: int) -> Roles:  # noqa: ARG003
        return Roles(tuple(range(size)))

    @property
    def overlap(self) -> int:
        """Steps that are computed while an exchange is under way."""
        return 0

    def start(self) -> None:
        comm = self.comm
        replicate(comm, self.adapter.shared_state())
        self.speaks = comm.rank % self.group == 0
        self._within = self._group()
        self._aside = comm.duplicate() if self.overlap and comm.size > 1 else None
        self.weights = [vector for part in self.adapter.parts.values() for vector in part.values.values()]
        self._statistics = RunningStatistics(self.adapter, comm.size)
        self._tails = Tails(comm, self.adapter, self.speaks)
        self._num_steps = 0
        """Since the last round."""
        self._flight: _Flight | None = None
        self._known: list[StepStats] = []
        self._inner = AllReduce(self._within, self.adapter, AllReduceOptions(), self.spans)
        self.prepare()
        self.begin()

    def begin(self) -> None:
        """Local: be ready for steps within the groups."""
        self._inner.begin()

    def step(self, micro_batches: Sequence[Any], at: StepInfo) -> Sequence[StepStats]:
        self._note(self._inner.step(micro_batches, at))
        self._num_steps += 1
        if self._flight is not None and self._num_steps >= self.overlap:
            self._land()
        if self._num_steps >= self.options.period:
            self._take_off(self._aside)
            if not self.overlap:
                self._land()
        return self._told()

    def drain(self) -> Sequence[StepStats]:
        if self._flight is not None:
            self._arrive(self._flight)
        self._note(self._inner.drain())
        if len(self._tails):
            rows = self._tails.rows(apart=True)
            self.comm.allreduce(rows.matrix)
            self._known += rows.read()
        return self._told()

    def settle(self) -> None:
        """End the round that is open: all replicas are equal then."""
        if self._flight is not None:
            self._land()
        if self._num_steps:
            self._take_off(None)
            self._land()
        replicate(self.comm, self.adapter.counters())

    def finish(self) -> None:
        for comm in (self._within, self._aside):
            if comm is not None:
                comm.close()

    def state(self) -> dict[str, Any]:
        flight = self._flight
        return {
            "settled": self._statistics.before,
            "num_steps": self._num_steps,
            "in_flight": None if flight is None else self._statistics.in_flight(),
            **self.rule_state(flight is not None),
        }

    def restore(self, state: Mapping[str, Any], size: int) -> None:
        in_flight = state.get("in_flight")
        if size == self.comm.size and "settled" in state:  # others begin with the mean of those before, as if just settled
            self._statistics.restore(state["settled"], in_flight)
        self._num_steps = state.get("num_steps", 0)
        self._flight = None if in_flight is None else _Flight()
        self.restore_rule(state)

    def _group(self) -> Communicator:
        if self.group == 1:
            return alone(self.comm.device, self.comm.time_limit_s)
        found = self.comm.split(self.comm.rank // self.group)
        assert found is not None
        return found

    def _note(self, own: Sequence[StepStats]) -> None:
        """Local: steps of this worker."""
        self._tails.add(own)
        self.suspects.update(stats.step for stats in own if stats.num_not_finite)

    def _take_off(self, aside: Communicator | None) -> None:
        """Collective: begin an exchange, which is over when this returns unless it goes on `aside`."""
        began = perf_counter_ns()
        self._note(self._inner.drain())
        rows = self._tails.rows() if len(self._tails) else None
        travelling = [*self.outgoing(), *self._statistics.changes(), *([] if rows is None else [rows.matrix])]
        if aside is None:
            self.comm.allreduce(travelling)
            self._flight = _Flight(None, rows, is_new=True)
        else:
            self._flight = _Flight(aside.start_allreduce(travelling), rows, is_new=True)
        self._num_steps = 0
        if self.spans is not None:
            self.spans.add("communication", "round", began, perf_counter_ns())

    def _arrive(self, flight: _Flight) -> None:
        """Blocking: the exchange is over, and the sums of its steps are known; the weights wait for their step."""
        if not flight.is_new:
            return
        flight.is_new = False
        began = perf_counter_ns()
        if flight.work is not None:
            flight.work.wait()
            flight.work = None
            if self.spans is not None:
                self.spans.add("communication", "wait for round", began, perf_counter_ns())
        self.arrive()
        self._statistics.arrive()
        if flight.rows is not None:
            self._known += flight.rows.read()

    def _land(self) -> None:
        assert self._flight is not None
        self._arrive(self._flight)
        self._flight = None
        self.take()
        self._statistics.take()

    def _told(self) -> Sequence[StepStats]:
        told, self._known = self._known, []
        self.suspects.difference_update(stats.step for stats in told)
        return told


@dataclass
class _Flight:
    """An exchange that was begun and whose result is not taken yet."""

    work: Work[None] | None = None
    rows: Rows | None = None
    is_new: bool = False
    """Whether nobody has looked at what arrived; a flight of an earlier life arrived there."""


def expect_whole(option: str, value: Any, least: int) -> None:
    """Pure: refuse an option that is no whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(
            f"{option} must be a whole number of at least {least} (--set algorithm.{option}=VALUE); received {value!r}"
        )


def expect_one_of(option: str, value: Any, known: Sequence[str]) -> None:
    """Pure: refuse an option that is none of these words."""
    if value not in known:
        raise UsageError(f"{option} must be one of {', '.join(known)} (--set algorithm.{option}=VALUE); received {value!r}")
