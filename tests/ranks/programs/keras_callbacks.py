"""Callbacks, weights of classes, mixed precision and what is refused: python keras_callbacks.py OUT. Writes OUT.RANK as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import torch

import unisono as un
from unisono.errors import ReportedElsewhere

OUT = sys.argv[1]


def small(strategy: Any, **layer: Any) -> Any:
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, **layer)])
        model.compile(
            optimizer=keras.optimizers.SGD(0.5, momentum=0.9), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        )
    return model


class Rising(keras.callbacks.Callback):  # type: ignore[misc]
    """Makes the validation worse from the third epoch on by breaking the weights."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        if epoch >= 2:
            self.model.set_weights([one + 3.0 for one in self.model.get_weights()])


class Seen(keras.callbacks.Callback):  # type: ignore[misc]
    """Looks at the weights with every batch, and ends the training."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.sums.append(float(np.abs(self.model.get_weights()[0]).sum()))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.rows = len(self.model.predict(np.zeros((5, 4), np.float32), verbose=0))  # of this worker alone
        self.model.optimizer.learning_rate = 0.125
        self.model.stop_training = epoch == 1


class Enough(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends the training in the middle of its second epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.model.stop_training = self.epoch == 1 and batch == 1


class Shuffling(keras.utils.PyDataset):  # type: ignore[misc]
    """Counts how often it may put its batches into another order."""

    def __init__(self, x: Any, y: Any) -> None:
        super().__init__()
        self.x, self.y, self.num_ended = x, y, 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, place: int) -> Any:
        return self.x[place * 10 : place * 10 + 10], self.y[place * 10 : place * 10 + 10]

    def on_epoch_end(self) -> None:
        self.num_ended += 1


def refused(do: Any) -> str:
    try:
        do()
    except un.UsageError as error:
        return str(error)
    except ReportedElsewhere:  # by another worker
        return "told"
    return ""


def main() -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(40, 4)).astype(np.float32)
    y = (x @ draw.normal(size=(4, 3))).argmax(1)
    strategy = un.keras.MirroredStrategy(seed=0)
    rank, found = strategy.comm.rank, dict[str, Any]()

    model = small(strategy)
    early = keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)
    kept = keras.callbacks.ModelCheckpoint(f"{OUT}-best-{rank}.keras", save_best_only=True, monitor="val_loss")
    lines = keras.callbacks.CSVLogger(f"{OUT}-log-{rank}.csv")
    history = model.fit(x, y, batch_size=10, epochs=9, validation_split=0.25, callbacks=[Rising(), early, kept, lines], verbose=0)
    found["epochs"] = len(history.history["loss"])
    found["best"] = min(history.history["val_loss"])
    found["now"] = model.evaluate(x[30:], y[30:])
    found["weights"] = [one.tolist() for one in model.get_weights()]

    watched, seen = small(strategy), Seen()
    watched.fit(x, y, batch_size=10, epochs=5, callbacks=[seen], verbose=0)
    found["num_batches"] = len(seen.sums)
    found["rows"] = getattr(seen, "rows", None)
    found["rate"] = float(watched.optimizer.learning_rate)
    if rank == 0:
        watched.set_weights([one * 0 for one in watched.get_weights()])
    found["of the first"] = watched.evaluate(x, y)
    data = Shuffling(x, y)
    watched.fit(data, epochs=3, verbose=0)
    found["ended"] = data.num_ended
    pairs = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    watched.fit(torch.utils.data.DataLoader(pairs, batch_size=8, shuffle=True), verbose=0)
    found["moves"] = len(set(seen.sums)) == len(seen.sums)

    orders, start = list[list[float]](), small(strategy).get_weights()
    for _ in range(2):
        again, seen = small(strategy), Seen()
        again.set_weights(start)
        again.fit(x, y, batch_size=10, callbacks=[seen], verbose=0)
        orders.append(seen.sums)
    found["orders differ"] = orders[0] != orders[1] if rank == 0 else None
    cut = small(strategy)
    history = cut.fit(x, y, batch_size=10, epochs=5, callbacks=[Enough()], validation_data=(x[:9], y[:9]), verbose=0).history
    found["cut"] = [len(history["loss"]), len(history["val_loss"]), int(cut.optimizer.iterations)]
    frozen = small(strategy)
    rows = frozen.predict(x)
    frozen.trainable = False
    found["frozen"] = bool(np.array_equal(frozen.predict(x), rows))

    weighted, alone = small(strategy), small(strategy)
    alone.set_weights(weighted.get_weights())
    each = {0: 1.0, 1: 2.0, 2: 0.5}
    weighted.fit(x, y, batch_size=10, epochs=2, class_weight=each, shuffle=False, verbose=0)
    alone.fit(x, y, batch_size=10, epochs=2, sample_weight=np.array([each[int(one)] for one in y]), shuffle=False, verbose=0)
    found["class weights"] = all(np.array_equal(a, b) for a, b in zip(weighted.get_weights(), alone.get_weights(), strict=True))

    mixed = small(strategy, dtype="mixed_bfloat16")
    found["mixed"] = mixed.fit(x, y, batch_size=10, epochs=4, verbose=0).history["loss"]
    found["mixed type"] = str(mixed.predict(x).dtype)

    other = small(strategy)
    drawn = np.random.default_rng(rank)
    found["refused"] = {
        "random": refused(lambda: other.fit(iter([(drawn.normal(size=(8, 4)).astype(np.float32), y[:8])]), steps_per_epoch=1)),
        "own part": refused(lambda: other.fit(x[rank::2], y[rank::2], verbose=0)),
        "endless": refused(lambda: other.fit(iter([(x, y)]))),
        "short": refused(lambda: other.fit(iter([(x, y)]), steps_per_epoch=2, verbose=0)),
        "no targets": refused(lambda: other.fit(x)),
        "few steps": refused(lambda: other.fit(x, y, batch_size=10, steps_per_epoch=2)),
        "one worker": refused(lambda: other.train_on_batch(x, y)),
        "batch of a stream": refused(lambda: other.fit(iter([(x, y)]), batch_size=3, steps_per_epoch=1)),
        "nothing": refused(lambda: other.predict(x[:0])),
        "TPU": refused(un.keras.TPUStrategy),
        "storage": refused(un.keras.CentralStorageStrategy),
    }
    Path(f"{OUT}.{rank}").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
