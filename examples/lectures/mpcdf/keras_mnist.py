"""MNIST with a convolutional network in Keras, data parallel through Horovod's interface, under any launcher.

    unisono data get mnist                                                             # once, 11 MB; needs the internet
    unisono horovodrun -np 2 python examples/lectures/mpcdf/keras_mnist.py             # KERAS_BACKEND=torch, tensorflow or jax
    mpirun -np 2 unisono run --horovod python examples/lectures/mpcdf/keras_mnist.py   # or mpiexec, or orterun
    srun -n 2 unisono run --horovod python examples/lectures/mpcdf/keras_mnist.py      # or: sbatch job.sbatch
    unisono horovodrun -np 2 python examples/lectures/mpcdf/keras_mnist.py FOLDER      # that holds MNIST's four files

Shows how a training scales when each worker keeps its batch of 128: N workers make a step of 128 N images with N times the
learning rate, and share the epochs. Every worker reads all images, in an order of its own. (Strong scaling keeps the batch of a
step instead: divide BATCH by N and leave the learning rate. `unisono train` does so unless told otherwise; see
`examples/keras_mnist.py`.)

Older practice: a session of TensorFlow 1 chose the GPU; the data came from the internet during the job, which compute nodes do not
have; every worker printed a progress bar.
"""

import sys
from math import ceil
from pathlib import Path
from typing import Any

import horovod.keras as hvd
import keras
import numpy as np
from keras import layers

import unisono as un

CHECKPOINTS = Path("runs/lectures/keras_mnist")
EPOCHS, BATCH = 12, 128
"""Of one worker alone."""


def choose_gpu(number: int) -> None:
    """Keras computes on this GPU of the node; without GPUs nothing changes."""
    match keras.backend.backend():
        case "torch":
            import torch

            if torch.cuda.is_available():
                torch.cuda.set_device(number)
        case "tensorflow":
            import tensorflow as tf

            if gpus := tf.config.list_physical_devices("GPU"):
                tf.config.set_visible_devices(gpus[number], "GPU")
        case "jax":
            import jax

            if jax.default_backend() == "gpu":
                jax.config.update("jax_default_device", jax.local_devices()[number])  # type: ignore[no-untyped-call]


def read(folder: Path, part: str) -> tuple[Any, Any]:
    """Images of 28 x 28 pixels between 0 and 1 in one channel, and their digits."""
    images, digits = un.Idx(folder / f"{part}-images-idx3-ubyte.gz", folder / f"{part}-labels-idx1-ubyte.gz").batch
    return images[..., None].astype(np.float32) / 255, digits


def network() -> Any:
    convolutions = [layers.Conv2D(channels, 3, activation="relu") for channels in (32, 64)]
    dense = [layers.Dense(128, activation="relu"), layers.Dropout(0.5), layers.Dense(10)]
    return keras.Sequential(
        [keras.Input((28, 28, 1)), *convolutions, layers.MaxPooling2D(), layers.Dropout(0.25), layers.Flatten(), *dense]
    )


def main(folder: Path) -> None:
    hvd.init()
    choose_gpu(hvd.local_rank())
    training, test = read(folder, "train"), read(folder, "t10k")

    net = network()
    net.compile(
        optimizer=hvd.DistributedOptimizer(keras.optimizers.Adadelta(1.0 * hvd.size())),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    if hvd.rank() == 0:
        CHECKPOINTS.mkdir(parents=True, exist_ok=True)
        callbacks.append(keras.callbacks.ModelCheckpoint(CHECKPOINTS / "epoch-{epoch}.keras"))
    net.fit(
        *training,
        batch_size=BATCH,
        epochs=ceil(EPOCHS / hvd.size()),
        callbacks=callbacks,
        validation_data=test,
        verbose=2 if hvd.rank() == 0 else 0,
    )
    _, accuracy = net.evaluate(*test, verbose=0)
    print(f"Test accuracy: {accuracy:.4f}")  # the same on every worker, as they hold the same weights


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else un.locate("mnist"))
