"""What `bench.gpu` trains: networks, batches and random images of bytes, the same for everybody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import nn

SEED = 20
NUM_TOLD_APART = 64
"""Patterns; with more classes several share one."""
CHUNK = 20_000


@dataclass(frozen=True)
class Case:
    """One training."""

    name: str
    about: str
    network: str
    shape: tuple[int, int, int]
    """Of one image: channels, height, width."""
    num_classes: int
    batch: int
    num_samples: int
    lr: float = 0.01
    momentum: float = 0.9
    reach: float = 0.0
    """Samples a second that the loop by hand must reach, or the row does not count."""
    least: float = 0.0
    """Samples a second that Unisono must reach; 0 where it is judged against others."""
    layouts: tuple[str, ...] = ("last", "first")
    """Where channels lie in the memory of the loop by hand, which takes the faster; of other loops by hand the last of these."""
    is_streamed: bool = False
    """Whether Unisono's images stay in the memory of the host."""
    most_us: float = 0.0
    """Microseconds that a step of Unisono may take, where that is asked."""

    def small(self) -> Case:
        """Pure: the same on a CPU in seconds."""
        side = 12 if self.network != "resnet50" else 32
        return replace(self, shape=(self.shape[0], side, side), batch=min(self.batch, 8), num_samples=64, layouts=self.layouts[-1:])


def _sat6(batch: int, reach: float) -> Case:
    return Case(
        name=f"sat6-{batch}",
        about=f"two 3x3 convolutions of 32 and 64 channels, each with ReLU and 2x2 max-pool, dense 128, dropout 0.25, 6 classes; "
        f"400,000 images of 4 x 28 x 28 bytes; batch {batch:,}",
        network="cnn",
        shape=(4, 28, 28),
        num_classes=6,
        batch=batch,
        num_samples=400_000,
        reach=reach,
    )


RESNET = Case(
    name="resnet50",
    about="ResNet-50 (version 1.5), 1,000 classes; 40,960 images of 3 x 224 x 224 bytes, which lie on the GPU; batch 256",
    network="resnet50",
    shape=(3, 224, 224),
    num_classes=1000,
    batch=256,
    num_samples=40_960,
    reach=6700.0,
    least=0.95 * 6700,
    layouts=("last",),
)
STREAMED = replace(
    RESNET,
    name="resnet50-streamed",
    about="the same, but Unisono's images come from the memory of the host: its source says that it is larger than any "
    "GPU; those of `by hand, captured and compiled` and `by hand, eager` lie on the GPU",
    least=0.9 * 6700,
    is_streamed=True,
)
HOST = Case(
    name="host",
    about="one dense layer on 4 x 28 x 28 bytes, batch 64: next to nothing for the GPU, so a step takes as long as the host needs",
    network="dense",
    shape=(4, 28, 28),
    num_classes=6,
    batch=64,
    num_samples=400_000,
    layouts=("first",),
    most_us=120.0,
)
CASES: Mapping[str, Case] = {
    case.name: case for case in (_sat6(64, 230e3), _sat6(256, 520e3), _sat6(4096, 860e3), HOST, RESNET, STREAMED)
}
ENDLESS = 2_000_000
"""Images that the source of `resnet50-streamed` says it has: 300 GB."""


def make_data(case: Case) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Pure: a pattern for each class and as much noise, so that there is something to learn."""
    source = np.random.default_rng(SEED)
    patterns = source.integers(0, 128, (min(case.num_classes, NUM_TOLD_APART), *case.shape), dtype=np.uint8)
    targets = source.integers(0, case.num_classes, case.num_samples)
    inputs = np.empty((case.num_samples, *case.shape), np.uint8)
    for first in range(0, case.num_samples, CHUNK):
        chunk = inputs[first : first + CHUNK]
        chunk[:] = source.integers(0, 128, chunk.shape, dtype=np.uint8)
        chunk += patterns[targets[first : first + CHUNK] % len(patterns)]
    return inputs, targets


def make_network(case: Case) -> nn.Module:
    """Local: the same initial weights for everybody who makes it himself."""
    import torch
    from torch import nn

    from bench.resnet import ResNet50

    torch.manual_seed(SEED)
    channels, height, width = case.shape
    if case.network == "resnet50":
        return ResNet50(case.num_classes)
    if case.network == "dense":
        return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, case.num_classes))
    pooled = [((side - 2) // 2 - 2) // 2 for side in (height, width)]
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(64 * pooled[0] * pooled[1], 128), nn.ReLU(), nn.Dropout(0.25), nn.Linear(128, case.num_classes),
    )  # fmt: skip
