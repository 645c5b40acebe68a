"""Jets for `jedi_net`: made up, with a best reachable accuracy that is known, or read from the public HDF5 files.

A made-up jet is a set of particles around an axis. Its class says in which directions around the axis they crowd: gluon, one broad
prong; light quark, one narrow prong; W, two opposite prongs; Z, two that are not quite opposite; top, three. A particle belongs to
one of the prongs or, as soft radiation, to none and lies anywhere; then the whole jet is turned by a random angle. So a particle
by itself has the same law in all five classes. What tells them apart are the angles between particles.

Given its class and its turn t, the particles of a jet are independent, and the likelihood is one integral:

    p(jet | class) = mean over t of (product over particles i of f_class(angle_i - t))

`log_likelihood` takes the mean over equal steps, which for a smooth periodic function is exact to many digits. No classifier does
better than to name the likeliest class; `best_accuracy` says how often that is right.

    python examples/jets.py                   # the best accuracy for 16, 30 and 100 particles

The public files are those of the hls4ml LHC jet dataset, e.g. doi:10.5281/zenodo.3602260 with 150 particles of each jet.
"""

from __future__ import annotations

from functools import partial
from math import pi, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

import unisono as un

Floats = npt.NDArray[np.floating[Any]]

CLASSES = (
    ((0,), 2.0),  # gluon
    ((0,), 10.0),  # light quark
    ((0, 1 / 2), 8.0),  # W
    ((0, 2 / 5), 8.0),  # Z
    ((0, 1 / 3, 2 / 3), 8.0),  # top
)
"""In the order of the public files: where the prongs point, in turns; how narrow they are (concentration of a von Mises law)."""
NUM_FEATURES = 16
ETA, PHI, DISTANCE = 8, 11, 13
"""Columns of the public files that say where a particle lies relative to the axis. In made-up jets the others are noise."""
NUM_TURNS = 120
"""Steps of the mean over all turns; the directions of prongs are whole numbers of them."""


def data(
    kind: str = "synthetic",
    path: str | None = None,
    particles: int = 16,
    num_jets: int = 50_000,
    signal: float = 3.8,
    seed: int = 0,
) -> un.Splits:
    """`path` names the files of kind "hdf5" (it may be a pattern); `num_jets` and `signal` are of kind "synthetic"."""
    if kind == "synthetic":
        jets: Any = draw(num_jets, particles, signal, seed)
    elif kind == "hdf5":
        if path is None:
            raise un.UsageError("jets of kind hdf5 need their files: --set data.path='train/*.h5'")
        jets = read_hdf5(path, particles)
    else:
        raise un.UsageError(f"unknown kind {kind!r} of jets (--set data.kind); use synthetic or hdf5")
    return un.split(jets, validation=0.1, test=0.1, seed=seed)


def read_hdf5(path: str, particles: int) -> un.Source:
    """The first particles of each jet, in the order of the files, and its class."""
    files = un.HDF5(path, inputs="jetConstituentList", targets="jets")
    num_there, num_features = files.read(np.arange(1))[0].shape[1:]
    files.close()
    if particles > num_there or num_features != NUM_FEATURES:
        raise un.UsageError(
            f"{path} holds {num_there} particles of {num_features} features, but the task needs {particles} of {NUM_FEATURES}; "
            "give fewer (--set data.particles), or files that hold more"
        )
    return files.map(partial(classified, particles=particles))


def classified(batch: Any, particles: int) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Of `jets` only the columns that say the class, which stand before the last."""
    constituents, jets = batch
    is_class = jets[:, -6:-1]
    num_classes = is_class.sum(1)
    if wrong := num_classes[num_classes != 1].tolist():
        raise un.UsageError(
            f"each jet must have one of the five classes, but one has {wrong[0]:g}; give files of the hls4ml LHC jet dataset "
            "(--set data.path)"
        )
    return squeezed(constituents[:, :particles]), is_class.argmax(1)


def squeezed(features: Floats) -> Floats:
    """Momenta span decades and have signs: near 0 the value, far from it the logarithm."""
    return (np.sign(features) * np.log1p(np.abs(features))).astype(np.float32)


def draw(num_jets: int, particles: int, signal: float, seed: int) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Pure: made-up jets, an array (jets, particles, features), and their classes."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, len(CLASSES), num_jets)
    turns = random.random((num_jets, 1))
    angles = 2 * pi * random.random((num_jets, particles))
    in_prong = random.random((num_jets, particles)) < share_in_prongs(signal, particles)
    for label, (directions, concentration) in enumerate(CLASSES):
        own = labels == label
        prongs = turns[own] + random.choice(directions, (own.sum(), particles))
        around = random.vonmises(0, concentration, prongs.shape)
        angles[own] = np.where(in_prong[own], 2 * pi * prongs + around, angles[own])
    distances = random.uniform(0.5, 1.5, angles.shape)
    jets = random.standard_normal((num_jets, particles, NUM_FEATURES), dtype=np.float32)
    jets[..., ETA], jets[..., PHI], jets[..., DISTANCE] = distances * np.cos(angles), distances * np.sin(angles), distances
    return jets, labels


def share_in_prongs(signal: float, particles: int) -> float:
    """Of all particles. Their pairs tell as much as the square of this share times their number, so that one `signal` is about
    as hard to see whatever the number of particles."""
    return min(1.0, signal / sqrt(particles))


def log_likelihood(jets: Floats, signal: float) -> npt.NDArray[np.float64]:
    """Pure: for each jet and class the logarithm of the likelihood, relative to particles that lie anywhere."""
    angles = np.arctan2(jets[..., PHI], jets[..., ETA]).astype(np.float64)
    share = share_in_prongs(signal, angles.shape[1])
    turns = 2 * pi / NUM_TURNS * np.arange(NUM_TURNS)
    found = np.empty((len(angles), len(CLASSES)))
    for jet, own in enumerate(angles):  # one at a time: all that it needs stays in the processor's cache
        cosine = np.cos(own[:, None] - turns)
        for label, (directions, concentration) in enumerate(CLASSES):
            prong = np.exp(concentration * cosine) / np.i0(concentration)
            prongs = sum(np.roll(prong, round(direction * NUM_TURNS), axis=1) for direction in directions)
            of_turn = np.log(1 - share + share / len(directions) * prongs).sum(0)
            found[jet, label] = of_turn.max() + np.log(np.exp(of_turn - of_turn.max()).mean())
    return found


def best_accuracy(particles: int = 16, signal: float = 3.8, num_jets: int = 5000, seed: int = 1) -> tuple[float, float]:
    """Pure: what the best classifier reaches, and the standard error of that number, from so many jets.

    Naming the likeliest class is right with the probability of that class, given the jet; its mean is a better estimate than the
    share of right answers.
    """
    jets, _ = draw(num_jets, particles, signal, seed)
    likelihood = log_likelihood(jets, signal)
    of_likeliest = 1 / np.exp(likelihood - likelihood.max(1, keepdims=True)).sum(1)
    return float(of_likeliest.mean()), float(of_likeliest.std() / sqrt(num_jets))


if __name__ == "__main__":
    for particles in (16, 30, 100):
        best, error = best_accuracy(particles)
        print(f"{particles} particles: at best {best:.3f} +- {error:.3f}")
