"""Rounds of local steps: each worker takes some steps by itself, then all workers agree, and so on.

A worker is one process, or a group of them (`--group G`) that does exact all-reduce within itself: its steps are those of
`AllReduce` on the communicator of the group. A round ends after `period` steps and at the end of every epoch, so that all replicas
are equal whenever the model is evaluated. One grouped operation then moves what the rule of the algorithm wants to be summed, the
changes of the running statistics, and the sums of the round's steps; so votes to stop or to save act at the end of a round.
Counters are made those of rank 0 after an epoch.

A rule says what is summed (`to_reduce`), what becomes of the sum (`on_reduced`), and the new weights (`update_weights`). Between
the first two the exchange may be under way while the next `overlap` steps are computed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, ClassVar

import torch
from torch import Tensor

from unisono.algorithms.allreduce import AllReduce
from unisono.algorithms.allreduce import Options as AllReduceOptions
from unisono.algorithms.base import LockStepAlgorithm, ModelSize, Settings, StepInfo, Traffic, lr_of_group
from unisono.algorithms.rounds.statistics import RunningStatistics
from unisono.algorithms.rounds.tails import Rows, Tails
from unisono.comm.base import Communicator, Work
from unisono.comm.replicate import replicate
from unisono.comm.single_process import single_process_communicator
from unisono.model.tail import StepStats
from unisono.model.torch.adapter import TorchAdapter


@dataclass
class LocalRounds(LockStepAlgorithm):
    """See the top of this file. An algorithm adds its rule, and `period` to its options."""

    adapter: TorchAdapter
    has_own_replicas: ClassVar[bool] = True
    takes_group: ClassVar[bool] = True

    # ---- the rule --------------------------------------------------------------------------------------------------

    @abstractmethod
    def prepare(self) -> None:
        """Local: makes the vectors of the rule. Called when all replicas are equal: at the start, and again where the run of
        another algorithm is resumed. Vectors that belong in a checkpoint go into `kept`."""

    @abstractmethod
    def to_reduce(self, settings: Settings) -> Sequence[Tensor]:
        """Local: what is to be summed over all processes, in place. One process of each worker gives its own
        (`is_group_leader`), the others give zeros. `settings` are those of the round's last step, here as in `update_weights`."""

    @abstractmethod
    def on_reduced(self) -> None:
        """Local: called when the sums have come: makes them independent of the number of workers."""

    @abstractmethod
    def update_weights(self, settings: Settings) -> None:
        """Local: computes the new weights from the sums."""

    def rule_state(self, in_flight: bool) -> dict[str, Any]:  # noqa: ARG002 - most have nothing in flight
        """Local: what a checkpoint holds of the rule; with `in_flight` also what was reduced and is not in the weights yet. Tensors
        are not copied."""
        return dict(self.kept)

    def restore_rule(self, state: Mapping[str, Any]) -> None:
        """Local, after `prepare`: resumes with what `rule_state` gave, of this or of another algorithm."""
        for name, vectors in self.kept.items():
            for own, saved in zip(vectors, state.get(name, vectors), strict=True):
                own.copy_(saved)

    def can_continue(self, state: Mapping[str, Any]) -> bool:
        """Pure, after `prepare`: whether the rule can end the round within which `state` was saved, maybe by another rule."""
        return state.get("in_flight") is None and self.kept.keys() <= state.keys()

    def learning_rates(self, settings: Settings) -> list[float]:
        """Pure: the learning rate of each of `weights`, that of its optimiser's first group."""
        return [lr_of_group(settings[name]) for name, part in self.adapter.parts.items() for _ in part.values]

    # ---- the round -------------------------------------------------------------------------------------------------

    @classmethod
    def traffic(cls, options: Any, weights: ModelSize) -> Traffic:
        return Traffic(summed=weights.num_bytes / options.period)

    @property
    def overlap(self) -> int:
        """Number of steps that are computed while an exchange is under way."""
        return 0

    def start(self) -> None:
        comm = self.comm
        replicate(comm, self.adapter.shared_state())
        self.is_group_leader = comm.rank % self.group == 0
        self._within = self._open_group()
        self._aside = comm.duplicate() if self.overlap and comm.size > 1 else None
        self.weights = [vector for part in self.adapter.parts.values() for vector in part.values.values()]
        self._statistics = RunningStatistics(self.adapter, comm.size)
        self._tails = Tails(comm, self.adapter, self.is_group_leader)
        self._num_steps = 0
        """Steps since the last round."""
        self._settings: Settings = {}
        """Settings of the last step."""
        self._exchange: _Exchange | None = None
        self._known: list[StepStats] = []
        self.kept: dict[str, Sequence[Tensor]] = {}
        self._inner = AllReduce(self._within, self.adapter, AllReduceOptions(), self.spans)
        self.prepare()
        self.begin()

    def begin(self) -> None:
        """Local: prepares steps within the groups."""
        self._inner.begin()

    def step(self, micro_batches: Sequence[Any], at: StepInfo) -> Sequence[StepStats]:
        self._add_own_stats(self._inner.step(micro_batches, at))
        self._num_steps += 1
        self._settings = at.settings
        if self._exchange is not None and self._num_steps >= self.overlap:
            self._finish_exchange()
        if self._num_steps >= self.options.period:
            self._begin_exchange(self._aside)
            if not self.overlap:
                self._finish_exchange()
        return self._pop_known_stats()

    def flush_stats(self) -> Sequence[StepStats]:
        if self._exchange is not None:
            self._receive(self._exchange)
        self._add_own_stats(self._inner.flush_stats())
        if len(self._tails):
            rows = self._tails.pop_rows(apart=True)
            self.comm.allreduce(rows.matrix)
            self._known += rows.read()
        return self._pop_known_stats()

    def synchronise(self) -> None:
        """Ends the round that is open, so that all replicas are equal."""
        if self._exchange is not None:
            self._finish_exchange()
        if self._num_steps:
            self._begin_exchange(None)
            self._finish_exchange()
        replicate(self.comm, self.adapter.counters())

    def finish(self) -> None:
        for comm in (self._within, self._aside):
            if comm is not None:
                comm.close()

    def state(self) -> dict[str, Any]:
        exchange = self._exchange
        return {
            "settled": self._statistics.before,
            "num_steps": self._num_steps,
            "settings": _plain(self._settings),
            "in_flight": None if exchange is None else {**self._statistics.in_flight(), "settings": _plain(exchange.settings)},
            **self.rule_state(exchange is not None),
        }

    def restore(self, state: Mapping[str, Any], size: int) -> None:
        """Collective, after `start`: as inherited. A round that another algorithm began, and that this rule cannot end, ends with
        the mean of all weights, as in local SGD."""
        in_flight = state.get("in_flight")
        if (in_flight is not None or state.get("num_steps", 0)) and not self.can_continue(state):
            if size == self.comm.size:  # others hold the mean already
                self._statistics.restore(state["settled"])
                self._statistics.synchronise(self.comm)
                self._average_weights()
            self.prepare()
            return
        if size == self.comm.size and "settled" in state:  # others begin with the mean of those before, as if just synchronised
            self._statistics.restore(state["settled"], in_flight)
        self._num_steps = state.get("num_steps", 0)
        self._settings = state.get("settings", {})
        self._exchange = None if in_flight is None else _Exchange(in_flight.get("settings", {}))
        if not self.kept.keys() <= state.keys():
            self.prepare()
        self.restore_rule(state)

    def _average_weights(self) -> None:
        """Collective, blocking: replaces the weights of all workers by their mean."""
        sums = [vector.clone() if self.is_group_leader else torch.zeros_like(vector) for vector in self.weights]
        self.comm.allreduce(sums)
        for vector, total in zip(self.weights, sums, strict=True):
            vector.copy_(total / self.num_workers)

    def _open_group(self) -> Communicator:
        """Collective: returns the communicator of this worker's group of processes; a private one for groups of one."""
        if self.group == 1:
            return single_process_communicator(self.comm.device, self.comm.time_limit_s)
        found = self.comm.split(self.comm.rank // self.group)
        assert found is not None
        return found

    def _add_own_stats(self, own: Sequence[StepStats]) -> None:
        """Local: keeps the sums of this worker's steps for the next exchange."""
        self._tails.add(own)
        self.suspects.update(stats.step for stats in own if stats.num_not_finite)

    def _begin_exchange(self, aside: Communicator | None) -> None:
        """Collective: ends a round by starting its exchange, which is over when this returns unless it runs on `aside`."""
        began = perf_counter_ns()
        self._add_own_stats(self._inner.flush_stats())
        rows = self._tails.pop_rows() if len(self._tails) else None
        travelling = [*self.to_reduce(self._settings), *self._statistics.changes(), *([] if rows is None else [rows.matrix])]
        work = None
        if aside is None:
            self.comm.allreduce(travelling)
        else:
            work = aside.start_allreduce(travelling)
        self._exchange = _Exchange(self._settings, work, rows, is_new=True)
        self._num_steps = 0
        if self.spans is not None:
            self.spans.add("communication", "round", began, perf_counter_ns())

    def _receive(self, exchange: _Exchange) -> None:
        """Blocking: waits for the exchange and reads the sums of its steps. The weights are set later (`_finish_exchange`)."""
        if not exchange.is_new:
            return
        exchange.is_new = False
        began = perf_counter_ns()
        if exchange.work is not None:
            exchange.work.wait()
            exchange.work = None
            if self.spans is not None:
                self.spans.add("communication", "wait for round", began, perf_counter_ns())
        self.on_reduced()
        self._statistics.on_reduced()
        if exchange.rows is not None:
            self._known += exchange.rows.read()

    def _finish_exchange(self) -> None:
        """Waits for the sums of the exchange under way, and computes the new weights and running statistics from them."""
        exchange = self._exchange
        assert exchange is not None
        self._receive(exchange)
        self._exchange = None
        self.update_weights(exchange.settings)
        self._statistics.apply()

    def _pop_known_stats(self) -> Sequence[StepStats]:
        """Returns the statistics of the steps that have become known since the last call."""
        known, self._known = self._known, []
        self.suspects.difference_update(stats.step for stats in known)
        return known


@dataclass
class _Exchange:
    """An exchange at the end of a round, until its result is in the weights."""

    settings: Settings
    """Settings of the round's last step."""
    work: Work[None] | None = None
    rows: Rows | None = None
    is_new: bool = False
    """Whether its result was not received yet; that of a resumed exchange was received in the earlier attempt."""


def _plain(settings: Settings) -> dict[str, list[dict[str, float]]]:
    """Pure: the numbers among the settings, as a checkpoint holds them."""
    return {
        name: [{key: value for key, value in group.items() if isinstance(value, (int, float))} for group in groups]
        for name, groups in settings.items()
    }
