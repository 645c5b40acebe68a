"""The state that a training must save to resume with the same bits, and how it is restored, on any number of workers.

Replicas are equal after a step but for their buffers, which are made equal only after an epoch, and for what a user's code logged:
those of each worker are saved, so that a resumed training gives the same bits. Where workers take steps by themselves, the whole
state of each is saved (worker_states.py). Random streams are functions of seed, step and shard, so they need no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from unisono.algorithms.base import Algorithm
from unisono.comm.base import Communicator
from unisono.comm.replicate import replicate
from unisono.errors import UsageError
from unisono.model.base import ModelAdapter, PartialEpochLog
from unisono.model.packed import pack, unpack
from unisono.training.checkpointing.worker_states import (
    MERGED,
    WORKERS,
    State,
    gather_workers,
    merge_workers,
    pack_workers,
    scatter,
    unpack_workers,
)
from unisono.training.logged_values import add_logged

TRAINER = "trainer"
"""Key of the trainer's own plain values in a state."""
IS_OWN = "is_own"
"""Key that marks a state as that of one worker, which others do not have."""


def gather_state(comm: Communicator, adapter: ModelAdapter, algorithm: Algorithm, mid_epoch: bool) -> State | None:
    """Collective, blocking: gathers the state on rank 0; None on the others. Tensors are not copied."""
    found: dict[str, Any] = {"size": comm.size, "statistics": None, "counters": {}, "so_far": None}
    if mid_epoch:
        if not algorithm.keeps_equal:
            found["statistics"] = _statistics_of_all(comm, adapter)
            found["counters"] = _counters_of_all(comm, adapter)
        found["so_far"] = _so_far_of_all(comm, adapter)
    if algorithm.replicas_differ:
        each = gather_workers(comm, algorithm.group, state_of_replica(adapter, algorithm))
    else:
        each = None if comm.rank else [state_of_replica(adapter, algorithm)]
    if each is None:
        return None
    plain, tensors = pack_workers(each)
    return {name: pack(value, tensors, name) for name, value in found.items()} | plain, tensors


def state_of_replica(adapter: ModelAdapter, algorithm: Algorithm) -> State:
    """Local: the part of the state that this rank has by itself. Tensors are not copied."""
    tensors: dict[str, Tensor] = {}
    found = {**adapter.state(), "kept": adapter.user_state(), "algorithm": algorithm.state()}
    return {name: pack(value, tensors, name) for name, value in found.items()}, tensors


def share_state(comm: Communicator, state: State | None, algorithm: Algorithm) -> State | None:
    """Collective, blocking: sends the state of rank 0 to every rank, into host memory. Workers with states of their own get their
    own, if there are as many workers as before and the algorithm takes them, and else what `merge_workers` makes of them."""
    each: list[State] = []
    if state is not None:
        plain, tensors = state
        is_same = len(plain.get(WORKERS, ())) + 1 == comm.size // algorithm.group
        step = plain[TRAINER]["progress"]["step"]
        if not (is_same and algorithm.takes_own_states(unpack(plain["algorithm"], tensors), step)):
            state = merge_workers(state)
        state, each = unpack_workers(state)
    common = _share_alike(comm, state)
    if common is None or not comm.broadcast_object(bool(each)):
        return common
    plain, tensors = scatter(comm, algorithm.group, each if comm.rank == 0 else None)
    return {**common[0], **plain, IS_OWN: True}, {**common[1], **tensors}


