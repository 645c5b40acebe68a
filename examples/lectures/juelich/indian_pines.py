"""Land cover of Indian Pines: the class of a pixel from its spectrum, learned from a tenth of the labelled pixels.

    unisono data get indian_pines                                                  # once, 6 MB
    unisono run -n 2 examples/lectures/juelich/indian_pines.py                     # or: mpirun -np 2 python ..., srun python ...
    unisono run -n 2 examples/lectures/juelich/indian_pines.py FOLDER              # that holds the two .mat files

Shows the calls of `horovod_keras.py` in a program that imports Unisono by its name. It is started like any other. No line chooses
a GPU: `unisono run` shows each process its own, and so does SLURM with `--gpus-per-task=1`.

The pixels are drawn at random, as in the lecture's competition. Neighbours of test pixels are then among the training pixels, so
the accuracy says little about another scene; `examples/indian_pines.py` keeps the two apart.
"""

import sys
from pathlib import Path

import keras
import numpy as np

import unisono as un
import unisono.horovod.keras as hvd

EPOCHS, BATCH, RATE, TRAINING_PART = 40, 32, 0.001, 0.1


def main(folder: Path) -> None:
    hvd.init()
    scene = un.Scene(folder / "Indian_pines_corrected.mat", folder / "Indian_pines_gt.mat")
    spectra, classes = scene.read(np.arange(len(scene)))
    spectra = (spectra - spectra.mean(axis=0)) / spectra.std(axis=0)

    order = np.random.default_rng(0).permutation(len(scene))  # the same on all workers
    num_training = int(TRAINING_PART * len(scene))
    num_mine = num_training // hvd.size()
    mine = order[hvd.rank() * num_mine : (hvd.rank() + 1) * num_mine]
    test = order[num_training:]

    hidden = [layer for _ in range(2) for layer in (keras.layers.Dense(128, activation="relu"), keras.layers.Dropout(0.2))]
    net = keras.Sequential([keras.Input(spectra.shape[1:]), *hidden, keras.layers.Dense(int(classes.max()) + 1)])
    net.compile(
        optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(RATE * hvd.size())),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    first = hvd.rank() == 0
    shared = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    net.fit(spectra[mine], classes[mine], batch_size=BATCH, epochs=EPOCHS, callbacks=shared, verbose=2 if first else 0)
    if first:
        _, accuracy = net.evaluate(spectra[test], classes[test], verbose=0)
        print(f"Test accuracy: {accuracy:.4f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else un.locate("indian_pines"))
