"""The two engines of PyTorch's process groups: gloo between hosts, NCCL between GPUs."""

from __future__ import annotations

import torch
import torch.distributed

from unisono.comm.base import Communicator, Group
from unisono.comm.control_plane.control import Control
from unisono.comm.engines.gloo import GlooCommunicator
from unisono.comm.engines.nccl import NcclCommunicator
from unisono.comm.engines.torch_group import TorchCommunicator
from unisono.errors import UsageError


def open_torch(group: Group, control: Control, device: torch.device, time_limit_s: float, backend: str, host: str) -> Communicator:
    """Collective over `group`, blocking: opens the communicator. `host` is the address through which the others reach this
    process."""
    if not torch.distributed.is_available():
        raise UsageError(f"engine {backend} needs torch.distributed, which this build of PyTorch lacks; choose another --engine")
    kinds: dict[str, type[TorchCommunicator]] = {"gloo": GlooCommunicator, "nccl": NcclCommunicator}
    if backend not in kinds:
        raise UsageError(f"backend must be one of {', '.join(kinds)}; received {backend!r} (--engine)")
    if not hasattr(torch.distributed, {"gloo": "ProcessGroupGloo", "nccl": "ProcessGroupNCCL"}[backend]):
        raise UsageError(f"engine {backend} is not in this build of PyTorch ({torch.__version__}); choose another --engine")
    comm = kinds[backend](group, control, device, time_limit_s, host)
    comm.open()
    return comm
