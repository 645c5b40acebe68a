"""Pictures of the same shapes with random pixels."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

NUM_TRAIN, NUM_TEST = 75, 30


class Pictures(Dataset[tuple[Tensor, int]]):
    shape: Sequence[int] = (1, 28, 28)
    num_classes = 10

    def __init__(self, *_: Any, train: bool = True, transform: Callable[[Tensor], Tensor] | None = None, **__: Any) -> None:
        random = np.random.default_rng(int(train))
        num = int(os.environ.get("STAND_IN_SAMPLES", NUM_TRAIN)) if train else NUM_TEST
        self.pixels = random.random((num, *self.shape))
        self.targets = torch.from_numpy(random.permutation(num) % self.num_classes)  # every class is there
        self.transform = transform

    @property
    def data(self) -> Tensor:
        """Bytes without a channel, as MNIST has them."""
        return torch.from_numpy((self.pixels[:, 0] * 255).astype(np.uint8))

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        picture = torch.from_numpy(self.pixels[number]).to(torch.get_default_dtype())
        return (picture if self.transform is None else self.transform(picture)), int(self.targets[number])


MNIST = FashionMNIST = Pictures


class FakeData(Pictures):
    def __init__(self, image_size: Sequence[int], transform: Any = None) -> None:
        self.shape = image_size
        super().__init__(transform=transform)


class ImageFolder(Pictures):
    shape, num_classes = (3, 16, 16), 2
