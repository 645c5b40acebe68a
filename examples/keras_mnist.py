"""The classic convolutional network on MNIST in Keras: two 3 x 3 convolutions (32 and 64), pool, dropout, dense 128, dropout.

As a task, with every algorithm, checkpoint and promise of `unisono train`:

    unisono data get mnist                                            # once, 11 MB
    KERAS_BACKEND=jax unisono train examples/keras_mnist.py -n 2      # or torch, or tensorflow

As a script that calls `model.fit`, for people who come from tf.distribute:

    KERAS_BACKEND=jax unisono run -n 2 examples/keras_mnist.py

The 10,000 official test images are the validation data here, as in the classic example.
"""

from typing import Any

import keras
import numpy as np
from keras import layers

import unisono as un

BATCH, EPOCHS, RATE = 128, 4, 0.002


def model(dropout: float = 1.0) -> Any:
    """`dropout` scales both dropouts of the classic, .25 and .5."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Dropout(0.25 * dropout),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.5 * dropout),
            layers.Dense(10),
        ]
    )


def data(root: str | None = None) -> un.Splits:
    folder = un.locate("mnist", root)
    train = un.Idx(folder / "train-images-idx3-ubyte.gz", folder / "train-labels-idx1-ubyte.gz")
    test = un.Idx(folder / "t10k-images-idx3-ubyte.gz", folder / "t10k-labels-idx1-ubyte.gz")
    return un.Splits(train=train.map_inputs(scaled), validation=test.map_inputs(scaled))


def scaled(images: Any) -> Any:
    return images[..., None].astype(np.float32) / 255


task = un.Task(
    model=model,
    data=data,
    loss="cross_entropy",
    metrics=("accuracy",),
    optimizer="adam",
    lr=RATE,
    global_batch=BATCH,
    epochs=EPOCHS,
)


def main() -> None:
    splits = data()
    strategy = un.keras.MultiWorkerMirroredStrategy()
    with strategy.scope():
        net = model()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        net.compile(optimizer=keras.optimizers.Adam(RATE), loss=loss, metrics=["accuracy"])
    net.fit(splits.train, batch_size=BATCH, epochs=EPOCHS, validation_data=splits.validation)
    if strategy.is_chief:
        net.save("keras_mnist.keras")


if __name__ == "__main__":
    main()
