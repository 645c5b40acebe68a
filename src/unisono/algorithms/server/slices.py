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
"""What the other servers get of a vector that is the first one's alone: the state of a worker."""


@dataclass(frozen=True)
class Cut:
    """Where each server's slice of the weights begins and ends."""

    bounds: tuple[int, ...]

    @classmethod
    def of(cls, values: Tensor, num_servers: int) -> Cut:
        """Pure: slices that begin on the boundaries on which tensors do, so that copies of them are quick."""
        step = ALIGN_BYTES // values.dtype.itemsize
        num_blocks = -(-values.numel() // step)
        if num_blocks < num_servers:
            raise UsageError(
                f"the model has {values.numel()} numbers, too few for {num_servers} servers (--servers); use at most {num_blocks}"
            )
        return cls((*(num_blocks * server // num_servers * step for server in range(num_servers)), values.numel()))

    @property
    def num_servers(self) -> int:
        return len(self.bounds) - 1

    @property
    def numel(self) -> int:
        return self.bounds[-1]

    def where(self, server: int) -> slice:
        """Pure."""
        return slice(self.bounds[server], self.bounds[server + 1])

    def lengths(self, numel: int) -> list[int]:
        """Pure: of a vector with so many numbers, those beyond the weights included, what each server gets."""
        lengths = [after - before for before, after in zip(self.bounds, self.bounds[1:], strict=False)]
        return [lengths[0] + numel - self.numel, *lengths[1:]]

    def share(self, vector: Tensor, server: int) -> list[Tensor]:
        """Local: what a server gets of a vector, as views; what lies beyond the weights is the first one's too."""
        own = vector[self.where(server)]
        return [own] if server else [own, vector[self.numel :]]

    def joined(self, shares: Sequence[Tensor]) -> Tensor:
        """Local: the vector of which each server had a share."""
        first = self.bounds[1]
        return torch.cat([shares[0][:first], *shares[1:], shares[0][first:]])

    # ---- what is saved of a service ----------------------------------------------------------------------------------

    def share_of_state(self, state: Mapping[str, Any], server: int) -> dict[str, Any]:
        """Local: the part of a service's state with which a server resumes."""
        found = with_vectors(state, [torch.cat(self.share(vector, server)) for vector in vectors_in(state)])
        if server:
            for held in found["members"].values():
                held["worker"] = None if held["worker"] is None else NOTHING
        return found


def vectors_in(state: Mapping[str, Any]) -> list[Tensor]:
    """Pure: those of a service's state that are cut as the weights are, in an order that all servers share."""
    return [
        vector for held in state["members"].values() for vector in (*held["state"].values(), held["reply"]) if vector is not None
    ]


def with_vectors(state: Mapping[str, Any], vectors: Iterable[Tensor]) -> dict[str, Any]:
    """Pure: the same state with others in their places."""
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
    which all of them serve, so what it orders is mostly there already."""

    def __init__(self, callers: Sequence[Caller], cut: Cut, like: Tensor) -> None:
        self.number = callers[0].number
        self._callers = callers
        self._cut = cut
        self._buffers = [caller.empty(numel, like.dtype) for caller, numel in zip(callers, cut.lengths(like.numel()), strict=True)]
        self._joined = torch.empty(like.numel(), dtype=like.dtype)
        self._taken: list[Reply] = []

    def post(self, kind: int, vector: Tensor | None = None, tail: Sequence[float] | Numbers = ()) -> None:
        is_cut = vector is not None and vector.dtype == self._joined.dtype
        for server in reversed(range(self._cut.num_servers)):
            share = vector if server == 0 or vector is None else NOTHING
            if is_cut:
                assert vector is not None
                share = _fill(self._buffers[server], self._cut.share(vector, server))
            self._callers[server].post(kind, share, tail)

    def wait_reply(self, timeout_s: float | None = None) -> Reply:
        until = None if timeout_s is None else monotonic() + timeout_s
        while len(self._taken) < len(self._callers):
            caller = self._callers[len(self._taken)]
            self._taken.append(caller.wait_reply(None if until is None else max(0.0, until - monotonic())))
        replies, self._taken = self._taken, []
        first = replies[0]
        if any(reply.kind != first.kind for reply in replies):
            kinds = ", ".join(str(reply.kind) for reply in replies)
            raise CommError(f"the servers do not agree on what comes next: they said {kinds}")
        if first.vector is None or first.vector.dtype != self._joined.dtype:
            return first
        for server, reply in enumerate(replies):
            assert reply.vector is not None
            _spread(reply.vector, self._cut.share(self._joined, server))
        return first._replace(vector=self._joined)

    def close(self) -> None:
        for caller in self._callers:
            caller.close()


def _fill(buffer: Tensor, pieces: Sequence[Tensor]) -> Tensor:
    torch.cat(tuple(pieces), out=buffer)
    return buffer


def _spread(share: Tensor, places: Sequence[Tensor]) -> None:
    begin = 0
    for place in places:
        place.copy_(share[begin : begin + place.numel()])
        begin += place.numel()
