"""Many tensors in flight at once, summed by name, by ours or by Horovod itself: `... SOCKET GROUP MODULE NUM_TENSORS`."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch

from bench.ranks.many_tensors import cut
from bench.ranks.reducing import Reducing
from bench.ranks.seat import attend, version_of


def main() -> None:
    hvd: Any = importlib.import_module(sys.argv[3])
    num_tensors = int(sys.argv[4])
    hvd.init()

    def reduce(tensors: list[torch.Tensor]) -> None:
        handles = [hvd.allreduce_async_(tensor, name=f"t{number}", op=hvd.Sum) for number, tensor in enumerate(tensors)]
        for handle in handles:
            hvd.synchronize(handle)

    reducing = Reducing(hvd.rank(), hvd.size(), lambda numel: cut(numel, num_tensors), reduce)
    attend(hvd.rank(), hvd.size(), {"torch": torch.__version__, **version_of(sys.argv[3])}, reducing.actions())
    hvd.shutdown()


if __name__ == "__main__":
    main()
