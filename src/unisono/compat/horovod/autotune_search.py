"""Which fusion threshold and cycle time give the best throughput. Pure: it asks for measurements and is told their scores.

A Gaussian process of the scores seen so far says which setting of a short list is worth a try (expected improvement). In the
end the best one is measured in turns with the start. It is kept only if all but its worst score are above all but the best of
the start: settings that do not differ pass that in less than 2 of 100 cases, and one disturbed sample decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

MIB = 1 << 20
THRESHOLDS_BYTES = (0, MIB // 4, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 128 * MIB)
CYCLE_TIMES_S = (0.0, 0.5e-3, 1e-3, 2.5e-3, 5e-3, 10e-3)
NUM_TURNS = 7
LEAST_GAIN = 1.02
"""What is not even so much better is not worth another setting than the one that was asked for."""
_LENGTH = 0.2
"""Over which scores are alike, of an axis of length 1."""

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """What is tuned."""

    fusion_threshold_bytes: int
    cycle_time_s: float

    def __str__(self) -> str:
        return f"fusion threshold {self.fusion_threshold_bytes / MIB:g} MiB, cycle time {self.cycle_time_s * 1e3:g} ms"

    @property
    def point(self) -> tuple[float, float]:
        """In the unit square, in which equal factors are about equal distances."""
        return (
            math.log1p(self.fusion_threshold_bytes / (MIB / 16)) / math.log1p(128 * 16),
            math.log1p(self.cycle_time_s / 0.25e-3) / math.log1p(40),
        )


@dataclass(frozen=True)
class Verdict:
    """What is kept, and why."""

    kept: Setting
    score: float
    """The median, as that of the others."""
    start_score: float
    best: Setting
    """What the search found best; the start itself if nothing looked better."""
    best_score: float


def candidates(start: Setting) -> list[Setting]:
    """The short list, with the start in front."""
    listed = [Setting(threshold, cycle) for threshold in THRESHOLDS_BYTES for cycle in CYCLE_TIMES_S]
    return [start, *(setting for setting in listed if setting != start)]


def search(start: Setting, warmup_samples: int, max_samples: int, noise: float) -> Generator[Setting, float, Verdict]:
    """Yields the setting to be measured next, is sent its score, and returns what to keep."""
    for _ in range(warmup_samples):
        yield start
    listed = candidates(start)
    tried: list[Setting] = []
    scores: list[float] = []
    while len(tried) < max_samples:
        setting = start if not tried else promising(listed, tried, scores, noise)
        tried.append(setting)
        scores.append((yield setting))
    expected, _ = posterior(tried, scores, tried, noise)
    best = tried[int(np.argmax(expected))]
    if best == start:
        score = median(score for setting, score in zip(tried, scores, strict=True) if setting == start)
        return Verdict(start, score, score, start, score)
    found: dict[Setting, list[float]] = {start: [], best: []}
    for turn in range(NUM_TURNS):
        for setting in (start, best) if turn % 2 else (best, start):  # what changes with time is the same for both
            found[setting].append((yield setting))
    ours, theirs = found[best], found[start]
    kept = best if beats(ours, theirs) else start
    return Verdict(kept, median(found[kept]), median(theirs), best, median(ours))


def beats(scores: Sequence[float], others: Sequence[float]) -> bool:
    """Whether they are better beyond the noise of both."""
    return sorted(scores)[1] > sorted(others)[-2] and median(scores) > LEAST_GAIN * median(others)


def promising(listed: Sequence[Setting], tried: Sequence[Setting], scores: Sequence[float], noise: float) -> Setting:
    """Of the list: where the best is expected to be exceeded the most. The first of those that are alike."""
    mean, deviation = posterior(tried, scores, listed, noise)
    best = float(posterior(tried, scores, tried, noise)[0].max())
    gains = [_expected_gain(float(m) - best, float(d)) for m, d in zip(mean, deviation, strict=True)]
    return listed[int(np.argmax(gains))]


def posterior(tried: Sequence[Setting], scores: Sequence[float], at: Sequence[Setting], noise: float) -> tuple[Vector, Vector]:
    """Mean and standard deviation of the Gaussian process at each setting, in units of the spread of all scores."""
    values = np.asarray(scores, np.float64)
    spread = float(values.std())
    values = (values - values.mean()) / (spread or 1.0)
    known, asked = _points(tried), _points(at)
    least = 1e-6  # of the diagonal: a setting that was tried twice would make the matrix singular without noise
    covariance = _alike(known, known) + (noise**2 + least) * np.eye(len(known))
    cross = _alike(asked, known)
    solved = np.linalg.solve(covariance, np.column_stack([values, cross.T]))
    mean = cross @ solved[:, 0]
    variance = 1.0 - np.einsum("ij,ji->i", cross, solved[:, 1:])
    return mean, np.sqrt(np.maximum(variance, 0.0))


def _points(settings: Sequence[Setting]) -> Vector:
    return np.array([setting.point for setting in settings], np.float64)


def _alike(first: Vector, second: Vector) -> Vector:
    distances = ((first[:, None, :] - second[None, :, :]) ** 2).sum(-1)
    alike: Vector = np.exp(-0.5 * distances / _LENGTH**2)
    return alike


def _expected_gain(gain: float, deviation: float) -> float:
    """Of a normal variable with that mean and deviation, where it is above 0."""
    if deviation < 1e-9:
        return max(gain, 0.0)
    z = gain / deviation
    return gain * 0.5 * (1 + math.erf(z / math.sqrt(2))) + deviation * math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
