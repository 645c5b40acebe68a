"""Trains one small task in float64 and in float32, 52 steps each, as one rank of whatever group this process belongs to.

same_model.py OUT               one rank of the group that started it
same_model.py OUT THREADS       so many ranks as threads of this process
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import unisono as un
from unisono.comm.base import Communicator
from unisono.run import execute
from unisono.task.train_config import TrainConfig
from unisono.testing.thread_communicator import run_threads


class Net(nn.Module):
    """Convolution and dense layers, and a branch for few samples, so that some workers do not use it in some steps. No dropout:
    masks would depend on the workers."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 8, 3)
        self.dense = nn.Linear(8 * 6 * 6, 32)
        self.out = nn.Linear(32, 10)
        self.seldom = nn.Linear(32, 10)
        own = torch.Generator().manual_seed(3)  # ranks that are threads share the generator of the process
        for parameter in self.parameters():
            parameter.data.normal_(0, parameter[0].numel() ** -0.5 if parameter.dim() > 1 else 0.1, generator=own)
        self.to(getattr(torch, dtype))

    def forward(self, pixels: Tensor) -> Tensor:
        found = self.convolution(pixels.view(-1, 1, 8, 8)).relu().flatten(1)
        found = self.dense(found).relu()
        outputs: Tensor = self.out(found)
        rare = (pixels[:, 36] == 0).nonzero()[:, 0]
        return outputs.index_add(0, rare, self.seldom(found[rare])) if len(rare) else outputs


def data() -> un.Splits:
    return un.split(un.digits(), validation=0.1, test=0.2, how="stratified", seed=5)


def main(comm: Communicator, out: Path) -> None:
    """Collective."""
    task = un.Task(
        model=Net,
        data=data,
        loss="cross_entropy",
        metrics=("accuracy", "f1", "auc"),
        optimizer="adam",
        lr=0.003,
        schedule="cosine",
        clip_norm=1.0,
        global_batch=50,  # does not divide by 3, and the last batch of an epoch is short
        epochs=2,
        name="same_model",
    )
    for dtype in ("float64", "float32"):
        changes = {"model.dtype": dtype, "algorithm.bucket_mb": 0.02}  # several buckets travel during the backward pass
        execute(TrainConfig("", changes=changes, out=str(out / dtype)), comm, None, task)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 2:
        run_threads(int(sys.argv[2]), lambda comm: main(comm, Path(sys.argv[1])))
    else:
        with un.connect(quiet=True) as world:
            main(world, Path(sys.argv[1]))
