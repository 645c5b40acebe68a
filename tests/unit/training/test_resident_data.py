"""Data on a device: which can lie there, and that batches made there are those of the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import unisono as un
from tests.unit.training.device_path import LABELS, NUM, PICTURES
from unisono.data.loader import augmented
from unisono.data.sample_random import SampleRandom
from unisono.data.source import Indices, Source
from unisono.data.streamed_reads import with_streams
from unisono.data.tree import leaves
from unisono.training.resident_data import ResidentSamples, StreamedSamples, place

CPU = torch.device("cpu")
PLENTY = 10**9
STORED = un.Arrays(PICTURES, LABELS)
SCALED = STORED.map_inputs(un.Scale(1 / 64, 0.5))
AUGMENT = un.augment.Chain(un.augment.Flip(axis=-1), un.augment.Shift(2), un.augment.Rotate(20))
NUMBERS = np.array([5, 0, 41, 41, 17])


def placed(part: Source, augment: Any = None, free_bytes: int = PLENTY) -> ResidentSamples:
    found = place(part, CPU, torch.float32, augment, free_bytes)
    assert isinstance(found, ResidentSamples), found
    return found


def refusal(part: Source, augment: Any = None, free_bytes: int = PLENTY) -> str:
    found = place(part, CPU, torch.float32, augment, free_bytes)
    assert isinstance(found, str)
    return found


def expect_batch(samples: ResidentSamples | StreamedSamples, part: Source, augment: Any = None) -> None:
    """Oracle: the host reads and changes them."""
    for epoch in (0, 3):
        expected = part.read(NUMBERS)
        if augment is not None:
            expected = augmented(augment, expected, SampleRandom(7, epoch, NUMBERS))
        found = samples.batch(NUMBERS, 7, epoch).gather(CPU).prepare()
        for (where, tensor), (_, array) in zip(leaves(found), leaves(expected), strict=True):
            wide = array.astype(np.float32) if np.issubdtype(array.dtype, np.floating) else array
            np.testing.assert_array_equal(np.asarray(tensor), wide, err_msg=where)


CHANGED: dict[str, tuple[Source, Any]] = {
    "stored": (STORED, None),
    "scaled": (SCALED, None),
    "a part": (SCALED.subset(np.arange(60)[::-1]), None),
    "a part, scaled twice": (SCALED.subset(np.arange(60)[::-1]).map_inputs(un.Scale(2.0)).subset(np.arange(50)), None),
    "augmented": (SCALED.subset(np.arange(50)), AUGMENT),
    "changed by a function": (STORED.map_inputs(lambda inputs: inputs.astype(np.float64) ** 2).map_inputs(un.Scale(0.1)), None),
    "a function after a declared change": (SCALED.map(lambda batch: (batch[0] + 1, batch[1] % 2)), None),
    "several inputs": (un.Arrays({"a": PICTURES, "b": PICTURES[:, 0, 0].astype(np.float64)}, (LABELS, LABELS * 0.5)), None),
    "weights": (un.Arrays(PICTURES, LABELS, np.linspace(0, 1, NUM + 10)), None),
    "inputs alone": (un.Arrays(PICTURES), None),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_batch_is_that_of_the_host(name: str) -> None:
    part, augment = CHANGED[name]
    expect_batch(placed(part, augment), part, augment)
    expect_batch(StreamedSamples(part, CPU, torch.float32, augment), part, augment)


def test_a_users_augment_runs_on_the_host() -> None:
    def brighter(batch: Any, draws: SampleRandom) -> Any:
        return batch[0] * draws.uniform(0.5, 1.5, (1, 1, 1)), batch[1]

    assert "augment of the task is a function" in refusal(SCALED, brighter)
    expect_batch(StreamedSamples(SCALED, CPU, torch.float32, brighter), SCALED, brighter)


def test_samples_keep_their_type_and_are_read_once() -> None:
    class Counting(Source):
        num_read = 0

        def __len__(self) -> int:
            return NUM

        def read(self, indices: Indices) -> Any:
            self.num_read += len(indices)
            return PICTURES[indices], LABELS[indices]

    whole = Counting()
    found = placed(whole.subset(np.arange(40)).map_inputs(un.Scale(0.5)))
    assert found.num_bytes == PICTURES[:40].nbytes + LABELS[:40].nbytes, "uint8 stays uint8"
    before = whole.num_read
    assert before <= 40 + 2 * 8
    found.batch(NUMBERS[:2]).gather(CPU).prepare()
    assert whole.num_read == before


def test_a_source_that_is_too_large_is_read() -> None:
    size = PICTURES.nbytes + LABELS.nbytes
    placed(SCALED, free_bytes=size)
    assert refusal(SCALED, free_bytes=size - 1).startswith("they need 0.0 GB, more than 0.0 GB")


def test_what_differs_from_reading_to_reading_is_read() -> None:
    """A generator of the process, or one of the user's own: in a function, or in a source."""
    own = np.random.default_rng(1)

    class Drawing(Source):
        def __len__(self) -> int:
            return NUM

        def read(self, indices: Indices) -> Any:
            return PICTURES[indices] + own.normal(size=(len(indices), 1, 1, 1)), LABELS[indices]

    noisy = STORED.map_inputs(lambda inputs: inputs + own.normal(size=inputs.shape))
    for part in (noisy, noisy.subset(np.arange(20)), noisy.map_inputs(un.Scale(0.5)), Drawing(), Drawing().subset(np.arange(20))):
        assert refusal(part) == "two readings of the same sample differ"
    of_process = with_streams(STORED.map_inputs(lambda inputs: inputs + np.random.normal(size=inputs.shape)))
    assert refusal(of_process) == "their reading draws random numbers"
    expected = of_process.read_in(NUMBERS, 7, 3)  # type: ignore[attr-defined]
    found = StreamedSamples(of_process, CPU, torch.float64, None).batch(NUMBERS, 7, 3).gather(CPU).prepare()
    np.testing.assert_array_equal(found[0].numpy(), expected[0])


@pytest.mark.parametrize("dtype", [np.complex64, np.uint16])
def test_types_that_torch_cannot_gather_are_read(dtype: Any) -> None:
    assert refusal(un.Arrays(PICTURES.astype(dtype), LABELS)) == f"they have the type {np.dtype(dtype).name}"


def test_halves_round_inputs_alone() -> None:
    part = un.Arrays(PICTURES, LABELS * 1.001, np.linspace(0, 1, NUM + 10))
    found = place(part, CPU, torch.bfloat16, None, PLENTY)
    assert isinstance(found, ResidentSamples)
    inputs, targets, weights = found.batch(NUMBERS).gather(CPU).prepare()
    assert (inputs.dtype, targets.dtype, weights.dtype) == (torch.uint8, torch.float32, torch.float32)


def test_a_sample_can_be_taken_out_of_a_batch() -> None:
    """As where the sample with a loss that is not finite is looked for: with the numbers that it had."""
    for samples in (placed(SCALED, AUGMENT), StreamedSamples(SCALED, CPU, torch.float32, AUGMENT)):
        batch = samples.batch(NUMBERS, 7, 2)
        whole = batch.gather(CPU).prepare()
        one = batch[2:3].gather(CPU).prepare()
        assert torch.equal(one[0], whole[0][2:3]) and torch.equal(one[1], whole[1][2:3])
        assert len(batch) == 5 and len(batch[2:3]) == 1
