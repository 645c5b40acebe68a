"""Post-local SGD: synchronous at first, local SGD afterwards.

    step <  switch_step:   all-reduce in every step (allreduce.py)
    step >= switch_step:   local SGD with rounds of H steps (local_sgd.py)

The first, decisive part of a training has the exact gradient; the long rest, where steps are small, saves messages.

Lin, Stich, Patel, Jaggi 2020, Don't Use Large Mini-Batches, Use Local SGD, ICLR.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from unisono.algorithms.allreduce import AllReduce
from unisono.algorithms.allreduce import Options as AllReduceOptions
from unisono.algorithms.base import StepInfo
from unisono.algorithms.local_sgd import MOMENTUM, LocalSGD
from unisono.algorithms.rounds.local import expect_one_of, expect_whole
from unisono.comm.replicate import replicate
from unisono.errors import UsageError
from unisono.model.tail import StepStats


@dataclass(frozen=True)
class Options:
    """Of `--algorithm post_local_sgd`."""

    switch_step: int | None = None
    """The first step that workers take by themselves."""
    period: int = 8
    """H: steps of a round."""
    momentum: str = "keep"
    """What a round leaves of the optimiser's own state: all of it, or none (reset)."""

    def __post_init__(self) -> None:
        if self.switch_step is None:
            raise UsageError(
                "--algorithm post_local_sgd needs the step from which workers learn by themselves: --set algorithm.switch_step=S, "
                "e.g. where the learning rate first falls"
            )
        expect_whole("switch_step", self.switch_step, 0)
        expect_whole("period", self.period, 1)
        expect_one_of("momentum", self.momentum, MOMENTUM)


@dataclass
class PostLocalSGD(LocalSGD):
    """See the top of this file."""

    Options: ClassVar[type[Any]] = Options

    @property
    def replicas_differ(self) -> bool:
        return self._is_local

    def begin(self) -> None:
        self._is_local = False
        self._together = AllReduce(self.comm, self.adapter, AllReduceOptions(), self.spans)
        self._together.begin()

    def step(self, micro_batches: Sequence[Any], at: StepInfo) -> Sequence[StepStats]:
        if at.step < self.options.switch_step:
            return self._together.step(micro_batches, at)
        if not self._is_local:
            self._known += self._together.drain()
            self._part()
        return super().step(micro_batches, at)

    def drain(self) -> Sequence[StepStats]:
        return super().drain() if self._is_local else self._together.drain()

    def settle(self) -> None:
        if self._is_local:
            super().settle()
        else:
            replicate(self.comm, self.adapter.counters())
            self._statistics.settle(self.comm)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "is_local": self._is_local}

    def restore(self, state: Mapping[str, Any], size: int) -> None:
        super().restore(state, size)
        if state.get("is_local", False):
            self._part()

    def _part(self) -> None:
        """Local: from now on each worker learns by itself."""
        self._is_local = True
        super().begin()


ALGORITHM = PostLocalSGD
