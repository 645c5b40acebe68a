"""`model.fit` with a schedule of the user that cannot be saved, as it has no get_config."""
# mypy: disable-error-code="no-untyped-def,misc"

from __future__ import annotations

import keras
import numpy as np

import unisono as un


class Falling(keras.optimizers.schedules.LearningRateSchedule):
    """As in many a tutorial."""

    def __call__(self, step):
        return 0.1 / (1 + step)


strategy = un.keras.Strategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(Falling()), "mse")
x = np.arange(40, dtype=np.float32).reshape(10, 4) / 40
history = model.fit(x, x[:, :1], batch_size=5, epochs=2, verbose=0).history["loss"]
print("it learns:", history[1] < history[0])
