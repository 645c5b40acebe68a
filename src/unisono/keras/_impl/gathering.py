"""Gathers the outputs of all workers, in the order of their inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unisono.comm.base import Communicator
from unisono.data.tree import leaves, map_tree


def rows_of_all(comm: Communicator, batches: list[Any]) -> Any:
    """Collective, blocking: gathers the rows of all workers one after the other, as Keras returns them; a worker may have none."""
    kinds = comm.allgather_object([map_tree(_dtype_and_shape, batches[0])] if batches else [])
    nesting = next(one[0] for one in kinds if one)
    places = [place for place, _ in leaves(nesting)]
    mine = [dict(leaves(batch)) for batch in batches]
    gathered = {place: _gather_leaf(comm, [batch[place] for batch in mine], kind) for place, kind in leaves(nesting)}
    ordered = iter([gathered[place] for place in places])
    return _with_lists(map_tree(lambda _: next(ordered), nesting))


def _gather_leaf(comm: Communicator, parts: list[Tensor], kind: str) -> Any:
    """Returns the rows of all workers, in order of ranks, on the host; `kind` tells their dtype and shape. Collective, blocking."""
    dtype, *lengths = kind.split()
    shape = [int(length) for length in lengths]
    mine = torch.cat(parts) if parts else torch.empty(0, *shape, dtype=getattr(torch, dtype))
    counts = comm.allgather_object(mine.numel())
    out = torch.empty(sum(counts), dtype=mine.dtype, device=comm.device)
    comm.allgather(out, mine.reshape(-1).contiguous().to(comm.device), counts)
    return out.cpu().numpy().reshape(-1, *shape)


def _dtype_and_shape(output: Tensor) -> str:
    """Returns dtype and shape of a row as text, e.g. "float32 10"."""
    return " ".join((str(output.dtype).removeprefix("torch."), *map(str, output.shape[1:])))


def _with_lists(tree: Any) -> Any:
    """Converts tuples to lists, which Keras uses for several outputs."""
    return list(tree) if isinstance(tree, tuple) else tree
