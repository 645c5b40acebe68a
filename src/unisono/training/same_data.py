"""Refuses workers that hold different data or settings: each takes its part of one common order, so samples that a worker has
elsewhere, or in another order, would be left out, or be both learnt from and tested on."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from unisono.comm.base import MAX, Communicator
from unisono.comm.on_all_ranks import on_all_ranks
from unisono.data.data_differences import REMEDY, Fingerprint, describe_other_data
from unisono.data.fingerprint import fingerprints
from unisono.data.source import Source
from unisono.errors import UsageError
from unisono.training.run_folder.run_directory import as_json, differences


def expect_same_data(comm: Communicator, parts: Mapping[str, Source]) -> dict[str, Fingerprint]:
    """Collective, blocking for some reads: refuses parts of the data that are not the same on all ranks, in the same order.
    Returns their fingerprints."""
    mine = on_all_ranks(comm, lambda: fingerprints(parts))
    expect_same_fingerprints(comm, mine)
    return mine


def expect_same_fingerprints(comm: Communicator, mine: Mapping[str, Fingerprint]) -> None:
    """Collective, blocking: refuses fingerprints that are not the same on all ranks; one small all-reduce where they are."""

    def refusal(first: Any, other: Any, rank: int) -> str:
        found = describe_other_data(first, other)
        return f"the workers hold different data: rank {rank} differs from rank 0 in {found}; {REMEDY}" if found else ""

    _expect_same(comm, mine, refusal)


def expect_same_settings(comm: Communicator, mine: Mapping[str, Any]) -> None:
    """Collective, blocking: refuses settings, by their names, that are not the same on all ranks, e.g. a seed that a task computes
    from its rank; one small all-reduce where they are."""

    def refusal(first: Any, other: Any, rank: int) -> str:
        found = next(differences(first, other, words=("on rank 0", f"on rank {rank}")), "")
        return f"the workers have different settings: {found}; give all workers the same, whatever their rank" if found else ""

    _expect_same(comm, as_json(mine), refusal)


def _expect_same(comm: Communicator, mine: Any, refusal: Callable[[Any, Any, int], str]) -> None:
    """Collective, blocking: refuses plain values that are not the same on all ranks. `refusal` says how those of a rank differ from
    those of rank 0; empty where it does not matter."""
    if comm.size == 1:
        return
    number = zlib.crc32(json.dumps(mine, sort_keys=True).encode())
    both = torch.tensor([number, -number], dtype=torch.int64, device=comm.device)
    comm.allreduce(both, MAX)
    if int(both[0]) == -int(both[1]):
        return
    first, *others = comm.allgather_object(mine)
    refusals = [why for rank, other in enumerate(others, 1) if (why := refusal(first, other, rank))]
    on_all_ranks(comm, lambda: _refuse(refusals[0]) if refusals and comm.rank == 0 else None)


def _refuse(why: str) -> None:
    raise UsageError(why)
