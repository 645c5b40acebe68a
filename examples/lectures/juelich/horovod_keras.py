"""Handwritten digits with Keras on several workers: the five changes that Horovod's interface asks of a script.

    unisono horovodrun -np 2 python examples/lectures/juelich/horovod_keras.py      # KERAS_BACKEND=torch, tensorflow or jax

The changes are numbered: start, one GPU for each process, the optimiser, equal weights at the beginning, checkpoints on rank 0
(in runs/lectures/horovod_keras).

Older practice: a session of TensorFlow 1 chose the GPU (`tf.ConfigProto`, `K.set_session`). Such lines still work in a program
that is started this way; today each backend of Keras has its own call. Checkpoints were .h5 files; Keras 3 writes .keras files.
"""

from pathlib import Path
from typing import Any

import horovod.keras as hvd
import keras

import unisono as un

FOLDER = Path("runs/lectures/horovod_keras")
EPOCHS, BATCH, RATE = 5, 32, 0.1


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


def my_samples(samples: Any) -> Any:
    """Every size-th sample. All workers get the same number: one that runs out of batches would keep the others waiting."""
    return samples[hvd.rank() :: hvd.size()][: len(samples) // hvd.size()]


def main() -> None:
    hvd.init()  # 1
    choose_gpu(hvd.local_rank())  # 2

    net = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
    net.compile(
        # 3. A step averages the gradients of all workers, so its batch is size times as large, and so is the learning rate.
        optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(RATE * hvd.size())),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

    watching = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # 4. every worker drew weights of its own
        hvd.callbacks.MetricAverageCallback(),  # the loss of all workers, not of this one
    ]
    if hvd.rank() == 0:  # 5. the workers hold the same weights; two of them must not write the same file
        FOLDER.mkdir(parents=True, exist_ok=True)
        watching.append(keras.callbacks.ModelCheckpoint(FOLDER / "epoch-{epoch}.keras"))

    images, labels = map(my_samples, un.digits())
    net.fit(images, labels, batch_size=BATCH, epochs=EPOCHS, callbacks=watching, verbose=2 if hvd.rank() == 0 else 0)


if __name__ == "__main__":
    main()
