"""Batch normalisation over the batch of all workers, for batches so small that a worker's part says little about the mean.

    KERAS_BACKEND=tensorflow unisono run -n 2 examples/lectures/cscs/sync_batch_norm.py

Trains the same network with Keras's layer and with `SyncBatchNormalization` of Horovod's interface, which adds up sums and
squares over all workers in the forward pass and their gradients in the backward pass. Four images on each worker are few; with
digits as easy as these both layers do well, and the test accuracies are printed side by side.

Older practice: `tf.keras.layers.experimental.SyncBatchNormalization`. In `un.keras` there is no such layer yet.
"""

from typing import Any

import keras
from keras import layers

import unisono as un
import unisono.horovod.tensorflow.keras as hvd
from unisono.horovod.tensorflow import SyncBatchNormalization

EPOCHS, BATCH, RATE, NUM_TRAINING = 3, 4, 0.001, 1500


def accuracy_with(normalisation: Any, images: Any, digits: Any) -> float:
    """Collective: after a training with this layer."""
    net = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, use_bias=False),
            normalisation,
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    net.compile(
        optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(RATE * hvd.size())),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    mine = slice(hvd.rank(), NUM_TRAINING // hvd.size() * hvd.size(), hvd.size())  # all workers have the same number
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    net.fit(images[mine], digits[mine], batch_size=BATCH, epochs=EPOCHS, callbacks=callbacks, verbose=0)
    return float(net.evaluate(images[NUM_TRAINING:], digits[NUM_TRAINING:], verbose=0)[1])


def main() -> None:
    hvd.init()
    images, digits = un.digits()
    images = images.reshape(-1, 8, 8, 1)
    for name, layer in (("of each worker", layers.BatchNormalization()), ("of all workers", SyncBatchNormalization())):
        accuracy = accuracy_with(layer, images, digits)
        if hvd.rank() == 0:
            print(f"statistics {name}: test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
