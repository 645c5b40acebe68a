"""Tasks drawn at random, as in tests/numerics/test_drawn_tasks.py, for as long as the time lasts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.numerics.drawn_checks import CHECKS, found_in

pytestmark = pytest.mark.soak
LIMIT_S = 600.0
"""Of ten models, on a busy machine."""


@pytest.mark.parametrize("what", CHECKS)
def test_drawn_tasks(what: str, seeds: Iterator[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # which a training with shards sets for its process
    if "KERAS_BACKEND" not in os.environ:
        monkeypatch.setenv("KERAS_BACKEND", "torch")
    for seed in seeds:
        assert found_in(CHECKS[what][1], seed) == [], (what, seed, CHECKS[what][0](seed))


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_drawn_models_of_another_backend(backend: str, seeds: Iterator[int]) -> None:
    command = [sys.executable, "-m", "tests.numerics.drawn_checks", "--what", "keras", "--backend", backend, "--cases", "10"]
    for seed in seeds:
        ended = subprocess.run([*command, "--seed", str(seed)], check=False, capture_output=True, text=True, timeout=LIMIT_S)
        assert ended.returncode == 0, f"--seed {seed}\n{ended.stdout}{ended.stderr}"
