"""Every declared augmentation: the same bits on arrays and on tensors, whatever the batch; what does not fit is refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch

import unisono as un
from unisono.data.declared import is_declared
from unisono.data.sample_random import SampleRandom, epoch_key
from unisono.data.tensor_random import TensorRandom
from unisono.data.tree import map_tree
from unisono.errors import UsageError

Flip, Rotate, Shift, Chain = un.augment.Flip, un.augment.Rotate, un.augment.Shift, un.augment.Chain
WRONG: Any = un.augment
"""As the type checker would not let them be called."""
PLANE: tuple[Any, ...] = (
    Flip(),
    Flip((-1, -2), 0.3),
    Shift(2),
    Shift((1, 3), fill=7, axes=(-1, -2)),
    Shift(1, axes=-1),
    Rotate(25),
    Rotate(180, fill=3),
    Rotate(90.5, axes=(-1, -2)),
    Chain(Flip(-1), Shift(1, fill=1), Rotate(10)),
)
SQUARE: tuple[Any, ...] = (Rotate(quarter_turns=True), Chain(Rotate(quarter_turns=True), Flip((-2, -1))))
VOLUME: tuple[Any, ...] = (
    Flip((-3, -2, -1)),
    Shift(1, axes=(-3, -2, -1)),
    Shift((2, 1), axes=(-3, -1)),
    Rotate(30, axes=(-3, -1)),
    Chain(Flip(-3), Shift(1, axes=(-1, -2, -3))),
)
CASES: tuple[tuple[tuple[Any, ...], tuple[tuple[int, ...], ...]], ...] = (
    (PLANE, ((7, 3, 6, 5), (4, 8, 4), (1, 1, 28, 28), (0, 2, 5, 5), (3, 2, 2, 4, 5))),
    (SQUARE, ((6, 3, 5, 5), (5, 4, 4), (0, 6, 6))),
    (VOLUME, ((3, 2, 4, 3, 5), (4, 3, 3, 4))),
)
TYPES = (np.uint8, np.uint16, np.uint32, np.int64, np.float16, np.float32, np.float64, np.bool_)


def twins(seed: int, epoch: int, samples: Any) -> tuple[SampleRandom, TensorRandom]:
    numbers = np.asarray(samples, dtype=np.int64)
    return SampleRandom(seed, epoch, numbers), TensorRandom(torch.tensor([epoch_key(seed, epoch)]), torch.from_numpy(numbers))


def on_both(augment: Any, batch: Any, seed: int, epoch: int, samples: Any) -> Any:
    """The batch as arrays, after both forms were seen to give the same bits, and to leave what they got as it was."""
    of_arrays, of_tensors = twins(seed, epoch, samples)
    before = deepcopy(batch)
    found = augment(batch, of_arrays)
    tensors = augment.on_tensors(map_tree(lambda leaf: torch.from_numpy(leaf.copy()), batch), of_tensors)
    same(found, map_tree(lambda leaf: leaf.numpy(), tensors), augment)
    same(batch, before, augment)
    return found


def same(here: Any, there: Any, what: Any) -> None:
    if isinstance(here, dict):
        for name in here:
            same(here[name], there[name], what)
    elif isinstance(here, tuple):
        for one, other in zip(here, there, strict=True):
            same(one, other, what)
    else:
        assert here.dtype == there.dtype and here.shape == there.shape and here.tobytes() == there.tobytes(), what
        assert here.flags.c_contiguous, what


@pytest.mark.parametrize("dtype", TYPES)
def test_arrays_and_tensors_get_the_same_bits(dtype: Any) -> None:
    random = np.random.default_rng(0)
    for augmentations, shapes in CASES:
        for augment in augmentations:
            if dtype == np.bool_ and ("fill=7" in repr(augment) or "fill=3" in repr(augment)):
                continue
            for shape in shapes:
                inputs = (random.normal(size=shape) * 50).clip(0, 100).astype(dtype)
                batch = inputs, random.integers(0, 9, shape[0]), random.random(shape[0])
                seed, epoch = int(random.integers(0, 2**40)), int(random.integers(0, 100))
                changed = on_both(augment, batch, seed, epoch, random.integers(0, 2**50, shape[0]))
                assert changed[0].shape == shape and changed[1] is batch[1] and changed[2] is batch[2]


def test_a_sample_is_changed_alike_in_every_batch_and_otherwise_in_every_epoch() -> None:
    images = np.random.default_rng(1).normal(size=(40, 2, 9, 9))
    samples = np.arange(40) * 10**9
    for augment in (*PLANE, *SQUARE):
        (whole,) = on_both(augment, (images,), 3, 4, samples)
        some = np.array([17, 3, 3, 39])
        (few,) = on_both(augment, (images[some],), 3, 4, samples[some])
        assert np.array_equal(few, whole[some])
        for seed, epoch in ((3, 5), (2, 4)):
            assert not np.array_equal(augment((images,), SampleRandom(seed, epoch, samples))[0], whole)


@pytest.mark.parametrize("augment", [Flip(targets=True), Shift(2, targets=True, fill_targets=9), Rotate(30, targets=True)])
def test_masks_change_as_their_inputs(augment: Any) -> None:
    """A mask that is the channel it was made of still is."""
    values = np.random.default_rng(2).integers(1, 9, (20, 6, 7))
    images = np.stack([values, values + 10], axis=1).astype(np.float32)
    (changed, mask) = on_both(augment, (images, values), 0, 0, np.arange(20))
    outside = changed[:, 0] == 0
    assert np.array_equal(mask[~outside], changed[:, 0][~outside]) and (mask != values).any()
    assert set(mask[outside].tolist()) <= {augment.fill_targets or 0 if hasattr(augment, "fill_targets") else 0}
    targets = {"mask": values[:, None], "class": np.arange(20)}
    (_, found, _) = on_both(augment, (images, targets, np.ones(20)), 0, 0, np.arange(20))
    assert np.array_equal(found["mask"][:, 0], mask) and np.array_equal(found["class"], np.arange(20))


def test_inputs_in_dicts_change_alike_and_single_numbers_stay() -> None:
    images = np.random.default_rng(3).normal(size=(9, 2, 5, 6))
    batch = ({"left": images, "right": (images[:, 0].copy(),), "age": np.arange(9.0)}, np.arange(9))
    (inputs, _) = on_both(Chain(Flip(), Shift(2), Rotate(20)), batch, 0, 0, np.arange(9))
    assert np.array_equal(inputs["left"][:, 0], inputs["right"][0]) and np.array_equal(inputs["age"], np.arange(9.0))


def test_it_survives_pickle_and_says_what_it_is() -> None:
    images = np.random.default_rng(4).normal(size=(9, 5, 5))
    for augment in (*PLANE, *SQUARE, *VOLUME, Shift(1, targets=True, fill_targets=2), Rotate(5, targets=True, fill_targets=1)):
        assert is_declared(augment)
        again, evaluated = pickle.loads(pickle.dumps(augment)), eval(repr(augment), {"un": un})
        assert repr(again) == repr(augment) == repr(evaluated)
        if augment in PLANE:
            for other in (again, evaluated):
                assert np.array_equal(
                    other((images,), SampleRandom(0, 0, np.arange(9)))[0], on_both(augment, (images,), 0, 0, range(9))[0]
                )


def test_numbers_that_need_the_bit_of_the_sign_come_in_at_the_edges() -> None:
    for dtype in (np.uint16, np.uint32):
        images = np.full((5, 6, 6), 1, dtype=dtype)
        fill = int(np.iinfo(dtype).max)
        for augment in (Shift(5, fill=fill), Rotate(45, fill=fill)):
            (changed,) = on_both(augment, (images,), 0, 0, range(5))
            assert set(np.unique(changed).tolist()) == {1, np.iinfo(dtype).max}


def test_nothing_needs_a_value_of_the_device() -> None:
    """On the device that has shapes and no values, whatever needs a value fails: the change can be captured."""
    for augmentations, shapes in CASES:
        for augment in augmentations:
            inputs = torch.empty(shapes[0], dtype=torch.uint8, device="meta")
            key, samples = (torch.empty(size, dtype=torch.int64, device="meta") for size in (1, shapes[0][0]))
            (changed,) = augment.on_tensors((inputs,), TensorRandom(key, samples))
            assert changed.shape == inputs.shape and changed.dtype == inputs.dtype


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Flip(1), "axes of un.augment.Flip count from the last one, .*: -1 is the width .* received 1"),
        (lambda: Flip(()), r"axes of un.augment.Flip must be whole numbers; received \(\)"),
        (lambda: WRONG.Flip(-1.0), "must be whole numbers; received -1.0"),
        (lambda: Flip((-1, -1)), "must differ"),
        (lambda: Flip(probability=1.5), r"probability of un.augment.Flip must lie in 0..1; received 1.5"),
        (lambda: WRONG.Flip(targets="mask"), "targets of un.augment.Flip must be True or False"),
        (lambda: Shift(-1), "pixels of un.augment.Shift must be whole numbers, 0 or more and not all 0; received -1"),
        (lambda: Shift(0), "not all 0"),
        (lambda: WRONG.Shift(1.5), "must be whole numbers"),
        (lambda: Shift((1, 2, 3)), "has 3 numbers of pixels for 2 axes"),
        (lambda: WRONG.Shift(1, fill="black"), "fill of un.augment.Shift must be a number; received 'black'"),
        (lambda: Shift(1, fill_targets=255), "fill_targets of un.augment.Shift has no effect, .* add targets=True"),
        (lambda: Rotate(), "needs either degrees or quarter_turns=True"),
        (lambda: Rotate(5, quarter_turns=True), "for both use un.augment.Chain"),
        (lambda: Rotate(0), "degrees of un.augment.Rotate must lie above 0 and at most at 180; received 0"),
        (lambda: WRONG.Rotate("5"), "received '5'"),
        (lambda: WRONG.Rotate(5, axes=(-3, -2, -1)), "turns in the plane of two axes"),
        (lambda: Rotate(quarter_turns=True, fill=1), "fill of un.augment.Rotate has no effect with quarter turns"),
        (lambda: Chain(), "needs at least one augmentation"),
        (lambda: Chain(Flip(), len), "takes augmentations of un.augment; received len"),
        (lambda: un.Arrays(np.zeros((2, 3, 4))).map(WRONG.Flip()), r"Flip\(.* draws random numbers, .*: augment=un.augment.Flip"),
        (lambda: un.Arrays(np.zeros((2, 3, 4))).map_inputs(WRONG.Chain(Flip())), r"augment=un.augment.Chain\(un.augment.Flip"),
        (lambda: Chain(un.Scale(2)), r"received un.Scale\(factor=2\)"),
    ],
)
def test_wrong_arguments_are_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make()


IMAGES = np.zeros((2, 3, 6, 4), dtype=np.uint8)


@pytest.mark.parametrize(
    ("augment", "batch", "said"),
    [
        (Flip(-3), (IMAGES[:, 0],), r"needs at least 4 axes, the sample and 3 behind it; the inputs have shape \(2, 6, 4\)"),
        (Flip(), (np.zeros(2),), "needs inputs with axes behind the sample; these have none"),
        (Flip(), ({"a": IMAGES, "b": IMAGES[..., :3]},), r"the inputs at a have the lengths \(4,\) and the inputs at b \(3,\)"),
        (Flip(targets=True), (IMAGES,), "is to change targets, and the batch has none"),
        (Flip(targets=True), (IMAGES, np.zeros(2)), "needs targets with axes behind the sample; these have none"),
        (
            Shift(1, targets=True),
            (IMAGES, np.zeros((2, 3, 2))),
            r"lengths \(6, 4\) and the targets \(3, 2\). Leave targets=True out",
        ),
        (Shift(4), (IMAGES,), "the inputs have 4 places along axis -1, and the largest shift is 4; use fewer than 4 pixels"),
        (Shift(1, fill=-0.4), (IMAGES,), "cannot put fill -0.4 into uint8; choose a whole number from 0 to 255"),
        (Rotate(9, fill=256), (IMAGES,), "cannot put fill 256 into uint8"),
        (Rotate(quarter_turns=True), (IMAGES,), "needs axes of one length; the inputs have 6 and 4 places along axes"),
        (Chain(Flip(), Shift(5)), (IMAGES,), r"un.augment.Shift\(5.* moves samples out of sight"),
    ],
)
def test_batches_that_do_not_fit_are_refused_when_it_is_applied(augment: Any, batch: Any, said: str) -> None:
    of_arrays, of_tensors = twins(0, 0, [1, 2])
    with pytest.raises(UsageError, match=said):
        augment(batch, of_arrays)
    with pytest.raises(UsageError, match=said):
        augment.on_tensors(map_tree(torch.from_numpy, batch), of_tensors)
