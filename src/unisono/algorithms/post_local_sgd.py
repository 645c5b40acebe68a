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
from unisono.algorithms.base import Examples, StepInfo
from unisono.algorithms.local_sgd import LocalSGD
from unisono.algorithms.local_sgd import Options as LocalSGDOptions
from unisono.comm.replicate import replicate
from unisono.errors import UsageError
from unisono.model.tail import StepStats
from unisono.task.options import option


@dataclass(frozen=True)
class Options(LocalSGDOptions):
    """Options of `--algorithm post_local_sgd`."""

    switch_step: int | None = option(None, "the first step that workers take on their own; required", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.switch_step is None:
            raise UsageError(
                "--algorithm post_local_sgd needs --set algorithm.switch_step=S, the step from which workers learn by themselves, "
                "e.g. the one at which the learning rate first falls"
            )


@dataclass
class PostLocalSGD(LocalSGD):
    """See the top of this file."""

    Options: ClassVar[type[Any]] = Options
    examples: ClassVar[Examples] = ({"algorithm.period": 3, "algorithm.switch_step": 4, "optimizer.momentum": 0.5},)

    @property
    def replicas_differ(self) -> bool:
        return self._is_local

    def begin(self) -> None:
        self._is_local = False
        self._allreduce = AllReduce(self.comm, self.adapter, AllReduceOptions(), self.spans)
        self._allreduce.begin()

    def step(self, micro_batches: Sequence[Any], at: StepInfo) -> Sequence[StepStats]:
        if at.step < self.options.switch_step:
            self._is_local, self._num_steps = False, 0  # it may be resumed with a later switch, from the mean
            return self._allreduce.step(micro_batches, at)
        if not self._is_local:
            self._known += self._allreduce.flush_stats()
            self._go_local()
        return super().step(micro_batches, at)

    def flush_stats(self) -> Sequence[StepStats]:
        return super().flush_stats() if self._is_local else self._allreduce.flush_stats()

    def synchronise(self) -> None:
        if self._is_local:
            super().synchronise()
        else:
            replicate(self.comm, self.adapter.counters())
            self._statistics.synchronise(self.comm)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "is_local": self._is_local}

    def takes_own_states(self, state: Mapping[str, Any], step: int) -> bool:
        """As inherited; all steps before the switch need equal weights and optimisers."""
        return bool(state.get("is_local", False)) and step >= self.options.switch_step

    def can_continue(self, state: Mapping[str, Any]) -> bool:
        """As inherited; only the own local part has rounds."""
        return bool(state.get("is_local", False)) and super().can_continue(state)

    def restore(self, state: Mapping[str, Any], size: int) -> None:
        super().restore(state, size)
        if state.get("is_local", False):
            self._go_local()

    def _go_local(self) -> None:
        """Local: switches to local SGD."""
        self._is_local = True
        super().begin()


ALGORITHM = PostLocalSGD
