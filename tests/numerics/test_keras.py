"""The same Keras model on torch, TensorFlow and JAX: gradients, curves and weights agree with each other and with `model.fit`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PROGRAM = Path(__file__).parent / "programs" / "keras_backends.py"
BACKENDS = ("torch", "tensorflow", "jax")
MODELS = ("mlp", "pictures", "two_of_each", "masked")
LIMITS = {"float32": (1e-5, 2e-5), "float64": (1e-10, 1e-10)}
"""Of a gradient, of each tensor's norm; and of a curve."""

CASES = [
    pytest.param(model, kind, marks=() if kind == "float64" or model == "mlp" else pytest.mark.soak)
    for model in MODELS
    for kind in LIMITS
]
"""Every model in the type that shows most; compiling takes longest."""

Found = Mapping[str, Any]


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """What each backend gave, of what the chosen tests ask for."""
    folder = tmp_path_factory.mktemp("keras")
    calls = [item.callspec.params for item in request.session.items if item.path == Path(__file__) and hasattr(item, "callspec")]
    asked = sorted({f"{call['kind']}/{call['model']}" for call in calls if "kind" in call})
    for backend in BACKENDS:
        env = {**os.environ, "KERAS_BACKEND": backend, "JAX_ENABLE_X64": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(
            [sys.executable, str(PROGRAM), str(folder / f"{backend}.npz"), *asked],
            env=env,
            capture_output=True,
            text=True,
            timeout=220,
        )
        assert done.returncode == 0, done.stderr[-4000:]
    return {backend: dict(np.load(folder / f"{backend}.npz")) for backend in BACKENDS}


@pytest.mark.timeout(680)  # the first of them computes for all
@pytest.mark.parametrize(("model", "kind"), CASES)
def test_backends_give_the_same_gradients(found: dict[str, Found], model: str, kind: str) -> None:
    place = f"{kind}/{model}/gradient/"
    names = [name for name in found["torch"] if name.startswith(place)]
    assert names
    for backend in BACKENDS[1:]:
        for name in names:
            expected, given = found["torch"][name], found[backend][name]
            assert given.dtype == np.dtype(kind)
            assert np.linalg.norm(given - expected) <= LIMITS[kind][0] * np.linalg.norm(expected), (backend, name)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("model", "kind"), [case for case in CASES if case.values[0] != "pictures"])
def test_the_gradient_of_two_parts_of_a_batch_is_that_of_plain_keras(
    found: dict[str, Found], backend: str, model: str, kind: str
) -> None:
    """Also where the loss leaves out what is masked, and the parts have other shares of it."""
    place = f"{kind}/{model}"
    divided = [value for name, value in found[backend].items() if name.startswith(f"{place}/divided/")]
    plain = [value for name, value in found[backend].items() if name.startswith(f"{place}/plain_gradient/")]
    limit = 1e-10 if kind == "float64" else 1e-4  # a difference of weights, divided by the learning rate
    for given, expected in zip(divided, plain, strict=True):
        assert np.linalg.norm(given - expected) <= limit * np.linalg.norm(expected), backend


@pytest.mark.parametrize(("model", "kind"), CASES)
def test_backends_give_the_same_curve(found: dict[str, Found], model: str, kind: str) -> None:
    expected = found["torch"][f"{kind}/{model}/curve"]
    assert expected[-1] < expected[0]
    for backend in BACKENDS[1:]:
        np.testing.assert_allclose(found[backend][f"{kind}/{model}/curve"], expected, rtol=LIMITS[kind][1], atol=0)


