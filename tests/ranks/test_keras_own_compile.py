"""A Keras model with a `compile` and a `compute_loss` of its own."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.system.fork_server import ForkServer

PROGRAM = Path(__file__).parent / "programs" / "keras_own_compile.py"


@pytest.mark.timeout(120)
@pytest.mark.skipif(find_spec("keras") is None, reason="keras is not installed; `pip install 'unisono[keras]'`")
def test_a_model_with_its_own_loss_keeps_its_own_compile_and_its_metrics(keras_server: ForkServer, tmp_path: Path) -> None:
    with keras_server.start([str(PROGRAM), str(tmp_path / "found")], 2, "shm", {"KERAS_BACKEND": "torch"}) as group:
        ended = group.wait(100.0)
    assert ended.exit_code == 0, ended
    for rank in range(2):
        found = json.loads((tmp_path / f"found.{rank}").read_text())
        plain, shared = found["plain"], found["shared"]
        assert plain["history"].keys() == shared["history"].keys() >= {"loss", "sparse_categorical_accuracy"}
        for name, expected in plain["history"].items():
            np.testing.assert_allclose(shared["history"][name], expected, rtol=1e-5, err_msg=name)
        for given, expected in zip(shared["weights"], plain["weights"], strict=True):
            np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-6)
