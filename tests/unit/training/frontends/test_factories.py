"""The model of a task: its initial weights are a function of the seed alone."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.system.fork_server import ForkServer
from unisono.task.overrides import change
from unisono.task.task import Task
from unisono.training.frontends.factories import make_model

FIRST_IMPORT = """
import sys, numpy as np, torch
from unisono.task.overrides import change
from unisono.task.task import Task
from unisono.training.frontends.factories import make_model

def model():
    import keras
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])

assert "keras" not in sys.modules
one, again = (make_model(change(Task(model=model, data=lambda: None, seed=5), {}), torch.device("cpu")) for _ in range(2))
print("same:", all(torch.equal(*pair) for pair in zip(one.parameters(), again.parameters())))
"""


def drawn(seed: int) -> torch.Tensor:
    """The weight that a model draws from NumPy's generator."""

    def model() -> nn.Module:
        layer = nn.Linear(3, 1)
        layer.weight.data = torch.from_numpy(np.random.normal(size=(1, 3)).astype(np.float32))
        return layer

    return next(make_model(change(Task(model=model, data=lambda: None, seed=seed), {}), torch.device("cpu")).parameters())


def test_weights_that_a_model_draws_from_numpy_follow_from_the_seed() -> None:
    before = np.random.get_state()
    assert torch.equal(drawn(1), drawn(1)) and not torch.equal(drawn(1), drawn(2))
    assert all(map(np.array_equal, before, np.random.get_state())), "left as it was"


def test_a_framework_that_a_model_loads_first_shifts_no_generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading TensorFlow draws from Python's generator, loading JAX from NumPy's; here a package that draws from both."""
    (tmp_path / "jax.py").write_text("import random, numpy\nrandom.random()\nnumpy.random.random()\n")
    monkeypatch.syspath_prepend(tmp_path)

    def model() -> nn.Module:
        import jax  # noqa: F401

        layer = nn.Linear(2, 1)
        layer.weight.data = torch.tensor([[random.random(), np.random.random()]])
        return layer

    task = change(Task(model=model, data=lambda: None, seed=1), {})
    monkeypatch.setitem(sys.modules, "jax", sys)  # so that what was there, or was not, comes back after the test
    del sys.modules["jax"]
    found = [next(make_model(task, torch.device("cpu")).parameters()) for _ in range(2)]
    assert "jax" in sys.modules
    assert torch.equal(*found)


@pytest.mark.soak  # that loads Keras once more, to show what the test above shows with a package in its place
@pytest.mark.timeout(90)
def test_keras_that_a_model_loads_first_does_not_change_its_weights(fork_server: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(FIRST_IMPORT)
    with fork_server.start([str(tmp_path / "program.py")], 1, "single", {"KERAS_BACKEND": "torch"}) as group:
        ended = group.wait(80.0)
    assert ended.exit_code == 0 and "same: True" in ended.output, ended
