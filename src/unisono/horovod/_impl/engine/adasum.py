"""Adasum: the sum of gradients that are orthogonal, the mean of those that are parallel, and what lies between. Local, pure.

    a + b  ->  a (1 - a.b / (2 |a|^2))  +  b (1 - a.b / (2 |b|^2))

(Maleki et al., Scaling distributed training with adaptive summation, MLSys 2021.) The ranks are combined as a tree: neighbours
first, then pairs of neighbours. Where the number of ranks is not a power of two, the last one of a level goes up unpaired. Each
tensor has its own products, in float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def adasum(parts: Sequence[Tensor]) -> Tensor:
    """Returns the Adasum of the tensors of all ranks, given in the order of ranks."""
    level = [part.to(torch.float64) for part in parts]
    while len(level) > 1:
        pairs = [combine(first, second) for first, second in zip(level[::2], level[1::2], strict=False)]
        level = [*pairs, level[-1]] if len(level) % 2 else pairs
    return level[0].to(parts[0].dtype)


def combine(first: Tensor, second: Tensor) -> Tensor:
    """Returns the Adasum of two vectors; a vector of zeros leaves the other as it is."""
    dot = torch.dot(first, second)
    lengths = torch.dot(first, first), torch.dot(second, second)
    shares = [1.0 - dot / (2.0 * length) if length else 1.0 for length in lengths]
    return first * shares[0] + second * shares[1]
