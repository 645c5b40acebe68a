"""ResNet-50 as it is trained today (version 1.5: the 3x3 convolution of a block has the stride), without torchvision."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Channels, blocks, stride of the first block."""
EXPANSION = 4


class Block(nn.Module):
    """Three convolutions and a way around them."""

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * channels
        self.reduce = _convolution(inputs, channels, 1)
        self.spatial = _convolution(channels, channels, 3, stride)
        self.expand = _convolution(channels, outputs, 1)
        self.around = _convolution(inputs, outputs, 1, stride) if stride > 1 or inputs != outputs else nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        inner = functional.relu(self.reduce(inputs), inplace=True)
        inner = functional.relu(self.spatial(inner), inplace=True)
        return functional.relu(self.expand(inner) + self.around(inputs), inplace=True)


class ResNet50(nn.Module):
    """He et al. 2015, with the stride where it is now; 25.6 million parameters for 1,000 classes."""

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.stem = _convolution(3, 64, 7, 2)
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        blocks, width = list[nn.Module](), 64
        for channels, num_blocks, stride in STAGES:
            for number in range(num_blocks):
                blocks.append(Block(width, channels, 1 if number else stride))
                width = EXPANSION * channels
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.blocks(self.pool(functional.relu(self.stem(images), inplace=True)))
        outputs: Tensor = self.head(features.mean((2, 3)))
        return outputs


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))
