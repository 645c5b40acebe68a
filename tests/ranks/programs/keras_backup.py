"""A fit with a backup, which ends by a kill of one worker where asked to: python keras_backup.py OUT FOLDER EVERY [STEP]

Writes OUT.RANK: hash of the weights, history, learning rates that a callback saw.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

import unisono as un


class KillAt(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends this process as the system would, without a word."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.left = step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Lower(keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the rate between two epochs, as ReduceLROnPlateau does."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) * 0.9


def halved(epoch: int, rate: float) -> float:
    return rate * 0.5 if epoch == 1 else rate


def main() -> None:
    out, folder, every, *step = sys.argv[1:]
    draw = np.random.default_rng(3)
    x = draw.normal(size=(70, 6)).astype(np.float32)
    y = (x @ draw.normal(size=(6, 3))).argmax(1)
    strategy = un.keras.Strategy(seed=0, backup=folder, backup_every=every)
    with strategy.scope():
        layers = [keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dropout(0.2), keras.layers.Dense(3)]
        model = keras.Sequential([keras.Input((6,)), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.Adam(0.02), loss=loss, metrics=["accuracy"])
    rates = keras.callbacks.LearningRateScheduler(halved)
    callbacks = [rates, Lower(), *([KillAt(int(step[0]))] if step else [])]
    history = model.fit(x, y, batch_size=16, epochs=4, validation_data=(x[:9], y[:9]), callbacks=callbacks, verbose=0)
    model.compile(optimizer=keras.optimizers.SGD(0.5), loss=loss, metrics=["accuracy"])
    best = keras.callbacks.EarlyStopping("loss", patience=0, restore_best_weights=True)
    again = model.fit(x, y, batch_size=16, epochs=3, callbacks=[rates, best], verbose=0)
    told = hashlib.sha256(b"".join(np.ascontiguousarray(one).tobytes() for one in model.get_weights())).hexdigest()
    found = {"weights": told, "history": history.history, "again": again.history, "lr": float(model.optimizer.learning_rate)}
    Path(f"{out}.{strategy.comm.rank}").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
