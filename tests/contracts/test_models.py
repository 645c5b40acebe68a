"""The contract of replicas, for torch and for Keras on each backend: four rows."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ROWS = {"torch": ("torch", "torch"), **{f"Keras on {backend}": ("keras", backend) for backend in ("torch", "tensorflow", "jax")}}
SELDOM = ("Keras on tensorflow", "Keras on jax")
"""More than a minute each; that their gradients are right belongs to every change (tests/numerics/test_keras.py)."""
NUM_CHECKS = 16


@pytest.mark.timeout(240)
@pytest.mark.parametrize("row", [pytest.param(row, marks=[pytest.mark.soak] * (row in SELDOM)) for row in ROWS])
def test_a_replica_keeps_its_contract(row: str) -> None:
    kind, backend = ROWS[row]
    env = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-m", "unisono.testing.model_contract", kind], env=env, capture_output=True, text=True, timeout=220
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count("ok ") == NUM_CHECKS


def test_a_broken_replica_is_found() -> None:
    """A check that cannot fail would be none: here the gradient is doubled behind its back."""
    broken = """
import sys
from unisono.model.torch.adapter import TorchAdapter
from unisono.testing import model_contract
whole = TorchAdapter.forward_backward
def twice(self, batch, key, on_ready=None):
    whole(self, batch, key, on_ready)
    self.parts[""].scale(2.0)
TorchAdapter.forward_backward = twice
sys.exit(model_contract.main(["torch", "the_gradient_is_that_of_the_loss", "micro_batches_add_up"]))
"""
    done = subprocess.run([sys.executable, "-c", broken], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout.count("FAILED") == 2, done.stdout + done.stderr
