"""The data of a trial: every sample but those of the test held out once, each changed as its part is, and nothing copied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from unisono.data.checks import sample_ids
from unisono.data.fitted_inputs import as_fitted_to, map_fitted
from unisono.data.fold_data import Folding, make_folds, merge_train_validation
from unisono.data.source import Source
from unisono.data.sources.arrays import Arrays
from unisono.data.sources.matlab import Scene
from unisono.data.splits import Splits, split
from unisono.errors import UsageError

often = settings(max_examples=60, deadline=None, database=None, derandomize=True)

Array = npt.NDArray[Any]


class Grouped(Arrays):
    """Samples that know their group, as slices know their volume."""

    def __init__(self, groups: Array) -> None:
        super().__init__(np.arange(len(groups)), np.zeros(len(groups), dtype=np.int64))
        self._groups = groups

    def groups(self) -> Array:
        return self._groups


def numbered(count: int, num_classes: int = 3) -> Arrays:
    """Samples whose input is their number."""
    return Arrays(np.arange(count), np.arange(count) % num_classes)


def numbers(part: Source | None) -> Array:
    """Which samples of the source a part has."""
    return np.zeros(0, dtype=np.int64) if part is None else sample_ids(part)[1]


def inputs(part: Source | None) -> Array:
    assert part is not None
    found: Array = part.read(np.arange(len(part)))[0]
    return found


def same(one: list[Splits], other: list[Splits]) -> bool:
    return [fold.sha256() for fold in one] == [fold.sha256() for fold in other]


def each_held_out_once(made: list[Splits], expected: Array) -> bool:
    held = np.concatenate([numbers(one.validation) for one in made])
    others = [np.sort(np.concatenate([numbers(one.train), numbers(one.validation)])) for one in made]
    return np.array_equal(np.sort(held), np.sort(expected)) and all(np.array_equal(one, np.sort(expected)) for one in others)


# ---- which samples -------------------------------------------------------------------------------------------------


@often
@given(
    count=st.integers(12, 200),
    k=st.integers(2, 4),
    seed=st.integers(0, 1000),
    how=st.sampled_from(["random", "stratified"]),
    validation=st.sampled_from([0, 0.2]),
    test=st.sampled_from([0, 0.3]),
)
def test_every_sample_but_those_of_the_test_is_held_out_once(
    count: int, k: int, seed: int, how: str, validation: float, test: float
) -> None:
    source = numbered(count, 2)
    task = split(source, validation, test, how, seed=1)
    expected = np.setdiff1d(np.arange(count), numbers(task.test))
    made = make_folds(task, Folding(k, seed=seed))
    assert len(made) == k and each_held_out_once(made, expected)
    assert all(one.test is None and one.how == f"{how}, fold {number} of {k}" for number, one in enumerate(made))
    assert all(sample_ids(part)[0] is source for one in made for part in one.parts().values()), "nothing is copied"
    assert same(made, make_folds(task, Folding(k, seed=seed)))


def test_the_seed_decides_and_nothing_else() -> None:
    task = split(numbered(60), how="stratified", seed=1)
    made = make_folds(task, Folding(3, seed=5))
    assert same(made, make_folds(split(numbered(60), how="stratified", seed=1), Folding(3, seed=5)))
    assert not same(made, make_folds(task, Folding(3, seed=6)))
    assert [one.seed for one in made] == [5, 5, 5]


def test_one_fold_is_the_division_of_the_task() -> None:
    task = split(numbered(60), 0.2, 0.2, seed=1)
    (only,) = make_folds(task, Folding())
    assert only.train is task.train and only.validation is task.validation and only.test is None
    assert (only.how, only.seed) == ("random", 1)


def test_without_validation_data_the_training_data_are_folded() -> None:
    task = split(numbered(30), 0, 0.2)
    assert each_held_out_once(make_folds(task, Folding(4)), numbers(task.train))
    with pytest.raises(
        UsageError,
        match=r"--folds 1 evaluates on the validation data, and the task has none; use --folds 3",
    ):
        make_folds(task, Folding())


def test_validation_data_of_another_source_are_in_no_fold() -> None:
    task = Splits(numbered(30), validation=numbered(30), test=numbered(8))
    made = make_folds(task, Folding(3))
    assert all(sample_ids(part)[0] is task.train for one in made for part in one.parts().values())
    assert each_held_out_once(made, np.arange(30))
    assert all("come from another source than the training data, so the folds do not use them" in one.warnings[0] for one in made)
    (only,) = make_folds(task, Folding())
    assert only.validation is task.validation and only.warnings == ()


def test_samples_that_the_task_repeats_are_repeated_in_training_only() -> None:
    source = numbered(20)
    task = Splits(source.subset([*range(12), 0, 0, 3]), validation=source.subset(range(12, 16)))
    for one in make_folds(task, Folding(4)):
        expected = np.sort([*range(16), 0, 0, 3])
        held = numbers(one.validation)
        assert len(np.unique(held)) == len(held) == 4
        assert np.array_equal(numbers(one.train), expected[~np.isin(expected, held)])
    assert numbers(merge_train_validation(task).train).tolist() == np.sort([*range(16), 0, 0, 3]).tolist()


# ---- changes of the samples ----------------------------------------------------------------------------------------


def negative(images: Array) -> Array:
    return -images


def plus_thousand(images: Array) -> Array:
    return images + 1000


def doubled(batch: Any) -> Any:
    return (2 * batch[0], *batch[1:])


def test_samples_are_changed_as_the_part_they_are_in() -> None:
    made = split(numbered(40), 0.25, 0.25, how="stratified", seed=1)
    assert made.validation is not None
    task = replace(made, train=made.train.map_inputs(plus_thousand).map(doubled), validation=made.validation.map_inputs(negative))
    for one in make_folds(task, Folding(3)):
        assert np.array_equal(inputs(one.train), 2 * (numbers(one.train) + 1000))
        assert np.array_equal(inputs(one.validation), -numbers(one.validation))
        assert one.how.startswith("stratified"), "the source knows the classes though a change of the batch hides them"
    joined = merge_train_validation(task)
    assert np.array_equal(inputs(joined.train), 2 * (numbers(joined.train) + 1000))


def test_changes_before_and_between_subsets_are_kept_in_their_order() -> None:
    source = numbered(40).map_inputs(plus_thousand)
    train = source.subset(range(30)).map(doubled).subset(range(5, 25)).map_inputs(negative)
    task = Splits(train, validation=source.subset(range(30, 40)))
    made = make_folds(task, Folding(3))
    assert each_held_out_once(made, np.r_[5:25, 30:40])
    for one in made:
        assert np.array_equal(inputs(one.train), -2 * (numbers(one.train) + 1000))
        assert np.array_equal(inputs(one.validation), numbers(one.validation) + 1000)
        labels = one.train.read(np.arange(len(one.train)))[1]
        assert np.array_equal(labels, numbers(one.train) % 3)


def test_without_validation_data_of_the_source_all_is_changed_as_in_training() -> None:
    task = Splits(numbered(12).map_inputs(negative), validation=numbered(4).map_inputs(plus_thousand))
    for one in make_folds(task, Folding(2)):
        assert np.array_equal(inputs(one.validation), -numbers(one.validation))


def centre(train: Source) -> Any:
    mean = inputs(train).mean()
    return lambda numbers: numbers - mean


def test_a_change_fitted_to_the_training_part_is_fitted_again_in_every_fold() -> None:
    task = map_fitted(
        map_fitted(split(numbered(90), 0.2, 0.2, seed=1), centre), lambda train: lambda x: x / abs(inputs(train)).max()
    )
    for part in task.parts().values():
        assert np.allclose(inputs(part), inputs_of(task.train, numbers(part)))
    for one in [*make_folds(task, Folding(3)), merge_train_validation(task)]:
        for held in (one.validation, as_fitted_to(one.train, task.test)):
            if held is not None:
                assert np.allclose(inputs(held), inputs_of(one.train, numbers(held)))
        assert abs(inputs(one.train).mean()) < 1e-9 and abs(inputs(one.train)).max() == 1
    merged = merge_train_validation(task)
    assert merged.test is not None
    assert np.allclose(inputs(merged.test), inputs_of(merged.train, numbers(merged.test)))
    second = make_folds(task, Folding(3))[1]
    (only,) = make_folds(task, Folding(3), 1)
    assert same([only], [second]) and not only.warnings


def inputs_of(train: Source, expected: Array) -> Array:
    """Numbers as they are, changed by what is fitted to a training part."""
    mean = numbers(train).mean()
    found: Array = (expected - mean) / abs(numbers(train) - mean).max()
    return found


class Scaler:
    """As scikit-learn has them."""

    def __init__(self) -> None:
        self.mean_ = np.zeros(1)

    def transform(self, x: Array) -> Array:
        return x - self.mean_


def test_a_change_that_holds_numbers_is_reported_in_folds() -> None:
    made = split(numbered(40), 0.25, 0.25, seed=1)
    mean = float(inputs(made.train).mean())
    scaler, size = Scaler(), 3
    for change in (lambda x: x - mean, Scaler().transform, partial(np.subtract, mean), lambda x: scaler.transform(x)):
        task = replace(made, train=made.train.map_inputs(change))
        (said,) = {text for one in make_folds(task, Folding(2)) for text in one.warnings}
        assert "holds numbers and is the same in every fold" in said and "un.map_fitted" in said
        assert not make_folds(task, Folding(1))[0].warnings
    for plain in (negative, lambda x: x[:, :size], lambda x: 2.0 * x):
        assert not make_folds(replace(made, train=made.train.map_inputs(plain)), Folding(2))[0].warnings


def test_what_cannot_change_inputs_is_refused() -> None:
    with pytest.raises(UsageError, match=r"must return a function of the inputs; .* returned float64"):
        map_fitted(split(numbered(40), 0.25, 0.25), lambda train: inputs(train).mean())


# ---- by what -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("targets", "by"),
    [
        (np.arange(30) % 3, "stratified"),
        (np.eye(3)[np.arange(30) % 3], "stratified"),
        (np.linspace(0, 1, 30), "random"),
        (np.zeros((30, 2, 2), dtype=np.int64), "random"),
        (None, "random"),
    ],
)
def test_parts_given_by_hand_are_stratified_where_there_are_classes(targets: Array | None, by: str) -> None:
    source = Arrays(np.arange(30), targets)
    task = Splits(source.subset(range(20)), validation=source.subset(range(20, 30)))
    assert make_folds(task, Folding(3))[0].how == f"{by}, fold 0 of 3"
    hidden = Splits(source.subset(range(20)).map(doubled))
    assert make_folds(hidden, Folding(3))[0].how.startswith("random"), "the change may have made other targets"


def test_classes_keep_their_shares() -> None:
    labels = np.repeat([0, 1, 2], [60, 30, 12])
    task = split(Arrays(np.arange(102), labels), 0.2, 0.2, how="stratified")
    for one in make_folds(task, Folding(3, by="stratified")):
        held = np.bincount(labels[numbers(one.validation)], minlength=3)
        rest = np.bincount(labels[numbers(one.train)], minlength=3)
        assert np.abs(held - (held + rest) / 3).max() < 1


@often
@given(sizes=st.lists(st.integers(1, 9), min_size=8, max_size=20), k=st.integers(2, 4), seed=st.integers(0, 100))
def test_groups_are_not_divided(sizes: list[int], k: int, seed: int) -> None:
    groups = np.repeat([f"p{number}" for number in range(len(sizes))], sizes)
    assume(int(0.2 * len(groups) + 0.5))
    task = split(Grouped(groups), 0.2, 0.2, how="group")
    expected = np.setdiff1d(np.arange(len(groups)), numbers(task.test))
    assume(len(set(groups[expected])) >= k)
    made = make_folds(task, Folding(k, seed=seed))
    assert each_held_out_once(made, expected)
    assert all(not set(groups[numbers(one.train)]) & set(groups[numbers(one.validation)]) for one in made)
    assert all(one.warnings == () for one in made)


def test_divided_groups_are_reported() -> None:
    made = make_folds(split(Grouped(np.repeat(np.arange(6), 5)), 0, 0), Folding(2))
    assert all("of 6 groups in the validation data of this fold also have training samples" in one.warnings[0] for one in made)


# ---- scenes --------------------------------------------------------------------------------------------------------


def scene(patch_size: int, size: tuple[int, int] = (60, 60)) -> Scene:
    random = np.random.default_rng(0)
    labels = np.kron(random.integers(0, 4, size=(size[0] // 5, size[1] // 5)), np.ones((5, 5), dtype=np.int64))
    return Scene(random.random((*size, 2)), labels, patch_size=patch_size)


def shown(source: Scene, numbers: Array) -> set[tuple[int, int]]:
    """All pixels in the patches of these samples."""
    before = source.patch_size // 2
    reach = range(-before, source.patch_size - before)
    return {(row + down, column + right) for row, column in source.coordinates[numbers] for down in reach for right in reach}


@pytest.mark.parametrize(("patch_size", "block_size"), [(1, None), (3, None), (4, 8), (5, 12)])
def test_folds_of_a_scene_show_no_pixel_of_their_validation_patches_in_training(patch_size: int, block_size: int | None) -> None:
    source = scene(patch_size)
    task = split(source, 0.15, 0.2, how="blocks", seed=2, block_size=10)
    pool = np.sort(np.concatenate([numbers(task.train), numbers(task.validation)]))
    made = make_folds(task, Folding(3, seed=1, block_size=block_size))
    assert np.array_equal(np.sort(np.concatenate([numbers(one.validation) for one in made])), pool)
    for number, one in enumerate(made):
        train, validation = numbers(one.train), numbers(one.validation)
        assert np.isin(train, pool).all() and not np.isin(numbers(task.test), [*train, *validation]).any()
        assert not shown(source, train) & shown(source, validation)
        assert not shown(source, train) & shown(source, numbers(task.test))
        assert one.num_dropped == len(pool) - len(train) - len(validation)
        assert one.how == f"blocks, fold {number} of 3"
        assert not any("inside training patches" in text for text in one.warnings)
    if block_size is not None:
        corner = source.coordinates[pool].min(axis=0)
        blocks = [{tuple(place) for place in (source.coordinates[numbers(one.validation)] - corner) // block_size} for one in made]
        assert sum(map(len, blocks)) == len(set.union(*blocks)), "no block is in two folds"


def test_a_scene_that_is_not_cut_into_blocks_is_reported_in_each_fold() -> None:
    task = split(scene(3), 0.2, 0.2)
    assert len(task.warnings) == 1 and "test pixels" in task.warnings[0]
    for one in (*make_folds(task, Folding(2)), *make_folds(task, Folding())):
        assert len(one.warnings) == 1 and "validation pixels" in one.warnings[0]
    assert all(one.warnings == () for one in make_folds(task, Folding(2, by="blocks", block_size=10)))


# ---- warnings ------------------------------------------------------------------------------------------------------


def test_warnings_of_the_task_are_kept_where_they_hold() -> None:
    labels = np.ones((30, 30), dtype=np.int64)
    labels[0, :3] = 2
    made = split(Scene(np.zeros((30, 30, 2)), labels, patch_size=3), 0.2, 0.2, how="blocks", block_size=5)
    task = replace(made, warnings=(*made.warnings, "the labels are by one person"))
    of_validation, of_test = "the validation data have no sample of class 1", "the test data have no sample of class 1"
    assert task.warnings == (of_validation, of_test, "the labels are by one person")
    assert make_folds(task, Folding())[0].warnings == (of_validation, "the labels are by one person")
    assert merge_train_validation(task).warnings == (of_test, "the labels are by one person")
    held = [one.warnings for one in make_folds(task, Folding(2, by="stratified"))]
    assert all("the labels are by one person" in texts and of_test not in texts and of_validation not in texts for texts in held)


# ---- the last training ---------------------------------------------------------------------------------------------


def test_in_the_end_training_and_validation_are_one() -> None:
    task = split(numbered(50), 0.2, 0.2, how="stratified", seed=3)
    found = merge_train_validation(task)
    assert np.array_equal(numbers(found.train), np.sort(np.concatenate([numbers(task.train), numbers(task.validation)])))
    assert found.validation is None and found.test is task.test and found.seed == 3
    assert found.how == "stratified, validation joined to training"
    assert merge_train_validation(found) is found
    assert make_folds(found, Folding(2))[0].how == "stratified, fold 0 of 2"


def test_validation_data_of_another_source_stay_what_they_are() -> None:
    task = Splits(numbered(30), validation=numbered(10), test=numbered(8))
    found = merge_train_validation(task)
    assert (found.train, found.validation, found.test) == (task.train, task.validation, task.test)
    assert found.warnings == (
        "the validation data come from another source than the training data, so they are not added to the training data",
    )
    assert merge_train_validation(found).warnings == found.warnings


# ---- mistakes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folds": 0}, "--folds must be at least 1; received 0"),
        ({"folds": 3, "by": "lottery"}, "--fold-by must be one of random, stratified, group, blocks; received 'lottery'"),
        ({"by": "random"}, "--folds 1 keeps the task's own division, so --fold-by has no effect; leave it out"),
        ({"block_size": 8}, "so --block-size has no effect; leave it out, or give --folds 3"),
        ({"folds": 3, "block_size": 8}, "--block-size 8 has no effect with --fold-by random; leave it out"),
        ({"folds": 3, "by": "group"}, r"--fold-by group needs the group of each sample, which the source \(Arrays\)"),
        (
            {"folds": 3, "by": "blocks"},
            r"--fold-by blocks needs the row and the column of each sample, .*; use a scene",
        ),
        (
            {"folds": 17},
            r"17 folds \(--fold-by random\) cannot be made of 16 training and validation samples: .* must lie in 2\.\.16",
        ),
        (
            {"folds": 6, "by": "stratified"},
            r"6 folds \(--fold-by stratified\) cannot be made .*: class 0 has .* must have at least 6 samples",
        ),
    ],
)
def test_mistakes_are_explained(options: Mapping[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_folds(split(numbered(20, 4), 0.2, 0.2), Folding(**options))


@pytest.mark.parametrize(
    ("how", "options", "message"),
    [
        ("group", {"groups": np.arange(20) // 2}, r"--fold-by group \(as in the task's own split\) needs the group of each"),
        ("stratified", {"labels": np.arange(20) % 2}, r"--fold-by stratified \(as in the task's own split\) needs the class"),
    ],
)
def test_what_only_the_task_knew_is_asked_for(how: str, options: Mapping[str, Any], message: str) -> None:
    task = split(Arrays(np.arange(20)), 0.2, 0.2, how=how, **options)
    with pytest.raises(UsageError, match=message):
        make_folds(task, Folding(2))
    assert len(make_folds(task, Folding(2, by="random"))) == 2


def test_a_scene_too_small_for_its_folds_is_refused() -> None:
    task = Splits(Scene(np.zeros((12, 12, 2)), np.ones((12, 12), dtype=np.int64), patch_size=9))
    with pytest.raises(
        UsageError,
        match=r"2 folds \(--fold-by blocks\) cannot be made of 144 training samples: .*; or change --folds",
    ):
        make_folds(task, Folding(2, by="blocks", block_size=6))
