"""A rank of DeepSpeed's all-reduce through shared memory, the operator itself: `... SOCKET GROUP RANK SIZE SEGMENT`."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import torch

from bench.ranks.reducing import Floats, Reducing
from bench.ranks.slot import attend


def load() -> Any:
    """Local: DeepSpeed's operator, compiled when it is first asked for."""
    operator = importlib.import_module("deepspeed.comm.torch").build_shm_op()
    if operator is None:
        raise RuntimeError("DeepSpeed says that its shared-memory operator is not compatible with this machine")
    return operator


def main() -> None:
    rank, size, segment = int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5])
    operator = load()
    if operator.vector_kernel_level() < 1:
        raise RuntimeError("DeepSpeed's float32 reduction needs AVX2, which this CPU lacks")
    operator.initialize(size, rank)
    reduce = torch.ops.deepspeed.inference_all_reduce_
    reduce(torch.zeros(1))  # after this everybody has mapped everybody's segment, whose name DeepSpeed would leave behind
    segment.unlink(missing_ok=True)

    def allocate(numel: int) -> tuple[torch.Tensor, Floats]:
        buffer = torch.empty(numel)
        return buffer, buffer.numpy()

    versions = {"deepspeed": importlib.metadata.version("deepspeed"), "torch": torch.__version__}
    attend(rank, size, versions, Reducing(rank, size, allocate, reduce).actions())


if __name__ == "__main__":
    main()
