"""What every rank of a Keras contender shares: the model, the data in memory, and turns of whole epochs.

A turn is a training of its own that continues with the weights of the last one, as a second `model.fit` does; between turns a rank
is blocked on the conductor's socket, whatever its framework does when it waits.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from time import perf_counter, process_time
from typing import Any

import keras
import numpy as np

from bench.ranks.slot import attend
from bench.training_cases import KERAS_CASES, KERAS_MLP, SEED, Case

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "tensorflow": ("tensorflow-cpu", "tensorflow"),
    "jax": ("jax",),
}
"""Of each backend, under the names by which they may be installed."""


class Ends(keras.callbacks.Callback):  # type: ignore[misc]
    """When each epoch was over, by the clock and by the CPU time of this process."""

    def __init__(self) -> None:
        super().__init__()
        self.at: list[tuple[float, float]] = []

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:  # noqa: ARG002
        self.at.append((perf_counter(), process_time()))


class KerasLearning:
    """One rank: `... SOCKET GROUP CASE DATA`."""

    def __init__(self) -> None:
        self.case: Case = KERAS_CASES[sys.argv[3]]
        self.backend: str = keras.config.backend()
        with np.load(sys.argv[4]) as data:
            self.inputs, self.targets = data["inputs"], data["targets"]
        self._passed = np.zeros(2)
        """Seconds and CPU seconds of all timed epochs."""
        if self.backend == "torch":  # the others flush them by themselves
            import torch

            torch.set_flush_denormal(True)

    def attend(
        self,
        rank: int,
        size: int,
        versions: Mapping[str, str],
        model: Any,
        train: Callable[[int], list[tuple[float, float]]],
        more: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        """Blocking: train as the conductor asks, until it hangs up. `train` goes on for so many epochs, and says when each was
        over; a rank that does not know says nothing."""

        def take(num_epochs: int) -> list[float]:
            # One more comes first and is not timed: it wakes the ranks, and with it passes what a training does once.
            ends = train(num_epochs + 1)
            if not ends:
                return [0.0] * num_epochs
            passed = np.diff(np.asarray(ends), axis=0)
            self._passed += passed.sum(axis=0)
            return [round(seconds / self.case.steps * 1e6, 1) for seconds in passed[:, 0].tolist()]

        actions: dict[str, Callable[..., Any]] = {"time": take, "state": lambda: self._state(model), **(more or {})}
        attend(rank, size, {"keras": keras.__version__, **_version(self.backend), **versions}, actions)

    def _state(self, model: Any) -> dict[str, Any]:
        """Local, between turns: the mean loss over all samples, the weights as a hash, and how many cores an epoch used."""
        outputs = keras.ops.convert_to_numpy(model(self.inputs, training=False)).astype(np.float64)
        scores = outputs - outputs.max(axis=1, keepdims=True)
        losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(scores)), self.targets]
        digest = hashlib.sha256()
        for weights in model.get_weights():
            digest.update(np.ascontiguousarray(weights).data)
        cores = self._passed[1] / self._passed[0] if self._passed[0] else 0.0
        return {"loss": float(losses.mean()), "weights": digest.hexdigest(), "cores": round(float(cores), 3)}


def _version(backend: str) -> dict[str, str]:
    for package in PACKAGES[backend]:
        try:
            return {backend: version(package)}
        except ImportError:
            continue
    return {backend: "unknown"}


def make_model(case: Case) -> Any:
    """Local: compiled, with the same initial weights for everybody."""
    keras.utils.set_random_seed(SEED)
    layers = keras.layers
    inside = (
        [layers.Dense(64, activation="relu"), layers.Dense(64, activation="relu")]
        if case is KERAS_MLP
        else [
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Dropout(0.25),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.5),
        ]
    )
    model = keras.Sequential([keras.Input(case.shape), *inside, layers.Dense(10)])
    optimizer = getattr(keras.optimizers, case.optimizer)(case.lr, **case.optimizer_options)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model
