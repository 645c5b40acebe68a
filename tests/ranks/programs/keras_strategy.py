"""What a strategy offers besides `fit`: saves, loops of one's own, `reduce`, seeds, and which backup is refused.

python keras_strategy.py OUT: writes OUT.RANK as JSON. For two workers with Keras on torch.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import torch

import unisono as un
from unisono.errors import ReportedElsewhere

sys.modules.setdefault("tensorflow", None)  # type: ignore[arg-type] # keras.utils.set_random_seed would load it for some seconds
OUT = Path(sys.argv[1])
BATCH = 6
"""Samples of all workers together, of which the first has four and the second two."""


def refused(do: Callable[[], Any]) -> str:
    try:
        do()
    except un.UsageError as error:
        return str(error)
    except ReportedElsewhere:
        return "by another worker"
    return ""


def samples() -> tuple[Any, Any]:
    draw = np.random.default_rng(3)
    x = draw.normal(size=(24, 4)).astype(np.float32)
    return x, x @ draw.normal(size=(4, 1)).astype(np.float32)


class Watching(keras.layers.Dense):  # type: ignore[misc]
    """Looks while it is saved at the file that is there."""

    seen: list[bytes] = []  # noqa: RUF012

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)
        self.seen.append((OUT.parent / "model.keras").read_bytes())


def saves(strategy: Any) -> dict[str, Any]:
    """Every worker saves to one path, and each to its own."""
    file, rank = OUT.parent / "model.keras", strategy.comm.rank
    before = b"as it was"
    if rank == 0:
        file.write_bytes(before)
    strategy.comm.barrier()
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), Watching(3)])
    if rank == 0:
        model.save(file)
    strategy.comm.barrier()
    is_whole = Watching.seen == ([before] if rank == 0 else [])
    for _ in range(3):
        model.save(file)
        model.save_weights(OUT.parent / "model.weights.h5")
    model.save(OUT.parent / f"own-{rank}.keras")
    strategy.comm.barrier()
    loaded = keras.saving.load_model(file, custom_objects={"Watching": Watching}).get_weights()
    same = all(np.array_equal(a, b) for a, b in zip(loaded, model.get_weights(), strict=True))
    model.load_weights(OUT.parent / "model.weights.h5")
    return {"whole": is_whole, "same": same}


def small(strategy: Any) -> tuple[Any, Any]:
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        return model, keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.5)


def step(model: Any, optimizer: Any, x: Any, y: Any) -> None:
    model.zero_grad()
    loss = ((model(x) - torch.from_numpy(y)) ** 2).sum() / BATCH
    loss.backward()
    variables = model.trainable_variables
    optimizer.apply_gradients([(one.value.grad, one) for one in variables])


def own_loop(strategy: Any, size: int) -> list[Any]:
    """A loop in which this worker has its part of each batch, or all of it."""
    model, optimizer = small(strategy)
    draw = np.random.default_rng(7)
    model.set_weights([draw.normal(size=one.shape) for one in model.get_weights()])
    x, y = samples()
    part = [slice(None)] if size == 1 else [slice(4), slice(4, None)]
    for start in range(0, 24, BATCH):
        rows = slice(start, start + BATCH)
        own = part[strategy.comm.rank]
        strategy.run(step, args=(model, optimizer, x[rows][own], y[rows][own]))
    return [one.tolist() for one in model.get_weights()]


def loops(strategy: Any, alone: Any) -> dict[str, Any]:
    rank, (x, y) = strategy.comm.rank, samples()
    found: dict[str, Any] = {"shared": own_loop(strategy, 2), "alone": own_loop(alone, 1)}
    model, optimizer = small(strategy)
    found["outside"] = refused(lambda: step(model, optimizer, x, y))
    found["reduce inside"] = refused(lambda: strategy.run(lambda: strategy.reduce("SUM", 1.0)))
    with strategy.scope():
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
        hits = keras.metrics.BinaryAccuracy()
    found["loss scale"] = refused(lambda: strategy.run(step, (model, scaled, x, y)))
    found["mean loss"] = refused(lambda: strategy.run(lambda: keras.losses.MeanSquaredError()(y, y)))
    for hit in ([1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]):
        mine = np.array(hit)[slice(1) if rank == 0 else slice(1, 4)]
        hits.reset_state()
        strategy.run(hits.update_state, (np.ones_like(mine), mine))
        found.setdefault("hits", []).append(float(hits.result()))
    local = un.keras.Strategy("local_sgd", comm=strategy.comm)
    found["algorithm"] = refused(lambda: local.run(step, (model, keras.optimizers.SGD(0.1), x, y)))
    found["same"] = refused(lambda: strategy.run(step, (model, keras.optimizers.SGD(0.1), x, y)))
    model.set_weights([one + rank for one in model.get_weights()])
    found["different"] = refused(lambda: strategy.run(step, (model, keras.optimizers.SGD(0.1), x, y)))
    return found


def reduced(strategy: Any) -> dict[str, Any]:
    rank = strategy.comm.rank
    values = np.array([[1.0, 10.0], [1.0, 20.0]]) if rank == 0 else np.array([[4.0, 30.0]])
    some = values[: 2 * rank]  # the first has none
    return {
        "mean": strategy.reduce("MEAN", values, axis=0).tolist(),
        "mean of one": strategy.reduce("MEAN", some, axis=0).tolist(),
        "max of one": strategy.reduce("MAX", some - 100, axis=0).tolist(),
        "sum": strategy.reduce("SUM", values, axis=0).tolist(),
        "bytes": int(strategy.reduce("SUM", np.uint8(200))),
        "mean of bytes": float(strategy.reduce("MEAN", np.uint8(200))),
        "loss": float(strategy.reduce("MEAN", torch.tensor(rank + 1.0, requires_grad=True))),
        "of none": refused(lambda: strategy.reduce("MEAN", values[:0], axis=0)),
        "axis": refused(lambda: strategy.reduce("MEAN", 1.0, axis=0)),
    }


def first_weights(strategy: Any, seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    return small(strategy)[0].get_weights()[0].tolist()


def fitted(comm: Any, lr: float = 0.1, shift: float = 0.0, activation: str = "tanh", **more: Any) -> Any:
    """A fit with a backup, as a script makes it that is started again."""
    algorithm = more.pop("algorithm", "allreduce")
    folder = OUT.parent / f"backup-{algorithm}"
    strategy = un.keras.Strategy(algorithm, backup=str(folder), backup_every="1epochs", comm=comm, **more)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation=activation), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(lr), "mse")
    x, y = samples()
    model.fit(x + shift, y, batch_size=8, epochs=2, verbose=0)
    return [one.tolist() for one in model.get_weights()]


def fit_that_compares(comm: Any) -> None:
    """A fit with a loss that compares the samples of a batch with each other."""

    def spread(_: Any, outputs: Any) -> Any:
        return keras.ops.mean(keras.ops.abs(outputs - keras.ops.mean(outputs)))

    strategy = un.keras.Strategy(seed=1, comm=comm)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", spread)
    model.fit(*samples(), batch_size=8, verbose=0)


def backups(comm: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for algorithm in ("allreduce", "downpour"):
        keras.utils.set_random_seed(1)
        first = fitted(comm, algorithm=algorithm)
        keras.utils.set_random_seed(1)
        found[algorithm] = {
            "again": fitted(comm, algorithm=algorithm) == first,
            "rate": refused(partial(fitted, comm, lr=0.2, algorithm=algorithm)),
            "data": refused(partial(fitted, comm, shift=1.0, algorithm=algorithm)),
            "model": refused(partial(fitted, comm, activation="relu", algorithm=algorithm)),
            "seed": refused(partial(fitted, comm, seed=2, algorithm=algorithm)),
        }
    keras.utils.set_random_seed(1)
    first = fitted(comm)
    newest = sorted((OUT.parent / "backup-allreduce" / "fit-0").glob("step-*"))[-1]
    if comm.rank == 0:
        (newest / "state.safetensors").write_bytes(b"")
    comm.barrier()
    keras.utils.set_random_seed(1)
    random.random()  # so that another seed would be drawn
    found["damaged"] = fitted(comm) == first
    return found


def settings(strategy: Any) -> dict[str, str]:
    """What each worker gives by its rank: parts of other batches, or another rate."""
    rank, (x, y) = strategy.comm.rank, samples()

    def fit(lr: float = 0.1, **more: Any) -> str:
        model, _ = small(strategy)
        model.compile(keras.optimizers.SGD(lr), "mse")
        return refused(lambda: model.fit(x, y, **{"batch_size": 8, "verbose": 0, **more}))

    return {
        "batch_size": fit(batch_size=8 - rank),
        "optimizer.learning_rate": fit(lr=0.5 + rank),
        "epochs": fit(epochs=1 + rank),
        "shuffle": fit(shuffle=bool(rank)),
    }


def main() -> None:
    strategy = un.keras.Strategy()
    comm = strategy.comm
    alone = un.keras.Strategy(comm=comm.split(comm.rank))
    found = {
        "saved": saves(strategy),
        "loops": loops(strategy, alone),
        "reduced": reduced(strategy),
        "seeds": [first_weights(strategy, seed) for seed in (1, 2, 3, 1)],
        "seeds of ranks": first_weights(strategy, comm.rank),
        "given seed": [first_weights(un.keras.Strategy(seed=5, comm=comm), seed) for seed in (1, 2)],
        "settings": settings(strategy),
        "backups": backups(comm),
    }
    fit_that_compares(comm)
    Path(f"{OUT}.{comm.rank}").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
