"""A scale gives the same bits on arrays and on tensors, and says what it is."""

from __future__ import annotations

import pickle
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import unisono as un
from unisono.data.declared import is_declared
from unisono.data.fitted_inputs import map_fitted
from unisono.data.fold_data import Folding, make_folds
from unisono.data.loader import Loader
from unisono.data.scale import Scale
from unisono.data.sharding_plan import Plan
from unisono.data.sources.arrays import Arrays
from unisono.data.splits import split
from unisono.errors import UsageError

WRONG: Any = un
"""As the type checker would not let them be used."""
TYPES = (np.uint8, np.int16, np.uint16, np.int64, np.float16, np.float32, np.float64, np.bool_)
SHAPES = ((0, 3), (4,), (5, 3), (5, 3, 2), (2, 3, 4, 5), (2, 3, 2, 4, 3))


def drawn(random: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    return (random.normal(size=shape) * 10.0 ** random.integers(-3, 4)).astype(np.float64).clip(0, 100).astype(dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_arrays_and_tensors_get_the_same_bits(dtype: Any) -> None:
    random = np.random.default_rng(0)
    for shape in SHAPES:
        for num_axes in range(len(shape)):
            size = tuple(length if random.random() < 0.7 else 1 for length in shape[1 : 1 + num_axes])
            for names in (("factor",), ("offset",), ("factor", "offset"), ("mean", "deviation"), ("deviation",)):
                scale = Scale(**{name: random.uniform(0.01, 3, size) for name in names})
                inputs = drawn(random, shape, dtype)
                there = scale.on_tensors(torch.from_numpy(inputs))
                here = scale(inputs)
                assert here.dtype == np.float32 and there.dtype == torch.float32 and here.shape == shape
                assert here.tobytes() == there.numpy().tobytes()
                factor, offset = (values.reshape(values.shape + (1,) * (len(shape) - 1 - values.ndim)) for values in _of(scale))
                assert np.array_equal(here, inputs.astype(np.float32) * factor + offset), "one multiplication, one addition"


def _of(scale: Scale) -> tuple[Any, Any]:
    return scale.factor, scale.offset


def test_a_mean_becomes_0_and_a_deviation_1() -> None:
    inputs = np.random.default_rng(1).normal([5.0, -300.0], [0.1, 20.0], (4000, 2))
    scaled = Scale(mean=inputs.mean(0), deviation=inputs.std(0))(inputs)
    assert np.abs(scaled.mean(0)).max() < 1e-4 and np.abs(scaled.std(0) - 1).max() < 1e-4


def test_inputs_in_dicts_are_scaled_array_by_array_and_stay_as_they_were() -> None:
    inputs: dict[str, Any] = {"a": np.array([[1, 2]], dtype=np.uint8), "b": (np.array([4.0]),)}
    before = deepcopy(inputs)
    scaled = Scale(0.5, 1.0)(inputs)
    assert scaled["a"].tolist() == [[1.5, 2.0]] and scaled["b"][0].tolist() == [3.0]
    tensors: dict[str, Any] = {"a": torch.tensor([[1.0, 2.0]]), "b": (torch.tensor([4.0]),)}
    assert Scale(0.5, 1.0).on_tensors(tensors)["b"][0].tolist() == [3.0]
    assert inputs["a"].tobytes() == before["a"].tobytes() and tensors["a"].tolist() == [[1.0, 2.0]], "never in place"


def test_it_is_said_in_words_and_survives_pickle() -> None:
    scale = Scale(mean=np.arange(3.0), deviation=2.0)
    scale.on_tensors(torch.ones(2, 3))
    again = pickle.loads(pickle.dumps(scale))
    assert repr(again) == repr(scale) == "un.Scale(mean=[0, 1, 2], deviation=2)"
    assert not again._on_devices, "the device of another process"
    assert again(np.ones((2, 3))).tobytes() == scale(np.ones((2, 3))).tobytes()
    assert repr(Scale(1 / 255)) == "un.Scale(factor=0.00392156863)"
    assert repr(Scale(np.ones((3, 5)), 1)) == "un.Scale(factor=<3 x 5 numbers>, offset=1)"


def test_the_record_of_a_source_names_it() -> None:
    source = Arrays(np.zeros((4, 3), dtype=np.uint8))
    assert source.map_inputs(Scale(1 / 255)).describe()["mapped"] == "Scale(factor=0.00392157)"
    # Computed numbers may differ in their last digits between workers, whose descriptions must be equal.
    assert source.map_inputs(Scale(mean=np.ones(3))).describe()["mapped"] == "Scale(mean)"


def test_only_numbers_that_may_be_fitted_are_reported_in_folds() -> None:
    made = split((np.arange(80.0).reshape(40, 2), np.arange(40) % 2), 0.25, 0.25)
    for fixed in (Scale(1 / 255), Scale(2, -1), Scale(offset=-0.5)):
        assert not fixed.may_be_fitted
        assert not make_folds(replace(made, train=made.train.map_inputs(fixed)), Folding(2))[0].warnings
    for fitted in (Scale(mean=0.5), Scale(deviation=2.0), Scale(np.ones(2)), Scale((0.5, 0.2)), Scale(np.float64(0.1))):
        (said,) = make_folds(replace(made, train=made.train.map_inputs(fitted)), Folding(2))[0].warnings
        assert "the change Scale of the data holds numbers and is the same in every fold" in said

    def standardised(train: un.Source) -> Scale:
        inputs = train.read(np.arange(len(train)))[0]
        return Scale(mean=inputs.mean(0), deviation=inputs.std(0))

    for one in make_folds(map_fitted(made, standardised), Folding(2)):
        assert not one.warnings
        assert abs(one.train.read(np.arange(len(one.train)))[0].mean()) < 1e-5


def test_a_subclass_that_changes_arrays_alone_is_not_declared() -> None:
    class Half(Scale):
        def __call__(self, inputs: Any) -> Any:
            return inputs / 2

    class Both(Half):
        def __call__(self, inputs: Any) -> Any:
            return inputs / 2

        def on_tensors(self, inputs: Any) -> Any:
            return inputs / 2

    assert is_declared(Scale(2)) and is_declared(Both(2))
    assert not is_declared(Half(2)) and not is_declared(lambda inputs: inputs) and not is_declared(None)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Scale(), "needs a factor and an offset, or a mean and a deviation"),
        (lambda: Scale(2, mean=1), "received factor and mean"),
        (lambda: Scale("2"), "factor of un.Scale must be a number or an array of numbers; received '2'"),
        (lambda: Scale([[1, 2], [3]]), "must be a number or an array"),
        (lambda: Scale(offset=[]), "offset of un.Scale must be a number"),
        (lambda: Scale(float("nan")), r"the numbers of un.Scale\(factor=nan\) must be finite"),
        (lambda: Scale(1e60), "must be finite in float32"),
        (lambda: Scale(deviation=1e-310), "must be finite in float32"),
        (lambda: Scale(deviation=[1.0, 0.0]), "deviation of un.Scale must be positive; received 0,.* put 1 there"),
        (lambda: Scale(mean=[1, 2], deviation=[1, 2, 3]), r"must have one shape; received \(2,\) and \(3,\)"),
        (lambda: Arrays(np.zeros((4, 3))).map(Scale(2)), r"use map_inputs\(un.Scale\(factor=2\)\)"),
        (lambda: Loader(Arrays(np.zeros((4, 3))), Plan(4, 2, 0), 0, 1, augment=WRONG.Scale(2)), r"source.map_inputs\(un.Scale"),
        (lambda: Scale(2)(np.zeros((2, 3), dtype=np.complex64)), "takes real numbers; received complex64"),
        (lambda: Scale(2).on_tensors(torch.zeros(2, dtype=torch.complex64)), "takes real numbers; received torch.complex64"),
    ],
)
def test_what_is_refused(make: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make()


@pytest.mark.parametrize("shape", [(4, 2), (4, 1), (3,), (4, 4, 3)])
def test_inputs_that_do_not_fit_are_refused_when_it_is_applied(shape: tuple[int, ...]) -> None:
    scale = Scale([1, 2, 3])
    for change, inputs in ((scale, np.zeros(shape)), (scale.on_tensors, torch.zeros(shape))):
        with pytest.raises(
            UsageError, match=r"numbers of shape \(3,\), which count from axis 1 on, and the inputs at x have shape"
        ):
            change({"x": inputs})


def test_after_its_first_call_all_is_on_the_device() -> None:
    """On the device that has shapes and no values, whatever needs a value fails."""
    scale, plain = Scale(mean=[1, 2, 3], deviation=2), Scale(1 / 255, 1.0)
    assert scale.on_tensors(torch.empty(5, 3, 2, device="meta")).shape == (5, 3, 2)
    first = list(scale._on_devices.values())
    for change in (scale, plain):
        change.on_tensors(torch.empty(2, 3, 2, device="meta"))
    assert all(one is kept for one, kept in zip(scale._on_devices.values(), first, strict=True))
    assert not plain._on_devices, "plain numbers need no memory there"
