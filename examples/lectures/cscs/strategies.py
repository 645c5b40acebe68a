"""A Keras model on all workers of a job: what is built inside the scope of a strategy is trained by all of them together.

    unisono run -n 2 examples/lectures/cscs/strategies.py                 # KERAS_BACKEND=torch, tensorflow or jax
    unisono run -n 2 examples/lectures/cscs/strategies.py --one-node      # MirroredStrategy: the workers of this node
    srun -n 2 python examples/lectures/cscs/strategies.py                 # on two nodes: sbatch job.sbatch

Shows: the scope, training, a test and predictions with plain `fit`, `evaluate` and `predict`. The batch is that of all workers,
each takes its rows of it, and every test image counts once. The workers find each other: no resolver and no kind of
communication is named.

Older practice: TensorFlow's own strategies belong to Keras 2; `fit` of a Keras 3 model fails in its MultiWorkerMirroredStrategy
(TensorFlow 2.21, Keras 3.15). Its MirroredStrategy drives all GPUs of a node from one process; here every GPU has a process. In a
notebook, `%%px` sent a cell to processes that were running already; a script is started on all of them.
"""

import sys
from typing import Any

import keras
from keras import layers

import unisono as un

EPOCHS, BATCH, RATE, NUM_TRAINING = 3, 64, 0.003, 1500


def compiled_network() -> Any:
    net = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(optimizer=keras.optimizers.Adam(RATE), loss=loss, metrics=["accuracy"])
    return net


def main(one_node: bool) -> None:
    images, digits = un.digits()
    images = images.reshape(-1, 8, 8, 1)

    kind = un.keras.MirroredStrategy if one_node else un.keras.MultiWorkerMirroredStrategy
    strategy = kind(seed=0)
    with strategy.scope():
        net = compiled_network()
    net.fit(images[:NUM_TRAINING], digits[:NUM_TRAINING], batch_size=BATCH, epochs=EPOCHS, verbose=2)

    _, accuracy = net.evaluate(images[NUM_TRAINING:], digits[NUM_TRAINING:], verbose=0)
    found = net.predict(images[NUM_TRAINING:], verbose=0).argmax(axis=1)
    if strategy.is_chief:
        print(f"Test accuracy on {strategy.num_replicas_in_sync} workers: {accuracy:.4f}")
        print(f"first predictions: {found[:10]}, digits: {digits[NUM_TRAINING:][:10]}")


if __name__ == "__main__":
    main("--one-node" in sys.argv[1:])
