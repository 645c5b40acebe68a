"""Metrics of TorchMetrics that a LightningModule holds: their states are gathered by our communicator, so that they are of all
workers' samples wherever `compute` is called. They are recognised by their attributes, so that the package is not needed."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from unisono.comm.base import Communicator


def share_metrics(model: nn.Module, comm: Communicator) -> None:
    """Local: makes `compute` of the metrics in a model collective and blocking."""
    if comm.size == 1:
        return
    for module in model.modules():
        if hasattr(module, "dist_sync_fn") and hasattr(module, "distributed_available_fn"):
            for name, value in (("dist_sync_fn", partial(of_all, comm)), ("distributed_available_fn", lambda: True)):
                setattr(module, name, value)


def of_all(comm: Communicator, tensor: Tensor, group: Any = None) -> list[Tensor]:  # noqa: ARG001 - TorchMetrics names one
    """Collective, blocking: returns the tensors of all ranks. Their lengths may differ; an empty one takes the type of the
    others."""
    known = comm.allgather_object([list(tensor.shape), str(tensor.dtype).removeprefix("torch.")])
    shape, kind = next((one for one in known if prod(one[0])), known[0])
    dtype: torch.dtype = getattr(torch, kind)
    shapes = [tuple(own) if prod(own) else (0, *shape[1:]) for own, _ in known] if prod(shape) else [tuple(own) for own, _ in known]
    counts = [prod(one) * dtype.itemsize for one in shapes]
    everyone = torch.empty(sum(counts), dtype=torch.uint8, device=comm.device)
    if len(everyone):
        mine = tensor.detach().to(comm.device, dtype).contiguous().reshape(-1).view(torch.uint8)
        comm.allgather(everyone, mine, counts)
    return [part.view(dtype).view(own) for part, own in zip(torch.split(everyone, counts), shapes, strict=True)]
