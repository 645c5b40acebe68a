"""Checks of sums over shards in a fixed order: the bits of a plain recursive sum, whatever the division and the kind of buffer."""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from unisono.comm.base import Communicator
from unisono.comm.ordered.ordered_sum import OrderedSum
from unisono.testing.checks.expected import Array, expect

NUM_STEPS = 3
"""The first takes memory, the others use it again; in the last one the vectors lie elsewhere."""
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
LARGE_NUMEL = 150_001
"""So many float32 are longer than what is gathered at once, and make several pieces of work."""
_PERIOD = 10_007

Kind = tuple[int, torch.dtype]
"""A vector: its length and type."""


def check_ordered_sum_of_every_type_and_size(comm: Communicator) -> None:
    """The ordered sum has the bits of its definition, for every float type, many sizes, plain and mapped."""
    kinds = [(numel, dtype) for numel in (0, 1, 3, 30, 4097) for dtype in FLOATS]
    for num_shards in (comm.size, 2 * comm.size + 3):
        for mapped in ((), range(len(kinds))):
            _sum_once(comm, even_ranges(num_shards, comm.size), kinds, mapped)


def check_ordered_sum_of_every_division(comm: Communicator) -> None:
    """The bits do not depend on how many shards there are on which rank."""
    kinds = [(7, torch.float32), (30, torch.float64)]
    for num_shards in (*range(comm.size, comm.size + 10), 16, 33):
        for ranges in (even_ranges(num_shards, comm.size), lopsided_ranges(num_shards, comm.size)):
            _sum_once(comm, ranges, kinds, mapped=(0,))


def check_ordered_sum_of_large_vectors(comm: Communicator) -> None:
    """The same for large vectors, which are mapped on some ranks only."""
    kinds = [(LARGE_NUMEL, torch.float32), (30, torch.float64), (LARGE_NUMEL, torch.bfloat16)]
    mapped_on_some_ranks = (0, 1, 2) if comm.rank % 2 == 0 else (1,)
    for num_shards in (comm.size, comm.size + 1, 4 * comm.size):
        for ranges in (even_ranges(num_shards, comm.size), lopsided_ranges(num_shards, comm.size)):
            _sum_once(comm, ranges, kinds, mapped_on_some_ranks)


def even_ranges(num_shards: int, size: int) -> list[range]:
    """Returns the range of shards of each rank, with numbers that differ by at most one."""
    return [range(*ends) for ends in pairwise(num_shards * rank // size for rank in range(size + 1))]


def lopsided_ranges(num_shards: int, size: int) -> list[range]:
    """Ranges of shards where each rank has one and rank 0 has all that are left."""
    rest = num_shards - size + 1
    return [range(rest), *(range(shard, shard + 1) for shard in range(rest, num_shards))]


def shard_values(shard: int, kind: Kind, salt: int = 0) -> Tensor:
    """The values of a shard: of very different magnitudes and both signs, so that another order of summation gives other bits."""
    numel, dtype = kind
    period = np.roll(_random_period(), shard * 613 + salt * 101)
    return torch.from_numpy(np.tile(period, -(-numel // _PERIOD))[:numel]).to(dtype)


def recursive_sum(values: Sequence[Tensor]) -> Tensor:
    """The sum by definition: of n > 1 shards, the sum of the first k, the largest power of two below n, plus that of the rest."""
    if len(values) == 1:
        return values[0]
    power = 1
    while 2 * power < len(values):
        power *= 2
    left, right = recursive_sum(values[:power]), recursive_sum(values[power:])
    if left.dtype == torch.bfloat16:  # which NumPy lacks
        return left + right
    with np.errstate(all="ignore"):
        return torch.from_numpy(np.add(left.numpy(), right.numpy()))


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same dtype and the same bits."""
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[one.itemsize]
    return one.dtype == other.dtype and torch.equal(one.cpu().view(whole), other.cpu().view(whole))


def _sum_once(comm: Communicator, ranges: Sequence[range], kinds: Sequence[Kind], mapped: Container[int]) -> None:
    """Sums shards in order, those of `ranges[r]` on rank r, and checks the bits. `mapped`: which vectors come from `comm.empty`."""

    def new_vectors() -> list[Tensor]:
        return [
            comm.empty(numel, dtype) if place in mapped else torch.empty(numel, dtype=dtype, device=comm.device)
            for place, (numel, dtype) in enumerate(kinds)
        ]

    total, vectors, num_shards = OrderedSum(comm, ranges), new_vectors(), ranges[-1].stop
    for step in range(NUM_STEPS):
        if step == NUM_STEPS - 1:
            vectors = new_vectors()
        for shard in ranges[comm.rank]:
            for vector, kind in zip(vectors, kinds, strict=True):
                vector.copy_(shard_values(shard, kind, step))
            total.add(vectors)
        total.finish()
        for vector, kind in zip(vectors, kinds, strict=True):
            wanted = recursive_sum([shard_values(shard, kind, step) for shard in range(num_shards)])
            shown = f"{kind[1]}[{kind[0]}] over shards {', '.join(f'{own.start}-{own.stop - 1}' for own in ranges)}"
            expect(same_bits(vector, wanted), f"step {step}: the ordered sum of {shown} has other bits than the recursive one")


@cache
def _random_period() -> Array:
    """Returns random numbers of both signs and very different magnitudes, which `shard_values` repeats."""
    draw = np.random.default_rng(7)
    return np.asarray(draw.standard_normal(_PERIOD) * 10.0 ** draw.uniform(-3, 3, _PERIOD))
