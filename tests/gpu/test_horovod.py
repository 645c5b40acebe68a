"""The Horovod front with tensors of a GPU: two ranks share it, as tensors pass through the host."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from unisono.testing.ranks import run_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="PyTorch sees no GPU; run on a machine with an NVIDIA GPU and a CUDA build of PyTorch: pytest -m gpu",
    ),
]

PROGRAM = Path(__file__).parents[1] / "ranks" / "programs" / "horovod_cuda.py"


@pytest.mark.parametrize("size", [1, 2])
def test_tensors_of_a_gpu(size: int) -> None:
    ended = run_ranks([str(PROGRAM)], size, "shm" if size > 1 else "single", 100.0)
    assert ended.exit_code == 0, str(ended)
    assert ended.output.count(": ok") == 4 * size, str(ended)
