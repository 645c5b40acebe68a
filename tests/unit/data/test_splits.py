"""Splits: every sample in one part, sizes as asked, the same for ever for one seed, and no part that sees another."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from unisono.data.checks import check_labels, first_not_finite
from unisono.data.source import Source, Subset
from unisono.data.sources.arrays import Arrays
from unisono.data.sources.matlab import Scene
from unisono.data.splits import Splits, folds, split
from unisono.data.target_checks import check_targets
from unisono.errors import UsageError

often = settings(max_examples=60, deadline=None, database=None, derandomize=True)

Array = npt.NDArray[Any]


def numbered(count: int, labels: Array | None = None) -> Arrays:
    """Samples whose input is their number."""
    return Arrays(np.arange(count), np.zeros(count, dtype=np.int64) if labels is None else labels)


def indices(part: Source | None) -> Array:
    if part is None:
        return np.zeros(0, dtype=np.int64)
    assert isinstance(part, Subset)
    return part.indices


def three(splits: Splits) -> tuple[Array, Array, Array]:
    return indices(splits.train), indices(splits.validation), indices(splits.test)


def each_once(splits: Splits, count: int) -> bool:
    found = np.concatenate(three(splits))
    return len(found) + splits.num_dropped == count and len(np.unique(found)) == len(found)


# ---- given ---------------------------------------------------------------------------------------------------------


def test_given_parts_are_opened_as_sources() -> None:
    x, y = np.zeros((10, 3), dtype=np.float32), np.arange(10)
    splits = Splits(train=(x, y), test=(x[:4], y[:4]))
    assert len(splits.train) == 10 and splits.validation is None and splits.test is not None and len(splits.test) == 4
    assert splits.how == "given" and splits.warnings == () and list(splits.parts()) == ["train", "test"]
    assert splits.record()["num_samples"] == {"train": 10, "test": 4}
    json.dumps(splits.record())


def test_empty_parts_are_refused() -> None:
    whole = numbered(4)
    with pytest.raises(UsageError, match="the training data are empty; give at least one sample"):
        Splits(whole.subset([]))
    with pytest.raises(UsageError, match="the test data are empty; give at least one sample, or leave the part out"):
        Splits(whole, test=whole.subset([]))


def test_samples_in_two_parts_are_refused() -> None:
    whole = numbered(10)
    with pytest.raises(UsageError, match=r"2 samples are in both the training and the test data \(the first is sample 4\)"):
        Splits(whole.subset([0, 1, 4, 5]), test=whole.subset([9, 5, 4]))
    with pytest.raises(UsageError, match="1 sample is in both the validation and the test data"):
        Splits(whole.subset([0]), whole.subset([1, 2]), whole.subset([2]))
    with pytest.raises(UsageError, match="10 samples are in both the training"):
        Splits(whole, test=whole)
    inner = whole.subset([5, 6, 7]).map(lambda batch: batch)
    with pytest.raises(UsageError, match="the first is sample 7"):
        Splits(inner.subset([2]), test=whole.subset([7]))
    Splits(inner.subset([0]), test=whole.subset([7]))


def test_splits_travel_to_other_processes() -> None:
    made = split(numbered(20), seed=3)
    assert pickle.loads(pickle.dumps(made)).sha256() == made.sha256()
    assert replace(made, test=None).test is None


# ---- at random -----------------------------------------------------------------------------------------------------


@often
@given(count=st.integers(3, 400), validation=st.floats(0, 0.4), test=st.floats(0, 0.4), seed=st.integers(0, 2**40))
def test_a_random_split_has_the_sizes_asked_for(count: int, validation: float, test: float, seed: int) -> None:
    wanted = [int(share * count + 0.5) for share in (validation, test)]
    assume(all(number or not share for number, share in zip(wanted, (validation, test), strict=True)) and sum(wanted) < count)
    made = split(numbered(count), validation, test, seed=seed)
    assert [len(part) for part in three(made)] == [count - sum(wanted), *wanted]
    assert each_once(made, count)
    again = split(numbered(count), validation, test, seed=seed)
    assert all(np.array_equal(one, other) for one, other in zip(three(made), three(again), strict=True))


def test_a_split_stays_the_same_from_version_to_version() -> None:
    train, validation, test = three(split(numbered(20), validation=3, test=4, seed=7))
    assert (validation.tolist(), test.tolist()) == ([7, 14, 17], [10, 13, 15, 18])
    assert sorted([*train, *validation, *test]) == list(range(20))


def test_seeds_differ() -> None:
    found = {tuple(indices(split(numbered(50), seed=seed).test)) for seed in range(20)}
    assert len(found) == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"validation": 0.5, "test": 0.5}, "leave nothing of 10 samples for training"),
        ({"validation": 0.01}, "validation=0.01 of 10 samples is less than one"),
        ({"test": 1.5}, "test must be a share below 1 or a whole number"),
        ({"test": -1}, "test must be a share"),
        ({"test": float("nan")}, "test must be a share"),
        ({"how": "lottery"}, "how must be one of random, stratified, group, blocks; received 'lottery'"),
        ({"how": "group"}, "needs groups="),
        ({"groups": [0] * 10}, "groups= has an effect only with how='group'"),
        ({"labels": [0] * 10}, "labels= has an effect only with how='stratified' or 'blocks'"),
        ({"block_size": 3}, "block_size= has an effect only with how='blocks'"),
        ({"how": "group", "groups": [1, 2]}, r"groups must hold one value for each of 10 samples; received shape \(2,\)"),
        ({"how": "group", "groups": [1, 2] * 5}, "3 parts need at least 3 groups, as a group is never divided .*; found 2"),
        ({"how": "blocks"}, "needs a scene"),
    ],
)
def test_mistakes_are_explained(options: Mapping[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        split(numbered(10), **options)


# ---- by class ------------------------------------------------------------------------------------------------------


@often
@given(
    sizes=st.lists(st.integers(5, 60), min_size=1, max_size=6),
    validation=st.floats(0.1, 0.3),
    test=st.floats(0.1, 0.3),
    seed=st.integers(0, 1000),
)
def test_a_stratified_split_keeps_the_shares_of_the_classes(sizes: list[int], validation: float, test: float, seed: int) -> None:
    labels = np.repeat(np.arange(len(sizes)) * 3, sizes)
    count = len(labels)
    wanted = [int(share * count + 0.5) for share in (validation, test)]
    assume(all(number >= len(sizes) for number in wanted))
    made = split(numbered(count, labels), validation, test, how="stratified", seed=seed)
    assert [len(part) for part in three(made)] == [count - sum(wanted), *wanted]
    assert each_once(made, count)
    held = np.array([[(labels[part] == number * 3).sum() for number in range(len(sizes))] for part in three(made)])
    assert held.min() >= 1
    exact = np.outer(wanted, sizes) / count
    if exact.min() >= 1:  # else a class with less than one gets one, at the cost of the others
        assert np.abs(held[1:] - exact).max() < 1


def test_classes_of_equal_size_are_divided_exactly() -> None:
    labels = np.tile(np.arange(10), 100)
    made = split(numbered(1000, labels), 0.1, 0.2, how="stratified")
    assert [np.bincount(labels[part]).tolist() for part in three(made)] == [[70] * 10, [10] * 10, [20] * 10]


def test_rare_classes_are_in_every_part() -> None:
    labels = np.array([0] * 997 + [1] * 3)
    made = split(numbered(1000, labels), 0.01, 0.01, how="stratified")
    assert [np.bincount(labels[part]).tolist() for part in three(made)] == [[979, 1], [9, 1], [9, 1]]


def test_labels_may_be_names_or_one_hot() -> None:
    names = np.array(["cat", "dog"] * 20)
    by_name = split(numbered(40), how="stratified", labels=names)
    one_hot = split(numbered(40), how="stratified", labels=np.eye(2, dtype=np.uint8)[[0, 1] * 20])
    from_source = split(numbered(40, np.array([0, 1] * 20)), how="stratified")
    assert by_name.test is not None and sorted(names[indices(by_name.test)]) == ["cat"] * 4 + ["dog"] * 4
    assert np.array_equal(indices(by_name.test), indices(one_hot.test))
    assert np.array_equal(indices(by_name.test), indices(from_source.test))


def test_classes_too_small_are_named() -> None:
    labels = np.array([0] * 10 + [5] * 2 + [7])
    with pytest.raises(UsageError, match=r"class 5 has 2, class 7 has 1, but .* at least 3 samples for a split into 3 parts"):
        split(numbered(13, labels), how="stratified")
    with pytest.raises(UsageError, match="test would have 2 samples, too few for one of each of 3 classes"):
        split(numbered(30, np.arange(30) % 3), 0.1, 2, how="stratified")
    with pytest.raises(UsageError, match=r"one class for each sample .*; received float64 of shape \(5,\)"):
        split(numbered(5, np.linspace(0, 1, 5)), how="stratified")
    with pytest.raises(UsageError, match="there are none"):
        split(Arrays(np.zeros(10)), how="stratified")


# ---- by group ------------------------------------------------------------------------------------------------------


@often
@given(
    sizes=st.lists(st.integers(1, 20), min_size=3, max_size=40),
    validation=st.floats(0, 0.3),
    test=st.floats(0.05, 0.3),
    seed=st.integers(0, 1000),
)
def test_a_group_lies_wholly_in_one_part(sizes: list[int], validation: float, test: float, seed: int) -> None:
    groups = np.repeat([f"p{number}" for number in range(len(sizes))], sizes)
    count = len(groups)
    wanted = [int(share * count + 0.5) for share in (validation, test)]
    assume(all(number or not share for number, share in zip(wanted, (validation, test), strict=True)) and sum(wanted) < count)
    made = split(numbered(count), validation, test, how="group", groups=groups, seed=seed)
    assert each_once(made, count) and made.num_dropped == 0
    held = [set(groups[part]) for part in three(made)]
    assert sum(map(len, held)) == len(set(groups)) and held[0]
    assert [bool(part) for part in held[1:]] == [bool(number) for number in wanted]


def test_sizes_of_grouped_parts_are_near() -> None:
    groups = np.repeat(np.arange(200), 1 + np.arange(200) % 9)
    for seed in range(20):
        made = split(numbered(len(groups)), 0.1, 0.2, how="group", groups=groups, seed=seed)
        sizes = [len(part) for part in three(made)]
        assert abs(sizes[1] - 0.1 * len(groups)) <= 1 and abs(sizes[2] - 0.2 * len(groups)) <= 1


def test_a_group_more_is_taken_where_that_is_nearer() -> None:
    groups = np.repeat(np.arange(10), 4)
    sizes = [[len(part) for part in three(split(numbered(40), 0, test, how="group", groups=groups))] for test in (5, 6, 7, 9)]
    assert sizes == [[36, 0, 4], [36, 0, 4], [32, 0, 8], [32, 0, 8]]


def test_one_giant_group_does_not_starve_the_others() -> None:
    groups = np.array([0] * 50 + [1, 2])
    train, validation, test = three(split(numbered(52), 0.1, 0.2, how="group", groups=groups))
    assert (len(train), len(validation), len(test)) == (50, 1, 1)


# ---- scenes --------------------------------------------------------------------------------------------------------


def scene(patch_size: int, size: tuple[int, int] = (40, 50), seed: int = 0, num_classes: int = 3) -> Scene:
    """Fields of classes, some pixels without a label."""
    random = np.random.default_rng(seed)
    fields = random.integers(0, num_classes + 1, size=(-(-size[0] // 5), -(-size[1] // 5)))
    labels = np.kron(fields, np.ones((5, 5), dtype=np.int64))[: size[0], : size[1]]
    labels[0, 0] = 1
    return Scene(random.random((*size, 4)), labels, patch_size=patch_size)


def nearest(one: Array, other: Array) -> int:
    """The smallest distance of a pixel of one part to one of the other, in rows or columns, whichever is more."""
    return int(np.abs(one[:, None] - other[None]).max(axis=2).min())


@often
@given(
    patch_size=st.integers(1, 6),
    rows=st.integers(20, 40),
    columns=st.integers(20, 40),
    validation=st.sampled_from([0, 0.1, 0.2]),
    seed=st.integers(0, 1000),
    block_size=st.sampled_from([None, 4, 7]),
)
def test_patches_of_different_parts_of_a_scene_share_no_pixel(
    patch_size: int, rows: int, columns: int, validation: float, seed: int, block_size: int | None
) -> None:
    whole = scene(patch_size, (rows, columns), seed)
    try:
        made = split(whole, validation, 0.2, how="blocks", seed=seed, block_size=block_size)
    except UsageError as refused:
        assert "no training pixel is left" in str(refused) or "groups" in str(refused)
        return
    assert each_once(made, len(whole))
    places = [whole.coordinates[part] for part in three(made) if len(part)]
    for number, part in enumerate(places):
        for other in places[number + 1 :]:
            assert nearest(part, other) >= patch_size
    assert not any("inside training patches" in text for text in made.warnings)


def test_pixels_of_the_margin_are_dropped_and_counted() -> None:
    whole = scene(5)
    made = split(whole, 0.1, 0.2, how="blocks", block_size=10)
    assert made.num_dropped > 0 and each_once(made, len(whole))
    assert made.record()["num_dropped"] == made.num_dropped
    without = split(scene(1), 0.1, 0.2, how="blocks", block_size=10)
    assert without.num_dropped == 0


def test_a_random_split_of_patches_says_how_many_test_pixels_were_seen() -> None:
    whole = scene(3)
    made = split(whole, 0, 0.3)
    train, _, test = three(made)
    taken = {tuple(place) for place in whole.coordinates[train]}
    around = [(row, column) for row in (-1, 0, 1) for column in (-1, 0, 1)]
    seen = sum(any((row + dr, column + dc) in taken for dr, dc in around) for row, column in whole.coordinates[test].tolist())
    assert 0 < seen <= len(test)
    assert made.record()["warnings"] == list(made.warnings) and len(made.warnings) == 1
    assert made.warnings[0].startswith(
        f"{seen} of {len(test)} test pixels ({seen / len(test):.1%}) lie inside training patches of 3x3"
    )
    assert split(scene(1), 0, 0.3).warnings == ()


def test_a_patch_of_even_size_reaches_further_before_its_centre() -> None:
    whole = Scene(np.zeros((1, 9, 2)).repeat(4, axis=0), np.ones((4, 9), dtype=np.int64), patch_size=4)
    at = {tuple(place): number for number, place in enumerate(whole.coordinates.tolist())}
    for distance, covered in ((-3, 0), (-2, 1), (-1, 1), (1, 1), (2, 0)):
        made = Splits(whole.subset([at[0, 4]]), test=whole.subset([at[0, 4 + distance]]))
        assert len(made.warnings) == covered, distance
        batch = whole.read(np.array([at[0, 4]]))[0]
        assert batch.shape == (1, 2, 4, 4)


def test_parts_given_by_hand_are_checked_too() -> None:
    whole = scene(9)
    middle = len(whole) // 2
    made = Splits(whole.subset(range(middle)), validation=whole.subset(range(middle, len(whole))))
    assert "validation pixels" in made.warnings[0] and "use how='blocks'" in made.warnings[0]
    assert replace(made, validation=made.validation).warnings == made.warnings


def test_classes_that_a_part_lacks_are_named() -> None:
    labels = np.ones((30, 30), dtype=np.int64)
    labels[0, :3] = 2
    whole = Scene(np.zeros((30, 30, 2)), labels, patch_size=3)
    made = split(whole, 0, 0.25, how="blocks", block_size=5)
    assert made.warnings == ("the test data have no sample of class 1",), "training gets a class that lies in one place"


def test_a_scene_too_small_for_its_patches_is_refused() -> None:
    with pytest.raises(UsageError, match="no training pixel is left between the blocks and their margin of 8 pixels"):
        split(scene(9, (12, 12)), 0, 0.3, how="blocks", block_size=4)


def test_part_of_a_scene_can_be_split_again() -> None:
    whole = scene(3)
    outer = split(whole, 0, 0.3, how="blocks")
    inner = split(outer.train, 0, 0.3, how="blocks", seed=1)
    train, test = (outer.train.indices[indices(part)] for part in (inner.train, inner.test))  # type: ignore[attr-defined]
    assert nearest(whole.coordinates[train], whole.coordinates[test]) >= 3
    assert inner.num_dropped == len(outer.train) - len(train) - len(test)


# ---- folds ---------------------------------------------------------------------------------------------------------


@often
@given(
    count=st.integers(4, 200),
    k=st.integers(2, 4),
    seed=st.integers(0, 1000),
    how=st.sampled_from(["random", "stratified", "group"]),
)
def test_every_sample_is_held_out_once(count: int, k: int, seed: int, how: str) -> None:
    classes = np.arange(count) % max(1, min(3, count // k))
    groups = np.arange(count) // max(1, count // 10)
    assume(how != "group" or len(set(groups)) >= k)
    made = folds(numbered(count, classes), k, how, seed, groups=groups if how == "group" else None)
    assert len(made) == k and all(each_once(one, count) and one.test is None for one in made)
    held = [indices(one.validation) for one in made]
    assert sorted(np.concatenate(held)) == list(range(count))
    if how != "group":
        assert max(map(len, held)) - min(map(len, held)) <= 1
    if how == "stratified":
        for name in set(classes):
            counts = [int((classes[part] == name).sum()) for part in held]
            assert max(counts) - min(counts) <= 1
    if how == "group":
        assert all(not set(groups[indices(one.train)]) & set(groups[indices(one.validation)]) for one in made)
        assert max(map(len, held)) - min(map(len, held)) <= np.bincount(groups).max()


def test_folds_of_a_scene_keep_their_distance() -> None:
    whole = scene(3)
    made = folds(whole, 4, "blocks", block_size=8)
    assert sorted(np.concatenate([indices(one.validation) for one in made])) == list(range(len(whole)))
    for one in made:
        train, held = (whole.coordinates[indices(part)] for part in (one.train, one.validation))
        assert nearest(train, held) >= 3 and one.num_dropped == len(whole) - len(train) - len(held) > 0
    assert made[1].how == "blocks, fold 1 of 4"


def test_folds_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match=r"folds must lie in 2\.\.10, the number of samples; received 1"):
        folds(numbered(10), 1)
    with pytest.raises(UsageError, match=r"class 1 has 2, but .* at least 3 samples for 3 folds"):
        folds(numbered(10, np.array([0] * 8 + [1] * 2)), 3, "stratified")
    with pytest.raises(UsageError, match="3 folds need at least 3 groups"):
        folds(numbered(10), 3, "group", groups=[0, 1] * 5)


# ---- which split was it --------------------------------------------------------------------------------------------


def test_the_hash_depends_on_which_samples_are_in_which_part() -> None:
    whole = numbered(30, np.arange(30) % 3)
    made = split(whole, seed=1)
    assert made.sha256() == split(numbered(30, np.arange(30) % 3), seed=1).sha256()
    assert made.sha256() != split(whole, seed=2).sha256()
    train, validation, test = three(made)
    by_hand = Splits(whole.subset(train[::-1]), whole.subset(validation), whole.subset(test).map(lambda batch: batch))
    assert by_hand.sha256() == made.sha256(), "neither order nor transforms change which samples are where"
    assert Splits(whole.subset(train), whole.subset(test), whole.subset(validation)).sha256() != made.sha256()
    other = numbered(30, (np.arange(30) + 1) % 3)
    assert split(other, seed=1).sha256() != made.sha256(), "other labels are other data"
    assert split(Arrays(np.zeros((30, 2)), np.arange(30) % 3), seed=1).sha256() != made.sha256(), "another shape is other data"
    assert replace(made, test=None).sha256() != made.sha256()


def test_the_hash_is_computed_once() -> None:
    """A training needs it at its start and at its end, and of millions of samples it takes a while."""

    class Counted(Arrays):
        num_reads = 0

        def targets(self) -> Any:
            self.num_reads += 1
            return super().targets()

    whole = Counted(np.zeros((30, 2)), np.arange(30) % 3)
    made = split(whole, seed=1)
    assert made.sha256() == made.record()["sha256"]
    assert whole.num_reads == len(made.parts())


def test_the_folder_does_not_matter_to_the_hash(tmp_path: Any) -> None:
    from unisono.data.sources.numpy_files import Npy

    told = []
    for folder in (tmp_path / "here", tmp_path / "there"):
        folder.mkdir()
        np.save(folder / "x.npy", np.arange(12.0))
        told.append(split(Npy(folder / "x.npy")).sha256())
    assert told[0] == told[1]


# ---- checks --------------------------------------------------------------------------------------------------------


def test_a_label_out_of_range_is_named_with_its_place() -> None:
    labels = np.zeros(200, dtype=np.int64)
    labels[123] = 10
    splits = Splits(train=(np.zeros(200), labels), test=(np.zeros(3), np.array([0, 9, 0])))
    message = r"sample 123 of the training data has label 10, .* 10 outputs, .* 0\.\.9; correct it"
    with pytest.raises(UsageError, match=message):
        check_targets(splits.parts(), "cross_entropy", (2, 10))
    check_targets(splits.parts(), "cross_entropy", (2, 11))
    check_targets(splits.parts(), "cross_entropy", (2, 10), ignored=(10,))
    with pytest.raises(UsageError, match=r"sample 1 of the test data has label 9"):
        check_targets(splits.parts(), "cross_entropy", (2, 9), ignored=(10,))


def test_labels_of_segmentations_and_other_targets() -> None:
    masks = np.zeros((4, 3, 3), dtype=np.uint8)
    masks[2, 1, 1] = 255
    with pytest.raises(UsageError, match=r"sample 2 of the validation data has label 255"):
        check_labels("validation", Arrays(masks, masks), 2)
    check_labels("validation", Arrays(masks, masks), 2, ignored=(255,))
    check_labels("train", Arrays(masks, masks.astype(np.float32)), 2)
    check_labels("train", Arrays(masks), 2)
    with pytest.raises(UsageError, match="has label -1"):
        check_labels("train", Arrays(np.zeros(2), np.array([0, -1])), 2)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_first_value_that_is_not_finite_is_found(value: float, dtype: type[np.floating[Any]]) -> None:
    image = np.ones((5, 2, 3), dtype=dtype)
    batch = ({"number": np.arange(5), "image": image, "row": np.zeros(5)}, np.zeros(5, dtype=np.int64))
    assert first_not_finite(batch) is None
    image[3, 1, 2] = value
    image[4, 0, 0] = -value
    assert first_not_finite(batch) == ("[0].image", 3)


def test_large_finite_values_are_finite() -> None:
    assert first_not_finite((np.full(100, 60000, dtype=np.float16), np.array([], dtype=np.float32))) is None
