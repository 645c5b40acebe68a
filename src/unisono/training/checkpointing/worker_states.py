"""The states of workers that hold weights and optimisers of their own: collected on rank 0, dealt out again, or made one.

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
"""Under this name a state holds the plain values of workers 1, 2, ..."""
MERGED = "merged"
"""How many states this one was made of."""
AVERAGED = ("model", "algorithm")
"""Of these the mean is taken where there are other workers than before; of all else what the first one had."""
LENGTH_BYTES = 8


def collect(comm: Communicator, group: int, own: State) -> list[State] | None:
    """Collective, blocking: on rank 0 the state of each worker, in their order; None on others. A worker is `group` processes,
    whose first one speaks for all."""
    if comm.rank == 0:
        return [own, *(_received(comm, rank) for rank in range(group, comm.size, group))]
    if comm.rank % group == 0:
        _send(comm, _wrapped(own), 0)
    return None


def deal(comm: Communicator, group: int, states: Sequence[State] | None) -> State:
    """Collective, blocking: every process gets the state of its worker, of which rank 0 has all."""
    if states is None:
        return _received(comm, 0)
    for worker, state in enumerate(states):
        parcel = _wrapped(state)
        for rank in range(max(1, worker * group), (worker + 1) * group):
            _send(comm, parcel, rank)
    return states[0]


def joined(states: Sequence[State]) -> State:
    """Pure: the states of all workers as one to be saved."""
    (plain, tensors), *others = states
    if not others:
        return plain, tensors
    named = {f"{_prefix(number)}{name}": one for number, (_, held) in enumerate(others, 1) for name, one in held.items()}
    return {**plain, WORKERS: [values for values, _ in others]}, {**tensors, **named}


def taken_apart(state: State) -> tuple[State, list[State]]:
    """Pure: what all have in common, and the state of each worker; none where all are the same."""
    plain, tensors = state
    if WORKERS not in plain:
        return state, []
    others = plain[WORKERS]
    prefixes = [_prefix(number) for number in range(1, len(others) + 1)]
    each = [
        (values, {name.removeprefix(prefix): one for name, one in tensors.items() if name.startswith(prefix)})
        for prefix, values in zip(prefixes, others, strict=True)
    ]
    first = {name: one for name, one in tensors.items() if not name.startswith(tuple(prefixes))}
    own = set(others[0])
    common_plain = {name: value for name, value in plain.items() if name not in own and name != WORKERS}
    common = common_plain, {name: one for name, one in first.items() if _head(name) not in own}
    worker_0 = {name: plain[name] for name in own}, {name: one for name, one in first.items() if _head(name) in own}
    return common, [worker_0, *each]


def merged(state: State) -> State:
    """Pure: one state for workers of another number: the mean of weights, and the first worker's optimiser."""
    (plain, tensors), states = taken_apart(state)
    if not states:
        return state
    (own_plain, own), *others = states
    found = dict(own)
    for name, tensor in own.items():
        same = [held[name] for _, held in others if name in held and held[name].shape == tensor.shape]
        if _head(name) in AVERAGED and tensor.is_floating_point() and len(same) == len(others):
            found[name] = torch.stack([one.double() for one in (tensor, *same)]).mean(0).to(tensor.dtype)
    return {**plain, **own_plain, MERGED: len(states)}, {**tensors, **found}


def _prefix(number: int) -> str:
    return f"worker-{number}/"


def _head(name: str) -> str:
    return name.partition(".")[0].rstrip("'")


def _send(comm: Communicator, parcel: Tensor, rank: int) -> None:
    comm.send(torch.tensor([parcel.numel()], device=comm.device), rank)
    comm.send(parcel.to(comm.device), rank)


def _received(comm: Communicator, rank: int) -> State:
    length = torch.zeros(1, dtype=torch.int64, device=comm.device)
    comm.recv(length, rank)
    parcel = torch.empty(int(length), dtype=torch.uint8, device=comm.device)
    comm.recv(parcel, rank)
    return _unwrapped(parcel.cpu())


def _wrapped(state: State) -> Tensor:
    """Local: the length of a description, the description, and the tensors, each on a boundary of its own."""
    plain, tensors = state
    shapes = [(name, str(one.dtype).removeprefix("torch."), list(one.shape)) for name, one in tensors.items()]
    words = json.dumps([plain, shapes]).encode()
    described = torch.frombuffer(bytearray(len(words).to_bytes(LENGTH_BYTES, "little") + words), dtype=torch.uint8)
    parcel = torch.zeros(_rounded(described.numel()) + sum(_rounded(one.nbytes) for one in tensors.values()), dtype=torch.uint8)
    parcel[: described.numel()] = described
    place = _rounded(described.numel())
    for tensor in tensors.values():
        parcel[place : place + tensor.nbytes] = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        place += _rounded(tensor.nbytes)
    return parcel


def _unwrapped(parcel: Tensor) -> State:
    num_words = int.from_bytes(bytes(parcel[:LENGTH_BYTES].tolist()), "little")
    plain, shapes = json.loads(bytes(parcel[LENGTH_BYTES : LENGTH_BYTES + num_words].numpy()))
    place = _rounded(LENGTH_BYTES + num_words)
    tensors = {}
    for name, dtype, shape in shapes:
        kind = getattr(torch, dtype)
        length = torch.Size(shape).numel() * kind.itemsize
        tensors[name] = parcel[place : place + length].view(kind).view(shape)
        place = _rounded(place + length)
    return plain, tensors


def _rounded(place: int) -> int:
    return place + -place % ALIGN_BYTES
