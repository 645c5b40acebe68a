"""JEDI-net: its published size, its equations, and jets whose best accuracy is known."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from math import pi, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import elu
from torch.utils.flop_counter import FlopCounterMode

from examples import jets
from unisono.errors import UsageError
from unisono.task.task_file import load_task

EXAMPLES = Path(__file__).parents[3] / "examples"
PROGRAM = Path(__file__).parent / "programs" / "jedi_net_in_keras.py"
PUBLISHED = 33_625


def made(**arguments: Any) -> nn.Module:
    torch.manual_seed(0)
    found = load_task(str(EXAMPLES / "jedi_net.py")).model(**arguments)
    assert isinstance(found, nn.Module)
    return found


def as_published(net: nn.Module, given: Tensor) -> Tensor:
    """The scores of a model that does not sum, by the equations of the paper: matrices of zeros and ones pick every edge."""
    num_particles = given.shape[1]
    edges = [(receiver, sender) for receiver in range(num_particles) for sender in range(num_particles) if receiver != sender]
    is_receiver, is_sender = (torch.eye(num_particles, dtype=given.dtype)[list(ends)] for ends in zip(*edges, strict=True))
    first = torch.cat([net.get_parameter("as_receiver.weight"), net.get_parameter("as_sender.weight")], 1)
    pairs = torch.cat([is_receiver @ given, is_sender @ given], 2)
    effect = net.get_submodule("effect")
    assert isinstance(effect, nn.Sequential)
    on_edges = effect[1:](elu(nn.functional.linear(pairs, first, net.get_parameter("as_receiver.bias"))))
    outputs = net.get_submodule("particle")(torch.cat([given, is_receiver.T @ on_edges], 2))
    scores: Tensor = net.get_submodule("jet")(outputs.flatten(1))
    return scores


def test_the_published_model_is_that_of_100_particles() -> None:
    assert sum(one.numel() for one in made(particles=100).parameters()) == PUBLISHED


def test_the_published_operations_are_counted_with_dense_matrices_of_edges() -> None:
    net, given = made(particles=100), torch.randn(1, 100, jets.NUM_FEATURES)
    with FlopCounterMode(display=False) as published:
        expected = as_published(net, given)
    with FlopCounterMode(display=False) as ours:
        found = net(given)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)  # both sum 99 effects in float32, in another order
    # Biases, of which this counts none, and factors of 1, which the authors' tool counts, are the rest of the 116 MFLOP.
    assert round(published.get_total_flops() / 1e6, 1) == 114.4
    assert round(ours.get_total_flops() / 1e6, 1) == 12.6


@pytest.mark.parametrize("num_particles", [1, 2, 5])
def test_scores_and_gradients_are_those_of_the_equations(num_particles: int) -> None:
    net, given = made(particles=num_particles).double(), torch.randn(3, num_particles, jets.NUM_FEATURES, dtype=torch.float64)
    if num_particles == 1:  # no edge at all: nothing is received
        outputs = net.get_submodule("particle")(torch.cat([given, torch.zeros(3, 1, 10, dtype=torch.float64)], 2))
        torch.testing.assert_close(net(given), net.get_submodule("jet")(outputs.flatten(1)))
        return
    expected = as_published(net, given)
    weights = list(net.parameters())
    gradients = torch.autograd.grad(expected.square().sum(), weights)
    torch.testing.assert_close(net(given), expected)
    torch.testing.assert_close(torch.autograd.grad(net(given).square().sum(), weights), gradients)


def test_summed_the_order_of_particles_does_not_matter() -> None:
    given, order = torch.randn(4, 9, jets.NUM_FEATURES), torch.randperm(9)
    summed, flat = made(particles=9, summed=True), made(particles=9)
    torch.testing.assert_close(summed(given[:, order]), summed(given), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(flat(given[:, order]), flat(given), rtol=1e-2, atol=1e-2)


@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="Keras is not installed: pip install 'unisono[keras]'")
def test_the_keras_model_is_the_same() -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(EXAMPLES / "jedi_net.py"), str(EXAMPLES / "jedi_net_keras.py")],
        env={**os.environ, "KERAS_BACKEND": "torch"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert (found["parameters"], found["built"]) == (PUBLISHED, True)
    assert max(found["differences"]) < 1e-4


def test_one_particle_alone_does_not_separate_the_classes() -> None:
    one, _ = jets.draw(50, particles=1, signal=1.0, seed=0)
    np.testing.assert_allclose(jets.log_likelihood(one, signal=1.0), 0, atol=1e-9)
    assert jets.best_accuracy(particles=1, signal=1.0, num_jets=50) == pytest.approx((0.2, 0), abs=1e-9)


def test_jets_are_drawn_from_the_likelihood() -> None:
    # Two particles, seen from one of them: relative to any angle the likelihood is a density with mean 1, and the pairs drawn have
    # its Fourier coefficients.
    angles = 2 * pi / 60 * np.arange(60)
    pairs = np.zeros((60, 2, jets.NUM_FEATURES))
    pairs[:, 0, jets.ETA], pairs[:, 1, jets.ETA], pairs[:, 1, jets.PHI] = 1, np.cos(angles), np.sin(angles)
    density = np.exp(jets.log_likelihood(pairs, signal=1.2))
    np.testing.assert_allclose(density.mean(0), 1, rtol=1e-9)

    drawn, labels = jets.draw(50_000, particles=2, signal=1.2, seed=0)
    between = np.diff(np.arctan2(drawn[..., jets.PHI], drawn[..., jets.ETA]))[:, 0]
    for label in range(len(jets.CLASSES)):
        for harmonic in (1, 2, 3, 4):
            seen = np.cos(harmonic * between[labels == label])
            expected = (np.cos(harmonic * angles) * density[:, label]).mean()
            assert abs(seen.mean() - expected) < 4 * seen.std() / sqrt(len(seen)), (label, harmonic)


def test_the_likelihood_does_not_depend_on_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    some, _ = jets.draw(100, particles=100, signal=3.8, seed=0)
    coarse = jets.log_likelihood(some, signal=3.8)
    monkeypatch.setattr(jets, "NUM_TURNS", 4 * jets.NUM_TURNS)
    np.testing.assert_allclose(jets.log_likelihood(some, signal=3.8), coarse, atol=1e-6)


def test_the_best_accuracy_is_what_the_likeliest_class_reaches() -> None:
    best, error = jets.best_accuracy(num_jets=1500)
    fresh, labels = jets.draw(1500, particles=16, signal=3.8, seed=2)
    right = (jets.log_likelihood(fresh, signal=3.8).argmax(1) == labels).mean()
    assert abs(right - best) < 4 * sqrt(error**2 + best * (1 - best) / 1500)
    assert 0.9 < best < 0.96


def test_jets_are_a_function_of_the_seed() -> None:
    one, again, other = (jets.draw(20, particles=4, signal=1.5, seed=seed)[0] for seed in (0, 0, 1))
    assert np.array_equal(one, again) and not np.array_equal(one, other)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Ten jets in the form of the public files: the class stands before the last column of 59."""
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "jets.h5"
    table = np.full((10, 59), 7.0)
    table[:, -6:] = np.eye(6)[np.arange(10) % 5]
    with h5py.File(path, "w") as made:
        made["jets"] = table
        made.create_dataset("jetConstituentList", data=np.linspace(-900, 900, 10 * 6 * 16).reshape(10, 6, 16), compression="gzip")
        made["jetFeatureNames"] = [b"j_ptfrac"] * 59
    return path


def test_the_public_form_is_read(file: Path) -> None:
    splits = jets.data(kind="hdf5", path=str(file), particles=4)
    assert {name: len(part) for name, part in splits.parts().items()} == {"train": 8, "validation": 1, "test": 1}
    features, labels = jets.read_hdf5(str(file), particles=4).read(np.array([7, 0]))
    assert (features.shape, features.dtype) == ((2, 4, 16), np.float32)
    assert labels.tolist() == [2, 0]
    assert features[1, 0, 0] == pytest.approx(-np.log(901))


def test_jets_that_cannot_be_read_are_refused(file: Path) -> None:
    with pytest.raises(UsageError, match="holds 6 particles of 16 features, but the task needs 7 of 16"):
        jets.data(kind="hdf5", path=str(file), particles=7)
    with pytest.raises(UsageError, match=r"need their files: --set data\.path"):
        jets.data(kind="hdf5")
    with pytest.raises(UsageError, match="unknown kind 'real'"):
        jets.data(kind="real")
    with pytest.raises(UsageError, match="one of the five classes, but one has 0"):
        jets.classified((np.zeros((1, 2, 16)), np.zeros((1, 59))), particles=2)
