"""A Keras model on torch trains on a GPU: as a task, and by `model.fit` as on the CPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="PyTorch sees no GPU; run on a machine with an NVIDIA GPU and a CUDA build of PyTorch: pytest -m gpu",
    ),
    pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="Keras is not installed; pip install 'unisono[keras]'"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "keras_digits.py"
FIT = """
import json, sys
import keras, numpy as np
import unisono as un
draw = np.random.default_rng(3)
x = draw.normal(size=(70, 6)).astype(np.float32)
y = (x @ draw.normal(size=(6, 3))).argmax(1)
strategy = un.keras.Strategy()
with strategy.scope():
    layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Lamb(0.02), loss=loss, metrics=["accuracy"])
first = np.random.default_rng(7)
model.set_weights([0.3 * first.normal(size=one.shape) if one.ndim > 1 else np.array(one) for one in model.get_weights()])
history = model.fit(x, y, batch_size=16, epochs=3, shuffle=False, validation_data=(x[:9], y[:9]), verbose=0).history
print(json.dumps({"history": history, "device": str(strategy.comm.device), "predicted": model.predict(x[:5]).tolist()}))
"""


def run(*arguments: str, **variables: str) -> str:
    env = {**os.environ, "KERAS_BACKEND": "torch", **variables}
    done = subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_task(tmp_path: Path) -> None:
    run("-m", "unisono", "train", str(EXAMPLE), "--out", str(tmp_path / "run"), "--epochs", "15", "--engine", "nccl")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["device"].startswith("cuda")
    assert summary["metrics"]["test_accuracy"] > 0.95


def test_fit_is_that_of_the_cpu() -> None:
    here = json.loads(run("-c", FIT, UNISONO_ENGINE="nccl").splitlines()[-1])
    there = json.loads(run("-c", FIT, CUDA_VISIBLE_DEVICES="").splitlines()[-1])
    assert here["device"].startswith("cuda") and there["device"] == "cpu"
    for name, values in there["history"].items():
        assert here["history"][name] == pytest.approx(values, abs=1e-4), name
    for found, expected in zip(here["predicted"], there["predicted"], strict=True):
        assert found == pytest.approx(expected, abs=1e-4)
