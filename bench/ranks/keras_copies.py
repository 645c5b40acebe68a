"""How often a step of ours copies between its vectors and the framework, counted where it does so, and by looking at addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from unisono.model.keras.module import KerasModule
from unisono.model.keras.packed_variables import Packing
from unisono.model.torch.parameters import FlatParameters


@dataclass
class Tally:
    """Of all steps so far."""

    counts: dict[str, list[int]] = field(
        default_factory=lambda: {
            name: [0, 0]
            for name in (
                "packed",
                "copied again on entry",
                "entered as they lie",
                "left as they lie",
                "copied on leaving",
                "stored",
            )
        }
    )
    """Name of a way: how many arrays went it, and their bytes."""
    num_steps: int = 0
    depth: int = 0
    """Whether a step is on its way; other work, e.g. what is shown to callbacks, does not count."""

    def add(self, name: str, num_bytes: int) -> None:
        if self.depth and num_bytes:
            self.counts[name][0] += 1
            self.counts[name][1] += num_bytes

    @contextmanager
    def inside(self) -> Iterator[None]:
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def per_step(self) -> dict[str, dict[str, float]]:
        steps = max(self.num_steps, 1)
        return {name: {"num": num / steps, "bytes": num_bytes / steps} for name, (num, num_bytes) in self.counts.items()}


def count_copies(backend: str, train: Callable[[], object]) -> dict[str, dict[str, float]]:
    """Local, blocking: copies and their bytes in a mean step of `train`, by way."""
    kind: Any = import_module(f"unisono.model.keras.on_{backend}").OfThis
    tally = Tally()
    with ExitStack() as stack:
        for owner, name, watched in _watched(kind, tally, backend):
            stack.enter_context(patch.object(owner, name, watched))
        train()
    return tally.per_step()


def _watched(kind: Any, tally: Tally, backend: str) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    learn, keep, take = kind.learn, KerasModule.keep, FlatParameters.take

    def watched_learn(self: Any, *given: Any) -> Any:
        tally.num_steps += 1
        with tally.inside():
            return learn(self, *given)

    def watched_keep(self: Any, values: Any) -> None:
        for value in values:
            tally.add("stored", value.nbytes)
        keep(self, values)

    def watched_take(self: Any, gradients: Any) -> None:
        with tally.inside():
            for vector in gradients.vectors.values():
                tally.add("stored", vector.nbytes)
        take(self, gradients)

    yield kind, "learn", watched_learn
    yield KerasModule, "keep", watched_keep
    yield FlatParameters, "take", watched_take
    if backend == "torch":
        return
    native, tensor, copy_in, packed = kind.native, kind.tensor, kind.copy_in, Packing.packed

    def watched_native(self: Any, given: Any) -> Any:
        found = native(self, given)
        tally.add("entered as they lie" if _address(found) == given.data_ptr() else "copied again on entry", given.nbytes)
        return found

    def watched_copy_in(self: Any, vector: Any) -> Any:
        tally.add("packed", vector.nbytes)
        return copy_in(self, vector)

    def watched_packed(self: Any, tensors: Any) -> Any:
        found = packed(self, tensors)
        for vector in found.values():
            tally.add("packed", vector.nbytes)
        return found

    def watched_tensor(self: Any, array: Any) -> Any:
        found = tensor(self, array)
        tally.add("left as they lie" if _address(array) == found.data_ptr() else "copied on leaving", found.nbytes)
        return found

    yield kind, "native", watched_native
    yield kind, "copy_in", watched_copy_in
    yield Packing, "packed", watched_packed
    yield kind, "tensor", watched_tensor


def _address(array: Any) -> int:
    """Local: where an array of TensorFlow or JAX has its numbers."""
    if isinstance(array, np.ndarray):
        return int(array.ctypes.data)  # JAX takes it from there when a compiled function is called with it
    if hasattr(array, "unsafe_buffer_pointer"):
        return int(array.unsafe_buffer_pointer())
    import tensorflow as tf

    return int(torch.utils.dlpack.from_dlpack(tf.experimental.dlpack.to_dlpack(array)).data_ptr())
