"""Wire formats: a sum of float vectors that travels in half the bytes.

    x_r -> wire type;  slice s of everybody to member s;  sum in float32, in rank order;  -> wire type;  to everybody

Each member sends 2 (N - 1) / N of the vector, in 2 bytes an element. Every value is rounded twice (u is 2^-8 for bf16,
2^-11 for fp16), and each slice is finished by one member, so all members end with the same bits:

    |result - sum| <= u sum |x_r| + u |sum|   (+ the float32 sum's own error, and for fp16 2^-25 for each rounding)

What does not fit is not hidden: beyond 65504 fp16 gives infinity, for an addend and for the sum, and infinities of both signs
give NaN; below 2^-25 fp16 gives zero (scale the loss). bf16 has the range of float32. A group of one sends nothing and rounds
nothing. The engine's own alltoall and allgather move the bytes, whichever all-reduce algorithm was chosen.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from unisono.comm.arithmetic import reduced
from unisono.comm.base import SUM, Call, Communicator, Watch, even_slices
from unisono.comm.driver import Work
from unisono.errors import UsageError

WIRES: Mapping[str, torch.dtype | None] = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Names that users type."""


def allreduce_as(comm: Communicator, buf: Tensor, wire: str) -> None:
    """Collective, blocking: sum `buf` over the members, in place, in the wire format."""
    dtype = _checked_wire(buf, wire)
    if dtype is None or comm.size == 1:
        comm.allreduce(buf)
        return
    (flat,) = comm._checked(buf)
    comm._run(Call("allreduce_as", (flat,), wire), lambda watch: _reduce(comm, flat, dtype, watch))


def start_allreduce_as(comm: Communicator, buf: Tensor, wire: str) -> Work[None]:
    """Collective, not blocking: as `allreduce_as`; the buffer belongs to the communicator until `wait` returns."""
    dtype = _checked_wire(buf, wire)
    if dtype is None or comm.size == 1:
        return comm.start_allreduce(buf)
    (flat,) = comm._checked(buf)
    return comm._start(Call("allreduce_as", (flat,), wire), lambda watch: _reduce(comm, flat, dtype, watch))


def _reduce(comm: Communicator, flat: Tensor, dtype: torch.dtype, watch: Watch) -> None:
    counts = [part.stop - part.start for part in even_slices(flat.numel(), comm.size)]
    mine = counts[comm.rank]
    outgoing = comm.empty(flat.numel(), dtype)
    outgoing.copy_(flat)
    incoming = comm.empty(comm.size * mine, dtype)
    comm._alltoall(incoming, outgoing, [mine] * comm.size, counts, watch)
    total = reduced(incoming.view(comm.size, mine).unbind(), SUM)
    comm._allgather(outgoing, total, counts, watch)
    flat.copy_(outgoing)


def _checked_wire(buf: Tensor, wire: str) -> torch.dtype | None:
    if wire not in WIRES:
        raise UsageError(f"wire format (wire) must be one of {', '.join(WIRES)}; received {wire!r}")
    dtype = WIRES[wire]
    if dtype is not None and buf.dtype not in (torch.float32, torch.float64):
        raise UsageError(
            f"wire format {wire} (wire) carries float32 and float64, but the buffer has type {buf.dtype}; use wire none"
        )
    return dtype
