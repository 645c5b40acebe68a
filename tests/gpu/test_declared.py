"""Declared changes on a GPU: the bits of the host, also inside a captured graph, with nothing that waits for the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import unisono as un
from unisono.data.sample_random import SampleRandom, epoch_key
from unisono.data.tensor_random import TensorRandom

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="PyTorch sees no GPU; run on a machine with an NVIDIA GPU and a CUDA build of PyTorch: pytest -m gpu",
    ),
]

SCALE = un.Scale(mean=[100.0, 120.5, 90.0], deviation=[50.0, 61.3, 70.1])
AUGMENTATIONS: tuple[Any, ...] = (
    un.augment.Flip((-1, -2)),
    un.augment.Shift((2, 3), fill=-1.5),
    un.augment.Rotate(20, fill=0.25),
    un.augment.Rotate(quarter_turns=True),
    un.augment.Chain(un.augment.Flip(targets=True), un.augment.Shift(2, targets=True), un.augment.Rotate(45, targets=True)),
)
IMAGES = np.random.default_rng(0).integers(0, 256, (512, 3, 24, 24)).astype(np.uint8)
MASKS = np.random.default_rng(1).integers(0, 9, (512, 24, 24))
BATCH, SEED = 64, 7


def on_host(augment: Any, epoch: int, samples: Any) -> list[bytes]:
    batch = SCALE(IMAGES[samples]), MASKS[samples]
    return [np.ascontiguousarray(one).tobytes() for one in augment(batch, SampleRandom(SEED, epoch, samples))]


def steps() -> list[tuple[int, Any]]:
    order = np.random.default_rng(2).permutation(len(IMAGES))
    return [(epoch, order[start : start + BATCH]) for epoch in (0, 3) for start in (0, 64, 128)]


@pytest.mark.parametrize("augment", AUGMENTATIONS, ids=repr)
def test_a_captured_graph_gives_the_bits_of_the_host(augment: Any) -> None:
    images, masks = (torch.from_numpy(one).cuda() for one in (IMAGES, MASKS))
    key, samples = torch.zeros(1, dtype=torch.int64, device="cuda"), torch.arange(BATCH, device="cuda")

    def work() -> Any:
        return augment.on_tensors((SCALE.on_tensors(images[samples]), masks[samples]), TensorRandom(key, samples))

    def enter(epoch: int, numbers: Any) -> None:
        key.copy_(torch.tensor([epoch_key(SEED, epoch)]))
        samples.copy_(torch.from_numpy(numbers))

    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()  # constants are copied to the device now
        torch.cuda.set_sync_debug_mode("error")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = work()
    for epoch, numbers in steps():
        enter(epoch, numbers)
        eager = [one.cpu().numpy().tobytes() for one in work()]
        graph.replay()
        assert [one.cpu().numpy().tobytes() for one in captured] == eager == on_host(augment, epoch, numbers)


def test_random_numbers_are_those_of_the_host() -> None:
    numbers = np.random.default_rng(3).integers(0, 2**62, 5000)
    here = SampleRandom(SEED, 2, numbers)
    there = TensorRandom(torch.tensor([epoch_key(SEED, 2)], device="cuda"), torch.from_numpy(numbers).cuda())
    for name, arguments in (("uniform", (-1, 3, (4,))), ("integers", (-5, 2**31)), ("flip", (0.3, (2,))), ("integers", (0, 2**32))):
        expected, found = getattr(here, name)(*arguments), getattr(there, name)(*arguments).cpu().numpy()
        assert expected.dtype == found.dtype and np.array_equal(expected, found), name
