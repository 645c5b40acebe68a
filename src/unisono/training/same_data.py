"""Refuses workers that hold different data: each takes its part of one common order, so samples that a worker has elsewhere would
be left out, or be both learnt from and tested on."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping

import torch

from unisono.comm.base import MAX, Communicator
from unisono.comm.on_all_ranks import on_all_ranks
from unisono.data.data_differences import REMEDY, Fingerprint, describe_other_data
from unisono.data.fingerprint import fingerprints
from unisono.data.source import Source
from unisono.errors import UsageError


def expect_same_data(comm: Communicator, parts: Mapping[str, Source]) -> dict[str, Fingerprint]:
    """Collective, blocking for some reads: refuses parts of the data that are not the same on all ranks, in the same order.
    Returns their fingerprints."""
    mine = on_all_ranks(comm, lambda: fingerprints(parts))
    expect_same_fingerprints(comm, mine)
    return mine


def expect_same_fingerprints(comm: Communicator, mine: Mapping[str, Fingerprint]) -> None:
    """Collective, blocking: refuses fingerprints that are not the same on all ranks; one small all-reduce where they are."""
    if comm.size == 1:
        return
    number = zlib.crc32(json.dumps(mine, sort_keys=True).encode())
    both = torch.tensor([number, -number], dtype=torch.int64, device=comm.device)
    comm.allreduce(both, MAX)
    if int(both[0]) == -int(both[1]):
        return
    first, *others = comm.allgather_object(mine)
    refusals = [
        f"the workers hold different data: rank {rank} differs from rank 0 in {found}; {REMEDY}"
        for rank, other in enumerate(others, 1)
        if (found := describe_other_data(first, other))
    ]
    on_all_ranks(comm, lambda: _refuse(refusals[0]) if refusals and comm.rank == 0 else None)


def _refuse(why: str) -> None:
    raise UsageError(why)
