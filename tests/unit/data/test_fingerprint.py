"""Fingerprints: equal for equal data, different for others, and cheap."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset, random_split

from unisono.data.data_differences import describe_differences, differing_values
from unisono.data.fingerprint import earlier_hash_of, fingerprint
from unisono.data.source import Indices, Source
from unisono.data.sources.arrays import Arrays
from unisono.data.sources.sequence import Items
from unisono.data.splits import Splits

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(500, 12)).astype(np.float32)
Y = RANDOM.integers(0, 3, 500)


class Counting(Source):
    """Large samples in a file; counts those that are read."""

    def __init__(self, chunk_samples: int | None = None) -> None:
        self.chunk_samples = chunk_samples
        self.num_read = 0

    def __len__(self) -> int:
        return 10_000

    def read(self, indices: Indices) -> Any:
        self.num_read += len(indices)
        return (np.broadcast_to(indices[:, None].astype(np.float32), (len(indices), 1 << 20)),)


def difference(one: Source, other: Source) -> list[str]:
    return describe_differences(json.loads(json.dumps(fingerprint(one))), fingerprint(other))


def test_equal_data_have_equal_fingerprints_and_others_do_not() -> None:
    order = np.random.default_rng(1).permutation(500)
    assert difference(Arrays(X, Y), Arrays(X.copy(), Y.copy())) == []
    assert difference(Arrays(X, Y), Arrays(X[order], Y[order])) == ["labels", "values of the inputs", "values of the targets"]
    assert difference(Arrays(X, Y), Arrays(X, Y).subset(order)) == ["order of the samples", "labels"]
    assert difference(Arrays(X, Y), Arrays(X[::2], Y[::2])) == ["number of samples: 250, not 500"]
    assert difference(Arrays({"a": X, "b": X}), Arrays({"a": X, "b": X + 1})) == ["values of the inputs (b)"]
    assert difference(Arrays(X), Arrays(X.astype(np.float64))) == ["names, sizes or types"]


def test_one_sample_that_changed_shows_and_rounding_does_not() -> None:
    changed = X.copy()
    changed[77] = changed[78]
    assert difference(Arrays(X[:200]), Arrays(changed[:200])) == ["values of the inputs"]
    assert difference(Arrays(X), Arrays(np.nextafter(X, np.float32(9)))) == []
    assert difference(Arrays(X), Arrays(2 * X)) == ["values of the inputs"]


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 1e30])
def test_odd_numbers_hide_nothing(odd: float) -> None:
    with_odd = X.copy()
    with_odd[:, 3] = odd
    changed = with_odd.copy()
    changed[:, 4] = -changed[:, 4]
    assert difference(Arrays(with_odd), Arrays(with_odd.copy())) == []
    assert difference(Arrays(with_odd), Arrays(changed)) == ["values of the inputs"]


def test_samples_that_are_drawn_anew_in_every_reading_are_not_compared() -> None:
    own = np.random.default_rng()
    drawn = Items([(X[0], 1)] * 8).map(lambda batch: (batch[0] + own.normal(size=batch[0].shape), batch[1]))
    found = fingerprint(drawn)["values"]
    assert found["[0]"] is None and found["[1]"] is not None
    assert differing_values(found, fingerprint(drawn)["values"]) == []


def test_draws_from_the_generators_of_the_process_are_compared_and_leave_them_as_they_were() -> None:
    drawn = Arrays(X, Y).map_inputs(lambda x: x + np.random.normal(size=x.shape))
    np.random.seed(5)
    expected = np.random.random(3)
    np.random.seed(5)
    assert difference(drawn, drawn) == []
    assert np.random.random(3).tolist() == expected.tolist()


@pytest.mark.parametrize(("chunk_samples", "most"), [(None, 40), (100, 5)])
def test_few_samples_of_large_data_are_read(chunk_samples: int | None, most: int) -> None:
    source = Counting(chunk_samples)
    fingerprint(source)
    assert 0 < source.num_read <= most


DATA: Any = TensorDataset(torch.randn(60, 4, generator=torch.Generator().manual_seed(0)))


def drawn(seed: int) -> Splits:
    parts: Any = random_split(DATA, [40, 10, 10], generator=torch.Generator().manual_seed(seed))
    return Splits(*parts)


def test_two_seeds_of_random_split_have_two_hashes() -> None:
    assert drawn(0).sha256() == drawn(0).sha256() != drawn(1).sha256()
    alone, other = (drawn(seed).record()["parts_sha256"] for seed in (0, 1))
    assert all(alone[part] != other[part] for part in ("train", "validation", "test"))


def test_a_subset_is_known_by_its_samples_in_the_data_set() -> None:
    made: Any = random_split(DATA, [40, 20], generator=torch.Generator().manual_seed(3))
    numbers: Any = np.asarray(made[1].indices)
    by_hand = Splits(Subset(DATA, made[0].indices[::-1]), Subset(Subset(DATA, range(60)), numbers))
    assert by_hand.sha256() == Splits(*made).sha256(), "neither order nor nesting changes which samples are where"
    assert Splits(made[0], Subset(made[1], range(19))).sha256() != Splits(*made).sha256()


@pytest.mark.parametrize("seed", [0, 1])
def test_the_hash_of_an_earlier_version_is_still_known(seed: int) -> None:
    """It did not see which samples of a data set a part has."""
    recorded = earlier_hash_of(drawn(0).parts())
    assert drawn(seed).is_recorded_as(recorded) and recorded != drawn(seed).sha256()
    arrays = Splits((np.zeros((9, 2)), np.arange(9)))
    assert earlier_hash_of(arrays.parts()) == arrays.sha256() and not arrays.is_recorded_as(recorded)
