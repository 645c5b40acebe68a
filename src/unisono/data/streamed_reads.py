"""Random numbers that are drawn while samples are read, as a Dataset's own augmentation does: a function of seed, epoch and sample,
never of the process."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.data.data_differences import is_far
from unisono.data.fingerprint import runs_user_code, sampled_rows, sums_of
from unisono.data.random_streams import restored_generators, seed_generators
from unisono.data.sample_random import SampleRandom
from unisono.data.source import Indices, Mapped, Source
from unisono.data.splits import Splits
from unisono.data.tree import concatenate

OF_READS = 0x52454144
"""Mixed into the seed, so that `augment` draws other numbers."""


class StreamedReads(Mapped):
    """Samples whose reading draws from the generators of the process. Each is read by itself, with streams of its own; outside of
    the epochs of a training they are the same in every reading.

    They are read where the model computes, and never ahead in a thread, which would draw from the generators of its dropout.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source, _unchanged, inputs_only=True)
        self.in_memory = True

    def read(self, indices: Indices) -> Any:
        return self.read_in(indices, 0, 0)

    def read_in(self, indices: Indices, seed: int, epoch: int) -> Any:
        """Local, blocking: as `read`, with the random numbers of this seed and epoch."""
        numbers = np.asarray(indices, dtype=np.int64)
        found = []
        with restored_generators():
            for number, own in zip(numbers, SampleRandom(seed ^ OF_READS, epoch, numbers).integers(0, 2**32), strict=True):
                seed_generators(int(own))
                found.append(self.source.read(number[None]))
        return concatenate(found) if found else self.source.read(numbers)

    def targets(self) -> npt.NDArray[Any] | None:
        return self.source.targets()

    def describe(self) -> Mapping[str, Any]:
        return self.source.describe()


def with_streams(part: Source) -> Source:
    """Local, blocking for a read of some samples: the samples with streams of their own if their reading draws random numbers."""
    if not runs_user_code(part):
        return part
    rows = sampled_rows(part)
    with restored_generators():
        before = _states()
        part.read(rows)
        return part if _states() == before else StreamedReads(part)


def splits_with_streams(splits: Splits) -> Splits:
    """Local, blocking as `with_streams`, for each part of the data."""
    found: dict[str, Any] = {
        name: streamed for name, part in splits.parts().items() if (streamed := with_streams(part)) is not part
    }
    return replace(splits, **found) if found else splits


def describe_unrepeatable_augment(augment: Callable[..., Any], part: Source) -> str:
    """Local, blocking for a read of some samples: says that `augment` of a task gives other results for the same samples when it is
    called again, as it does where it draws from elsewhere than its second argument; else empty."""
    rows = sampled_rows(part)
    with restored_generators():
        batch = part.read(rows)
        first, again = (dict(sums_of(augment(deepcopy(batch), SampleRandom(0, 0, rows)))) for _ in range(2))
    if not any(is_far(sums, again.get(place)) for place, sums in first.items()):
        return ""
    return (
        "augment of the task gives other results for the same samples when it is called again, so the same command gives other "
        "results, and a resume is not exact: draw from its second argument, an un.SampleRandom, alone"
    )


def read_in(source: Source, indices: Indices, seed: int, epoch: int) -> Any:
    """Local, blocking: these samples as they are in an epoch of a training with this seed."""
    return source.read_in(indices, seed, epoch) if isinstance(source, StreamedReads) else source.read(indices)


def _states() -> tuple[Any, ...]:
    """Returns the states of the generators of this process, as values that can be compared."""
    torch = sys.modules.get("torch")
    of_torch = None if torch is None else torch.default_generator.get_state().numpy().tobytes()
    return random.getstate(), pickle.dumps(np.random.get_state()), of_torch


def _unchanged(inputs: Any) -> Any:
    return inputs
