"""`model.fit` with workers that do not wait for each other: python keras_server.py OUT. Writes OUT.RANK as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import keras
import numpy as np

import unisono as un


def main() -> None:
    images, labels = un.digits()
    strategy = un.keras.ParameterServerStrategy(seed=0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.Adam(0.003), loss=loss, metrics=["accuracy"])
    seen = (images[1500:], labels[1500:])
    history = model.fit(images[:1500], labels[:1500], batch_size=64, epochs=12, validation_data=seen)
    found = {
        "history": history.history,
        "evaluated": model.evaluate(*seen),
        "predicted": float((model.predict(seen[0]).argmax(1) == seen[1]).mean()),
        "sum": float(sum(np.abs(one).sum() for one in model.get_weights())),
    }
    Path(f"{sys.argv[1]}.{strategy.comm.rank}").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