def _share_alike(comm: Communicator, state: State | None) -> State | None:
    """Broadcasts the state of rank 0, which alone gives one, and returns it on the host of every rank. Collective, blocking."""
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
    """Restores a training from a state. Local; all ranks hold the same state, or each that of its worker."""

    def __init__(self, state: State) -> None:
        plain, tensors = state
        self.trainer: Mapping[str, Any] = plain[TRAINER]
        self._held: Mapping[str, Any] = {name: unpack(value, tensors) for name, value in plain.items() if name != TRAINER}

    def before_start(self, adapter: ModelAdapter) -> None:
        """Restores a replica, before the algorithm starts."""
        try:
            adapter.restore(self._held)
        except (RuntimeError, ValueError, KeyError) as error:  # so torch says that a state is of another model
            raise UsageError(
                f"the checkpoint does not fit this model or optimiser: {' '.join(str(error).split())}; undo the change, or start "
                "over with --fresh (--init-from FILE takes the weights of another run)"
            ) from error
        if self._held["statistics"] is not None:
            each = self._held["statistics"]
            for place, vector in enumerate(adapter.statistics()):
                vector.copy_(torch.stack([own[place].double() for own in each]).mean(0))

    def after_start(self, comm: Communicator, adapter: ModelAdapter, algorithm: Algorithm) -> None:
        """Restores what `Algorithm.start` has made equal on all ranks, and the algorithm's own state."""
        if IS_OWN in self._held:
            adapter.restore(self._held)
        if self._held["size"] == comm.size and not algorithm.keeps_equal:
            if self._held["statistics"] is not None:
                for vector, own in zip(adapter.statistics(), self._held["statistics"][comm.rank], strict=True):
                    vector.copy_(own)
            counters = adapter.counters()
            for place, each in self._held["counters"].items():
                counter = counters[place]
                counter.copy_(each[comm.rank].clone().view(counter.dtype).view(counter.shape))
        algorithm.restore(self._held["algorithm"], self._held["size"])

    def so_far(self, comm: Communicator) -> PartialEpochLog | None:
        """What this worker had logged in an unfinished epoch; with another number of workers rank 0 gets the logged values of all.
        None without an unfinished epoch."""
        if self._held["so_far"] is None:
            return None
        each = [PartialEpochLog(*own) for own in self._held["so_far"]]
        if len(each) == comm.size:
            return each[comm.rank]
        if comm.rank:
            return PartialEpochLog(0, {}, each[0].is_over)
        return each[0]._replace(num_samples=sum(own.num_samples for own in each), logged=add_logged(own.logged for own in each))

    def notes(self, comm: Communicator, mid_epoch: bool) -> list[str]:
        """Returns what a user should know about the resumed training."""
        found = []
        if MERGED in self._held:
            found.append(
                f"warning: the checkpoint has the weights and optimiser states of {self._held[MERGED]} workers; all workers now "
                "start from the mean of the weights and the optimiser state of the first"
            )
        so_far = self.so_far(comm) if mid_epoch else None
        if so_far is not None and so_far.unsaved_metrics:
            names = ", ".join(so_far.unsaved_metrics)
            found.append(f"warning: {names} (TorchMetrics) will cover only the rest of this epoch, as checkpoints do not hold them")
        return found


def _statistics_of_all(comm: Communicator, adapter: ModelAdapter) -> list[list[Tensor]] | None:
    """Returns for each rank the running statistics of its model; None if there are none or one rank. Collective, blocking."""
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


def _counters_of_all(comm: Communicator, adapter: ModelAdapter) -> dict[int, list[Tensor]]:
    """The counters that differ between workers, by their places, as bytes; few do."""
    mine = [counter.detach().contiguous().reshape(-1).view(torch.uint8) for counter in adapter.counters()]
    if comm.size == 1 or not mine:
        return {}
    digests = comm.allgather_object([sha256(one.cpu().numpy().data).digest() for one in mine])
    found = {}
    for place, own in enumerate(mine):
        if len({digest[place] for digest in digests}) > 1:
            gathered = torch.empty((comm.size, own.numel()), dtype=torch.uint8, device=own.device)
            comm.allgather(gathered.view(-1), own)
            found[place] = list(gathered)
    return found


def _so_far_of_all(comm: Communicator, adapter: ModelAdapter) -> list[Any] | None:
    """Returns for each rank what it has logged in this epoch so far; None if the model logs nothing. Collective, blocking."""
    mine = adapter.partial_epoch()
    return None if mine is None else comm.allgather_object(tuple(mine._replace(logged=dict(mine.logged))))
