"""The states of workers that hold weights and optimisers of their own: gathered on rank 0, scattered again, or merged into one.

A state travels as one vector of bytes. In a checkpoint worker 0 has the usual names and worker k the same ones after `worker-k/`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unisono.comm.base import Communicator
from unisono.model.flat import ALIGN_BYTES

State = tuple[dict[str, Any], dict[str, Tensor]]
"""Plain values, and the tensors that they name."""

WORKERS = "workers"
"""Key of the plain values of workers 1, 2, ... in a packed state."""
MERGED = "merged"
"""Key of the number of states from which a merged state was made."""
AVERAGED = ("model", "algorithm")
"""Entries that are averaged when states are merged; of all others the first worker's are used."""
LENGTH_BYTES = 8


def gather_workers(comm: Communicator, group: int, own: State) -> list[State] | None:
    """Collective, blocking: gathers the state of each worker on rank 0, in their order; None on others. A worker is `group`
    processes, the first of which sends its state."""
    if comm.rank == 0:
        return [own, *(_receive(comm, rank) for rank in range(group, comm.size, group))]
    if comm.rank % group == 0:
        _send(comm, _to_bytes(own), 0)
    return None


def scatter(comm: Communicator, group: int, states: Sequence[State] | None) -> State:
    """Collective, blocking: sends the states that rank 0 holds to the processes of each worker; returns the state of this
    worker."""
    if states is None:
        return _receive(comm, 0)
    for worker, state in enumerate(states):
        parcel = _to_bytes(state)
        for rank in range(max(1, worker * group), (worker + 1) * group):
            _send(comm, parcel, rank)
    return states[0]


def pack_workers(states: Sequence[State]) -> State:
    """Pure: packs the states of all workers into one that can be saved."""
    (plain, tensors), *others = states
    if not others:
        return plain, tensors
    named = {f"{_name_prefix(number)}{name}": one for number, (_, held) in enumerate(others, 1) for name, one in held.items()}
    return {**plain, WORKERS: [values for values, _ in others]}, {**tensors, **named}


def unpack_workers(state: State) -> tuple[State, list[State]]:
    """Pure: splits a packed state into the part common to all workers and the state of each; the list is empty where all are the
    same."""
    plain, tensors = state
    if WORKERS not in plain:
        return state, []
    others = plain[WORKERS]
    prefixes = [_name_prefix(number) for number in range(1, len(others) + 1)]
    each = [
        (values, {name.removeprefix(prefix): one for name, one in tensors.items() if name.startswith(prefix)})
        for prefix, values in zip(prefixes, others, strict=True)
    ]
    first = {name: one for name, one in tensors.items() if not name.startswith(tuple(prefixes))}
    own = set(others[0])
    common_plain = {name: value for name, value in plain.items() if name not in own and name != WORKERS}
    common = common_plain, {name: one for name, one in first.items() if _text_before_dot(name) not in own}
    worker_0 = {name: plain[name] for name in own}, {name: one for name, one in first.items() if _text_before_dot(name) in own}
    return common, [worker_0, *each]


def merge_workers(state: State) -> State:
    """Pure: merges the states of all workers into one, for another number of workers: the mean of weights, and the first worker's
    optimiser."""
    (plain, tensors), states = unpack_workers(state)
    if not states:
        return state
    (own_plain, own), *others = states
    found = dict(own)
    for name, tensor in own.items():
        same = [held[name] for _, held in others if name in held and held[name].shape == tensor.shape]
        if _text_before_dot(name) in AVERAGED and tensor.is_floating_point() and len(same) == len(others):
            found[name] = torch.stack([one.double() for one in (tensor, *same)]).mean(0).to(tensor.dtype)
    return {**plain, **own_plain, MERGED: len(states)}, {**tensors, **found}


def _name_prefix(number: int) -> str:
    return f"worker-{number}/"


def _text_before_dot(name: str) -> str:
    """Returns the part of a name before its first dot, without quotation marks at its end."""
    return name.partition(".")[0].rstrip("'")


def _send(comm: Communicator, parcel: Tensor, rank: int) -> None:
    """Sends the length of `parcel` and then `parcel` to `rank`. Blocking."""
    comm.send(torch.tensor([parcel.numel()], device=comm.device), rank)
    comm.send(parcel.to(comm.device), rank)


def _receive(comm: Communicator, rank: int) -> State:
    """Returns the state whose bytes `rank` has sent with `_send`. Blocking."""
    length = torch.zeros(1, dtype=torch.int64, device=comm.device)
    comm.recv(length, rank)
    parcel = torch.empty(int(length), dtype=torch.uint8, device=comm.device)
    comm.recv(parcel, rank)
    return _state_from_bytes(parcel.cpu())


def _to_bytes(state: State) -> Tensor:
    """Local: a state as bytes: the length of a description, the description, and the tensors, each on an aligned boundary."""
    plain, tensors = state
    shapes = [(name, str(one.dtype).removeprefix("torch."), list(one.shape)) for name, one in tensors.items()]
    words = json.dumps([plain, shapes]).encode()
    described = torch.frombuffer(bytearray(len(words).to_bytes(LENGTH_BYTES, "little") + words), dtype=torch.uint8)
    parcel = torch.zeros(
        _next_aligned(described.numel()) + sum(_next_aligned(one.nbytes) for one in tensors.values()), dtype=torch.uint8
    )
    parcel[: described.numel()] = described
    place = _next_aligned(described.numel())
    for tensor in tensors.values():
        parcel[place : place + tensor.nbytes] = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        place += _next_aligned(tensor.nbytes)
    return parcel


def _state_from_bytes(parcel: Tensor) -> State:
    num_words = int.from_bytes(bytes(parcel[:LENGTH_BYTES].tolist()), "little")
    plain, shapes = json.loads(bytes(parcel[LENGTH_BYTES : LENGTH_BYTES + num_words].numpy()))
    place = _next_aligned(LENGTH_BYTES + num_words)
    tensors = {}
    for name, dtype, shape in shapes:
        kind = getattr(torch, dtype)
        length = torch.Size(shape).numel() * kind.itemsize
        tensors[name] = parcel[place : place + length].view(kind).view(shape)
        place = _next_aligned(place + length)
    return plain, tensors


def _next_aligned(place: int) -> int:
    """Returns `place` rounded up to a multiple of `ALIGN_BYTES`."""
    return place + -place % ALIGN_BYTES
