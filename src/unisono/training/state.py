"""All that a training must keep to go on as if nothing had happened, and how it is put back, on any number of workers.

Replicas are equal after a step but for their running statistics, which are averaged only after an epoch: those of each worker are
kept, so that going on gives the same bits. Random streams are functions of seed, step and shard, so there is nothing of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unisono.algorithms.base import Algorithm
from unisono.comm.base import Communicator
from unisono.comm.replicate import replicate
from unisono.model.base import Logged, ModelAdapter
from unisono.model.packed import pack, unpack
from unisono.training.logged import sums_of_all

TRAINER = "trainer"
"""Under this name the trainer keeps its own plain values beside the state."""

State = tuple[dict[str, Any], dict[str, Tensor]]
"""Plain values, and the tensors that they name."""


def gather_state(comm: Communicator, adapter: ModelAdapter, algorithm: Algorithm, mid_epoch: bool) -> State | None:
    """Collective, blocking: the state on rank 0, None on the others. Tensors are not copied."""
    found: dict[str, Any] = {"size": comm.size, "statistics": None, "logged": None}
    if mid_epoch:
        found["statistics"] = _statistics_of_all(comm, adapter)
        found["logged"] = sums_of_all(comm, adapter.logged_so_far())
    if comm.rank:
        return None
    plain, tensors = state_of_replica(adapter, algorithm)
    return {name: pack(value, tensors, name) for name, value in found.items()} | plain, tensors


def state_of_replica(adapter: ModelAdapter, algorithm: Algorithm) -> State:
    """Local: the part of the state that this rank has by itself. Tensors are not copied."""
    tensors: dict[str, Tensor] = {}
    found = {**adapter.state(), "algorithm": algorithm.state()}
    return {name: pack(value, tensors, name) for name, value in found.items()}, tensors


def share_state(comm: Communicator, state: State | None) -> State | None:
    """Collective, blocking: every rank gets what rank 0 has, in the memory of the host."""
    if comm.size == 1:
        return state
    plain, shapes = comm.broadcast_object(
        (None, None)
        if state is None
        else (state[0], [(name, str(one.dtype).removeprefix("torch."), list(one.shape)) for name, one in state[1].items()])
    )
    if plain is None:
        return None
    tensors = {}
    for name, dtype, shape in shapes:
        if state is not None:
            moved = state[1][name].to(comm.device)
        else:
            moved = torch.empty(shape, dtype=getattr(torch, dtype), device=comm.device)
        replicate(comm, [moved])
        tensors[name] = moved.cpu()
    return plain, tensors


class Restored:
    """A state to go on from. Local; all ranks hold the same."""

    def __init__(self, state: State) -> None:
        plain, tensors = state
        self.trainer: Mapping[str, Any] = plain[TRAINER]
        self._held: Mapping[str, Any] = {name: unpack(value, tensors) for name, value in plain.items() if name != TRAINER}

    def before_start(self, adapter: ModelAdapter) -> None:
        """Into a replica, before the algorithm starts."""
        adapter.restore(self._held)
        if self._held["statistics"] is not None:
            each = self._held["statistics"]
            for place, vector in enumerate(adapter.statistics()):
                vector.copy_(torch.stack([own[place].double() for own in each]).mean(0))

    def after_start(self, comm: Communicator, adapter: ModelAdapter, algorithm: Algorithm) -> None:
        """What starting made equal, and what the algorithm keeps for itself."""
        if self._held["statistics"] is not None and self._held["size"] == comm.size:
            for vector, own in zip(adapter.statistics(), self._held["statistics"][comm.rank], strict=True):
                vector.copy_(own)
        algorithm.restore(self._held["algorithm"], self._held["size"])

    def logged(self, rank: int) -> Logged | None:
        """What was logged in an epoch that is under way: the sums of all workers, on rank 0."""
        return self._held["logged"] if rank == 0 else None


def _statistics_of_all(comm: Communicator, adapter: ModelAdapter) -> list[list[Tensor]] | None:
    mine = adapter.statistics()
    if comm.size == 1 or not any(vector.numel() for vector in mine):
        return None
    each: list[list[Tensor]] = [[] for _ in range(comm.size)]
    for vector in mine:
        gathered = torch.empty((comm.size, vector.numel()), dtype=vector.dtype, device=vector.device)
        if vector.numel():
            comm.allgather(gathered.view(-1), vector)
        for own, row in zip(each, gathered, strict=True):
            own.append(row)
    return each
