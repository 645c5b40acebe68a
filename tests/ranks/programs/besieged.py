"""Two ranks that add up small tensors, open a file between two sums, and write down how far they are, until the file `go` exists.

Arguments: a folder for these files, and the engine (gloo)."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch

import unisono as un

FOLDER, ENGINE = Path(sys.argv[1]), (sys.argv[2:] or ["gloo"])[0]
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
with un.connect(engine=ENGINE, time_limit_s=60) as comm:
    part = comm.split(0, comm.rank)  # a second group, with ports of its own
    assert part is not None
    is_over, count = torch.zeros(1), 0
    while not is_over:
        count += 1
        value = torch.full((1000,), float(comm.rank + 1))
        for one in (comm, part):
            one.allreduce(value)
        assert value.tolist() == [6.0] * 1000
        draft = FOLDER / f".{comm.rank}"
        draft.write_text(str(count))
        draft.rename(FOLDER / f"count-{comm.rank}")
        is_over = torch.tensor([float((FOLDER / "go").exists())])
        comm.broadcast(is_over, 0)
    part.close()
print("sums were right")
