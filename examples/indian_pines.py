"""Indian Pines (AVIRIS, 145 x 145 pixels, 200 bands, 16 kinds of land cover): the class of a pixel from the patch around it.

    unisono data get indian_pines                     # once, 6 MB
    unisono train examples/indian_pines.py -n 2
    unisono tune examples/indian_pines.py -n 2 --folds 3 --trials 30

Neighbouring pixels are alike and their patches overlap, so pixels drawn at random would be recognised and not classified. Here the
scene is cut into blocks: no pixel of a test patch is seen in training, nor one of a validation patch in the folds of a search.
"""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from torch import nn

import unisono as un


def model(
    width: Annotated[int, un.Range(16, 96, log=True)] = 48,
    depth: Annotated[int, un.Range(1, 3)] = 2,
    dropout: Annotated[float, un.Range(0.0, 0.6)] = 0.2,
) -> nn.Module:
    """First the bands of each pixel, then the pixels of the patch."""
    layers: list[nn.Module] = [nn.Conv2d(200, width, 1), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(width, 16))


def data(folder: str | None = None, patch_size: int = 5, seed: int = 0) -> un.Splits:
    """`folder` holds the two files; by default that of `unisono data get`."""
    place = un.locate("indian_pines") if folder is None else Path(folder)
    scene = un.Scene(place / "Indian_pines_corrected.mat", place / "Indian_pines_gt.mat", patch_size=patch_size)
    pixels = scene.read(np.arange(len(scene)))[0][:, :, patch_size // 2, patch_size // 2]
    mean, deviation = pixels.mean(axis=0)[:, None, None], pixels.std(axis=0)[:, None, None]

    def scaled(patches: Any) -> Any:
        return (patches - mean) / deviation

    return un.split(scene.map_inputs(scaled), validation=0.1, test=0.25, how="blocks", seed=seed)


task = un.Task(
    model=model,
    data=data,
    loss="cross_entropy",
    metrics=("accuracy",),
    optimizer="adamw",
    optimizer_options={"weight_decay": 0.01},
    lr=0.002,
    schedule="cosine",
    global_batch=64,
    epochs=12,
    space={
        "lr": un.Range(0.0003, 0.02, log=True),
        "optimizer.weight_decay": un.Range(0.001, 1.0, log=True),
        "global_batch": un.Choice(32, 64, 128),
        "loss.label_smoothing": un.Range(0.0, 0.2),
    },
)
