"""A vector cut into tensors of equal length, as the parameters of a model are many."""

from __future__ import annotations

import torch

from bench.ranks.reducing import Floats


def cut(numel: int, num_tensors: int) -> tuple[list[torch.Tensor], Floats]:
    """Local: the tensors, and the memory of all of them as one array."""
    whole = torch.empty(numel)
    return list(torch.split(whole, numel // num_tensors)), whole.numpy()
