"""The device on which a worker computes: that of its communicator, or on request a GPU that it shares with others."""

from __future__ import annotations

import re

import torch

from unisono.comm.base import Communicator
from unisono.errors import UsageError


def compute_device(requested: str, comm: Communicator, in_shards: bool) -> torch.device:
    """Local: the device for `requested`, which is auto, cpu, cuda or cuda:1. Refuses a device that does not exist or on which the
    engine cannot reduce."""
    if requested == "auto":
        return comm.device
    if not re.fullmatch(r"cpu|cuda(:\d+)?", requested):
        raise UsageError(f"--device must be auto, cpu, cuda or cuda:NUMBER; received {requested!r}")
    if requested == "cpu" or comm.device.type == "cuda":
        if torch.device(requested).type != comm.device.type:
            raise UsageError(
                f"--device {requested} cannot be used with engine {comm.engine}, which is for GPUs; leave --device out, or give "
                "another --engine, e.g. gloo"
            )
        return comm.device
    if not torch.cuda.is_available():
        raise UsageError(f"--device {requested}: PyTorch finds no GPU here; install its CUDA build, or leave --device out")
    if not in_shards:
        raise UsageError(
            f"--device {requested} works with engine {comm.engine} only in shards (--shards); leave --device out, and start one "
            "process for each GPU, so that NCCL is used"
        )
    return torch.device("cuda", torch.device(requested).index or 0)
