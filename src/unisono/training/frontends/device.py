"""On which device a worker computes: that of its communicator, or by wish a GPU that it shares with others."""

from __future__ import annotations

import re

import torch

from unisono.comm.base import Communicator
from unisono.errors import UsageError


def compute_device(asked: str, comm: Communicator, in_shards: bool) -> torch.device:
    """Local: `asked` is auto, cpu, cuda or cuda:1. Refuses what is not there, or what cannot be reduced there."""
    if asked == "auto":
        return comm.device
    if not re.fullmatch(r"cpu|cuda(:\d+)?", asked):
        raise UsageError(f"--device must be auto, cpu, cuda or cuda:NUMBER; received {asked!r}")
    if asked == "cpu" or comm.device.type == "cuda":
        if torch.device(asked).type != comm.device.type:
            raise UsageError(f"--device {asked} cannot be used with engine {comm.engine}, which is for GPUs; give --engine too")
        return comm.device
    if not torch.cuda.is_available():
        raise UsageError(f"--device {asked}: PyTorch finds no GPU here; install its CUDA build, or leave --device out")
    if not in_shards:
        raise UsageError(
            f"--device {asked} with engine {comm.engine}: only trainings in shards (--shards) are reduced through the host's "
            "memory; leave --device out, and with one process for each GPU they are used through NCCL"
        )
    return torch.device("cuda", torch.device(asked).index or 0)
