"""What all ranks of a set have agreed to do next: one named operation, or its refusal. Pure."""

from __future__ import annotations

from collections.abc import Collection, Hashable

from unisono.horovod._impl.engine.operation_request import (
    ALLGATHER,
    ALLREDUCE,
    BARRIER,
    BROADCAST,
    JOIN,
    REDUCESCATTER,
    ReduceOp,
    Request,
)


class Agreement:
    """One agreed operation, the same on all ranks of the set; immutable."""

    __slots__ = ("error", "first", "fusion_key", "joined", "last_joined", "name", "num_bytes", "requests")

    def __init__(
        self,
        requests: tuple[Request | None, ...],
        error: str | None = None,
        last_joined: int | None = None,
        joined: Collection[int] = (),
    ) -> None:
        self.requests = requests
        """By rank of the set; None for a rank that has joined and takes part with zeros."""
        self.error = error
        self.joined = frozenset(joined)
        """The ranks of the set that have joined, and so need not have submitted it."""
        self.last_joined = last_joined
        """Of a join that is complete: the rank of the set that came last."""
        self.first = next(request for request in requests if request is not None)
        """The request of the first rank that made one: what must be alike is alike in all of them."""
        self.name = self.first.name
        self.fusion_key = None if error is not None else _fusion_key(self.first)
        """What agreements that travel together have in common; None for one that travels alone."""
        gathered = [request.num_bytes for request in requests if request is not None]
        self.num_bytes = sum(gathered) if self.first.kind == ALLGATHER else gathered[0]
        """Of the buffer that it needs."""


def _fusion_key(request: Request) -> Hashable:
    """Returns what operations must have in common to be carried out together; None for one that is carried out alone."""
    dtypes = {dtype for dtype, _ in request.parts}
    if request.kind in (ALLREDUCE, REDUCESCATTER) and len(dtypes) == 1:
        return request.kind, request.op, request.prescale, request.postscale, *dtypes
    if request.kind == BROADCAST:
        return request.kind, request.root
    return request.kind if request.kind == ALLGATHER else None


WITHOUT_JOINED = (ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT)
"""Reductions that the zeros of a joined rank would falsify."""


def reason_against_joined(request: Request, joined: str) -> str | None:
    """Returns why an operation cannot be done while these ranks have joined; None if it can."""
    if request.kind in (BARRIER, JOIN) or (request.kind == ALLREDUCE and request.op not in WITHOUT_JOINED):
        return None
    what = request.kind if request.kind != ALLREDUCE else f"allreduce with {ReduceOp(request.op).name.lower()}"
    return (
        f"{request.name}: {what} is not possible after {joined} called join(), as it needs data from every rank; call it before "
        "any rank joins, or use an allreduce with sum or average, to which joined ranks add zeros"
    )
