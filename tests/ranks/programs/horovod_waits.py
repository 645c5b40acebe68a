"""Says where it stands and what it sums, then ends, or waits in an operation for ever."""

from __future__ import annotations

import os
import sys

import horovod.torch as hvd
import torch

hvd.init()
print(f"rank {hvd.rank()} of {hvd.size()}, local {hvd.local_rank()} of {hvd.local_size()}, pid {os.getpid()}", flush=True)
named = {name: int(os.environ[f"HOROVOD_{name.upper()}"]) for name in ("rank", "size", "local_rank", "local_size")}
assert named == {"rank": hvd.rank(), "size": hvd.size(), "local_rank": hvd.local_rank(), "local_size": hvd.local_size()}, named
for name in ("cross_rank", "cross_size"):
    assert os.environ.get(f"HOROVOD_{name.upper()}", str(getattr(hvd, name)())) == str(getattr(hvd, name)()), name
print(f"rank {hvd.rank()} sums {hvd.allreduce(torch.tensor([hvd.rank() + 1]), op=hvd.Sum).item()}", flush=True)
if sys.argv[1:] == ["waits"]:
    if hvd.rank() == 0:
        hvd.allreduce(torch.ones(1), name="of rank 0 alone")
    hvd.barrier()
