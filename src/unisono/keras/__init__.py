"""The interface of tf.distribute: `with strategy.scope()`, then `model.fit` on all workers, on every backend of Keras.

import keras, unisono as un

strategy = un.keras.Strategy()                # who am I, how do we talk: SLURM, MPI, TF_CONFIG, `unisono run`, or alone
with strategy.scope():
    model = build_and_compile()
model.fit(x, y, batch_size=128, epochs=5)     # the batch is that of all workers together

Imported by unisono; imports algorithms, cluster, comm, data, files, model, run, stopping, task and training.
"""

from unisono.keras._impl.strategy import (
    CentralStorageStrategy,
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    ParameterServerStrategy,
    Strategy,
    TPUStrategy,
)

__all__ = [
    "CentralStorageStrategy",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "Strategy",
    "TPUStrategy",
]