@pytest.mark.parametrize(("model", "kind"), CASES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_curve_is_that_of_fit(found: dict[str, Found], backend: str, model: str, kind: str) -> None:
    here = found[backend]
    # What `fit` tells of a loss it has added up in float32.
    limit = LIMITS[kind][1] if kind == "float32" else 1e-6
    np.testing.assert_allclose(here[f"{kind}/{model}/curve"], here[f"{kind}/{model}/plain"], rtol=limit, atol=0)
    for name in (name for name in here if name.startswith(f"{kind}/{model}/weights/")):
        np.testing.assert_allclose(here[name], here[name.replace("weights", "plain_weights")], rtol=0, atol=1e-5)


REFUSED = {
    "unbuilt": "is not built, so it has no weights yet; begin it with keras.Input",
    "no loss": "has no loss; compile it with one",
    "loss twice": "both give loss; leave one out",
    "own train_step": "has its own train_step",
    "frozen": "has no trainable weights",
    "counting": "count of the layer counting (Counting) changes with every batch",
    "hiding": "held of the layer hiding (Hiding)",
    "sum": "has no mean over the samples of all workers",
    "ignored class": "ignore_class of a loss",
    "own assignment": "during training (as SpectralNormalization does)",
    "rate of a schedule": "has a Keras learning-rate schedule",
    "several steps": "steps_per_execution 3",
    "loss scale": "mixed_bfloat16",
    "average": "use_ema of Adam",
    "sum of its own": "the loss 'summed' is a sum over samples",
    "mean metric": "let the function return one value for each sample",
    "metric": "Keras metric 'largest' cannot be added up over workers; keep sums in its variables",
    "constraint": "only optimizers of Keras apply the constraint",
    "half": "set_dtype_policy('mixed_bfloat16')",
    "loss options": "loss_options has no effect with a Keras model",
    "optimizer": "did you mean 'adam'",
    "shape": "the model cannot take the first samples",
    "a regression": "metric 'kappa' decides for a class, but the loss 'mean_squared_error' fits numbers",
    "a label of 2": "sample 7 of the training data has target 2, but loss 'binary_crossentropy' needs targets in 0..1",
    "one of two with a mask": "several losses of which one leaves samples out (a mask, or",
    "synchronised": "the layer norm is a BatchNormalization with synchronized=True, but statistics over all of the 2 workers",
    "made already": "give the function that makes it",
}


@pytest.mark.parametrize("backend", ["torch", *(pytest.param(backend, marks=pytest.mark.soak) for backend in BACKENDS[1:])])
def test_what_cannot_be_trained_is_refused_before(backend: str) -> None:
    env = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    program = PROGRAM.with_name("keras_refused.py")
    done = subprocess.run([sys.executable, str(program)], env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-4000:]
    messages = json.loads(done.stdout.splitlines()[-1])
    assert messages.keys() == REFUSED.keys()
    assert {name: text for name, text in messages.items() if REFUSED[name] not in text} == {}


NO_KERAS = {
    "nonsense": ("", "Keras has no backend 'nonsense' (KERAS_BACKEND); set it to torch, tensorflow or jax"),
    "tensorflow": ("sys.modules['tensorflow'] = None", "the Keras backend tensorflow (KERAS_BACKEND, else"),
    "torch": ("sys.modules['keras'] = None", "Keras is not installed here; pip install 'unisono[keras]'"),
}


@pytest.mark.parametrize("backend", NO_KERAS)
def test_a_missing_backend_is_reported(backend: str, tmp_path: Path) -> None:
    """Two workers, one message, no traceback."""
    missing, told = NO_KERAS[backend]
    (tmp_path / "task.py").write_text(f"import sys\n{missing}\nimport keras\n")
    done = subprocess.run(
        [sys.executable, "-m", "unisono", "train", "task.py", "-n", "2"],
        cwd=tmp_path,
        env={**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 2
    assert done.stderr.count(told) == 1 and "Traceback" not in done.stderr, done.stderr


@pytest.mark.soak  # compiles six times
@pytest.mark.timeout(280)
@pytest.mark.parametrize("backend", BACKENDS)
def test_shards_give_the_same_bits_on_any_number_of_workers(backend: str, tmp_path: Path) -> None:
    task = Path(__file__).parents[2] / "examples" / "keras_digits.py"
    hashes = set()
    for workers in ("1", "2"):
        subprocess.run(
            [
                *(sys.executable, "-m", "unisono", "train", str(task), "-n", workers, "--shards", "2"),
                *("--epochs", "2", "--out", str(tmp_path / workers), "--quiet"),
            ],
            cwd=tmp_path,
            env={**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
            check=True,
            timeout=130,
        )
        hashes.add(json.loads((tmp_path / workers / "summary.json").read_text())["weights_sha256"])
    assert len(hashes) == 1
