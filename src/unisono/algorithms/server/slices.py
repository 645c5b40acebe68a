"""Several servers (`--servers K`): which of them holds which of the weights, and how a worker talks to all of them as to one.

The vector of weights is cut into K slices of equal length, whatever tensors lie in it; running statistics are with the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from unisono.comm.exchange.base import Caller, Numbers, Reply
from unisono.errors import CommError, UsageError
from unisono.model.flat import ALIGN_BYTES

NOTHING = torch.empty(0, dtype=torch.uint8)
"""The part of the other servers of a vector that is for the first one only: the state of a worker."""


@dataclass(frozen=True)
class SliceLayout:
    """Where each server's slice of the vector of weights begins and ends."""

    bounds: tuple[int, ...]

    @classmethod
    def of(cls, values: Tensor, num_servers: int) -> SliceLayout:
        """Pure: the layout of `num_servers` slices of `values`. Slices begin on the boundaries on which tensors do, so copies of
        them are quick."""
        step = ALIGN_BYTES // values.dtype.itemsize
        num_blocks = -(-values.numel() // step)
        if num_blocks < num_servers:
            raise UsageError(
                f"the model has {values.numel()} numbers, too few for {num_servers} servers (--servers); use at most {num_blocks}"
            )
        return cls((*(num_blocks * server // num_servers * step for server in range(num_servers)), values.numel()))

    @property
    def num_servers(self) -> int:
        """Number of servers, each with one slice of the vector."""
        return len(self.bounds) - 1

    @property
    def numel(self) -> int:
        """Length of the whole vector."""
        return self.bounds[-1]

    def slice_of(self, server: int) -> slice:
        """Pure: the slice of the weights that a server holds."""
        return slice(self.bounds[server], self.bounds[server + 1])

    def lengths(self, numel: int) -> list[int]:
        """Pure: how many numbers each server gets of a vector of `numel` numbers, which may be longer than the weights."""
        lengths = [after - before for before, after in zip(self.bounds, self.bounds[1:], strict=False)]
        return [lengths[0] + numel - self.numel, *lengths[1:]]

    def part_of(self, vector: Tensor, server: int) -> list[Tensor]:
        """Local: views of what a server gets of a vector; the first server also gets what lies beyond the weights."""
        own = vector[self.slice_of(server)]
        return [own] if server else [own, vector[self.numel :]]

    def join(self, shares: Sequence[Tensor]) -> Tensor:
        """Local: the whole vector from the parts of all servers, in their order."""
        first = self.bounds[1]
        return torch.cat([shares[0][:first], *shares[1:], shares[0][first:]])

    # ---- what is saved of a service ----------------------------------------------------------------------------------

    def share_of_state(self, state: Mapping[str, Any], server: int) -> dict[str, Any]:
        """Local: the part of a service's state with which a server resumes."""
        found = with_vectors(state, [torch.cat(self.part_of(vector, server)) for vector in vectors_in(state)])
        if server:
            for held in found["members"].values():
                held["worker"] = None if held["worker"] is None else NOTHING
        return found


def vectors_in(state: Mapping[str, Any]) -> list[Tensor]:
    """Pure: the vectors of a service's state that are sliced as the weights are, in an order that is the same on all servers."""
    return [
        vector for held in state["members"].values() for vector in (*held["state"].values(), held["reply"]) if vector is not None
    ]


def with_vectors(state: Mapping[str, Any], vectors: Iterable[Tensor]) -> dict[str, Any]:
    """Pure: the same state with other vectors in the places of those that `vectors_in` gives."""
    left = iter(vectors)
    members = {
        number: {
            **held,
            "state": {name: next(left) for name in held["state"]},
            "reply": None if held["reply"] is None else next(left),
        }
        for number, held in state["members"].items()
    }
    return {**state, "members": members}


class SlicedCaller(Caller):
    """A worker's end towards all servers. Each gets the call with its slice of the vector, the first one last: it sets the order in
    which all of them serve, so the calls that it commands have mostly arrived already."""

    def __init__(self, callers: Sequence[Caller], slices: SliceLayout, like: Tensor) -> None:
        self.number = callers[0].number
        self._callers = callers
        self._slices = slices
        self._buffers = [
            caller.empty(numel, like.dtype) for caller, numel in zip(callers, slices.lengths(like.numel()), strict=True)
        ]
        self._joined = torch.empty(like.numel(), dtype=like.dtype)
        self._replies: list[Reply] = []

    def post(self, kind: int, vector: Tensor | None = None, tail: Sequence[float] | Numbers = ()) -> None:
        is_cut = vector is not None and vector.dtype == self._joined.dtype
        for server in reversed(range(self._slices.num_servers)):
            share = vector if server == 0 or vector is None else NOTHING
            if is_cut:
                assert vector is not None
                share = _concatenate_into(self._buffers[server], self._slices.part_of(vector, server))
            self._callers[server].post(kind, share, tail)

    def wait_reply(self, timeout_s: float | None = None) -> Reply:
        until = None if timeout_s is None else monotonic() + timeout_s
        while len(self._replies) < len(self._callers):
            caller = self._callers[len(self._replies)]
            self._replies.append(caller.wait_reply(None if until is None else max(0.0, until - monotonic())))
        replies, self._replies = self._replies, []
        first = replies[0]
        if any(reply.kind != first.kind for reply in replies):
            kinds = ", ".join(str(reply.kind) for reply in replies)
            raise CommError(f"the servers disagree on what a worker does next: they answered with kinds {kinds}")
        if first.vector is None or first.vector.dtype != self._joined.dtype:
            return first
        for server, reply in enumerate(replies):
            assert reply.vector is not None
            _copy_to_places(reply.vector, self._slices.part_of(self._joined, server))
        return first._replace(vector=self._joined)

    def close(self) -> None:
        for caller in self._callers:
            caller.close()


def _concatenate_into(buffer: Tensor, pieces: Sequence[Tensor]) -> Tensor:
    """Copies the pieces, one behind the other, into `buffer`, and returns it."""
    torch.cat(tuple(pieces), out=buffer)
    return buffer


def _copy_to_places(share: Tensor, places: Sequence[Tensor]) -> None:
    """Copies consecutive pieces of `share` to the places, each of its length."""
    begin = 0
    for place in places:
        place.copy_(share[begin : begin + place.numel()])
        begin += place.numel()
