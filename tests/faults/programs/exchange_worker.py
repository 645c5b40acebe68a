"""A worker that calls until it must stop, and joins again if it was counted as dead. Arguments: connection file, and how it ends.

Each call carries its process number and how often it has joined.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from unisono.comm.exchange.base import UnknownWorker
from unisono.comm.exchange.zmq_caller import ZmqCaller

WORK, STOP = 1, 2
ENOUGH_S = 60.0


def main(connection_file: Path, end: str) -> None:
    caller = ZmqCaller(connection_file, say=print)
    caller.join(ENOUGH_S)
    num_joined = 1
    while True:
        try:
            reply = caller.call(WORK, torch.full((1000,), float(caller.number)), [os.getpid(), num_joined])
        except UnknownWorker:
            caller.join(ENOUGH_S)
            num_joined += 1
            continue
        if reply.kind == STOP:
            break
        assert reply.vector is not None
        assert torch.equal(reply.vector, torch.full((1000,), 2.0 * caller.number))
    if end == "raises":
        raise RuntimeError("without a goodbye")
    caller.close()
    print("said goodbye")


main(Path(sys.argv[1]), sys.argv[2])
