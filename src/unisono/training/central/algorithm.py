"""An algorithm with a centre as saves, restores and the rest of a run see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unisono.algorithms.base import Algorithm, Roles, StepInfo
from unisono.algorithms.central.rule import Rule
from unisono.comm.base import Communicator
from unisono.comm.replicate import replicate
from unisono.model.tail import StepStats
from unisono.model.torch import TorchAdapter
from unisono.training.central.division import Division
from unisono.training.central.service import Service
from unisono.training.central.simulated import Clock


@dataclass
class Central(Algorithm):
    """`comm` is one server alone, the first of which has all that is saved; `world` are all servers and workers."""

    adapter: TorchAdapter
    name: str = field(kw_only=True)
    world: Communicator = field(kw_only=True)
    rule: Rule = field(kw_only=True)
    division: Division = field(kw_only=True)
    clock: Clock = field(kw_only=True)
    make_look: Callable[[], TorchAdapter] = field(kw_only=True)
    """Makes a second replica, for evaluations beside the serving."""
    replay: Sequence[str] | None = field(default=None, kw_only=True)
    """The recorded order of another run, which is to be repeated."""
    service: Service | None = field(default=None, init=False)
    """Of the server, once it serves."""
    held: Mapping[str, Any] | None = field(default=None, init=False)
    """What an earlier life has left of the service."""

    @property
    def num_workers(self) -> int:
        return self.division.num_workers

    @property
    def num_servers(self) -> int:
        return self.division.servers

    @classmethod
    def plan(cls, options: Any, size: int) -> Roles:  # noqa: ARG003
        return Roles(tuple(range(1, size)), (0,))

    def start(self) -> None:
        replicate(self.world, self.adapter.shared_state())

    def step(self, micro_batches: Sequence[Any], at: StepInfo) -> Sequence[StepStats]:
        raise NotImplementedError("workers of a centre take their steps in a loop of their own (training/central/worker.py)")

    def settle(self) -> None:
        """Everybody takes the centre."""
        replicate(self.world, self.adapter.shared_state())

    def state(self) -> dict[str, Any]:
        return {} if self.service is None else self.service.state()

    def restore(self, state: Mapping[str, Any], size: int) -> None:  # noqa: ARG002
        self.held = state
