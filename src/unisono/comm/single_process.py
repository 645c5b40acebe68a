"""The communicator of a process that needs no other: one worker, or a part of a run that each process does by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from unisono.comm.calls import Group

if TYPE_CHECKING:
    from unisono.comm.base import Communicator


def single_process_communicator(device: torch.device | str = "cpu", time_limit_s: float = 600.0) -> Communicator:
    """Local: returns a communicator whose only member is this process."""
    from unisono.comm.engines.single import SingleCommunicator, SoloControl

    where = torch.empty(0, device=device).device  # "cuda" means one of several; which one, PyTorch says here
    return SingleCommunicator(Group("world", 0, (0,), (0,)), SoloControl(), where, time_limit_s)
