"""Makes replicas equal: every rank receives the tensors of rank 0."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from unisono.comm.base import Communicator
from unisono.comm.calls import DTYPES


def replicate(comm: Communicator, tensors: Iterable[Tensor]) -> None:
    """Collective, blocking: sets these tensors to the values of rank 0; any type (masks, complex numbers) and order of axes is
    possible."""
    if comm.size == 1:
        return
    targets = [tensor.detach() for tensor in tensors if tensor.numel()]
    dense = [tensor.to(comm.device).contiguous() for tensor in targets]
    comm.broadcast([one if one.dtype in DTYPES else one.reshape(-1).view(torch.uint8) for one in dense])
    for target, sent in zip(targets, dense, strict=True):
        if sent is not target:  # e.g. a frozen weight in channels-last order, or on a GPU that several ranks share
            target.copy_(sent)
