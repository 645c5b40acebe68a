"""Two ranks of a Horovod program under srun; rank 1 waits until the file GO exists, rank 0 first shows the public variables."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import unisono.horovod.torch as hvd

GO, PUBLIC = map(Path, sys.argv[1:])

if os.environ["SLURM_PROCID"] == "0":
    draft = PUBLIC.with_suffix(".draft")
    draft.write_text(json.dumps({name: value for name, value in os.environ.items() if name.startswith("SLURM")}))
    draft.rename(PUBLIC)
else:
    while not GO.exists():
        time.sleep(0.05)
hvd.init()
print("objects", hvd.allgather_object(hvd.rank()), flush=True)
