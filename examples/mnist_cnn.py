"""The classic convolutional network on MNIST: two 3 x 3 convolutions (32 and 64), pool, dropout, dense 128, dropout.

    unisono data get mnist                            # once, 11 MB
    unisono train examples/mnist_cnn.py -n 2
    unisono train examples/mnist_cnn.py -n 2 --target 0.99       # how long does it take to 99 %?

The 10,000 official test images are the validation data here, as in the classic example: quote the last epoch and not the best,
which was chosen by them. The learning rate was, too: among 0.001, 0.002 and 0.004.
"""

from typing import Any

from torch import nn

import unisono as un

MEAN, DEVIATION = 0.1307, 0.3081  # of the training images, from 0 to 1
SCALE = un.Scale(mean=255 * MEAN, deviation=255 * DEVIATION)


def model(dropout: float = 1.0) -> nn.Module:
    """`dropout` scales both dropouts of the classic, .25 and .5."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25 * dropout),
        nn.Flatten(),
        nn.Linear(9216, 128),
        nn.ReLU(),
        nn.Dropout(0.5 * dropout),
        nn.Linear(128, 10),
    )


def data(root: str | None = None) -> un.Splits:
    folder = un.locate("mnist", root)
    train = un.Idx(folder / "train-images-idx3-ubyte.gz", folder / "train-labels-idx1-ubyte.gz")
    test = un.Idx(folder / "t10k-images-idx3-ubyte.gz", folder / "t10k-labels-idx1-ubyte.gz")
    return un.Splits(
        train=train.map_inputs(with_channel).map_inputs(SCALE), validation=test.map_inputs(with_channel).map_inputs(SCALE)
    )


def with_channel(images: Any) -> Any:
    return images[:, None]


task = un.Task(
    model=model,
    data=data,
    loss="cross_entropy",
    metrics=("accuracy",),
    optimizer="adam",
    lr=0.004,
    schedule="one_cycle",
    global_batch=128,
    epochs=8,
    augment=un.augment.Shift(2, fill=-MEAN / DEVIATION),  # pixels; black comes in
)
