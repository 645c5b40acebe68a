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

from unisono.model.keras.backends import BACKENDS
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
    kind: Any = getattr(import_module(f"unisono.model.keras.on_{backend}"), BACKENDS[backend])
    tally = Tally()
    with ExitStack() as stack:
        for owner, name, watched in _watched(kind, tally, backend):
            stack.enter_context(patch.object(owner, name, watched))
        train()
    return tally.per_step()


def _watched(kind: Any, tally: Tally, backend: str) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    compute_gradients, update_non_trainable, add_gradients = (
        kind.compute_gradients,
        KerasModule.update_non_trainable,
        FlatParameters.add_gradients,
    )

    def watched_compute_gradients(self: Any, *given: Any) -> Any:
        tally.num_steps += 1
        with tally.inside():
            return compute_gradients(self, *given)

    def watched_update_non_trainable(self: Any, values: Any) -> None:
        for value in values:
            tally.add("stored", value.nbytes)
        update_non_trainable(self, values)

    def watched_add_gradients(self: Any, gradients: Any) -> None:
        with tally.inside():
            for vector in gradients.vectors.values():
                tally.add("stored", vector.nbytes)
        add_gradients(self, gradients)

    yield kind, "compute_gradients", watched_compute_gradients
    yield KerasModule, "update_non_trainable", watched_update_non_trainable
    yield FlatParameters, "add_gradients", watched_add_gradients
    if backend == "torch":
        return
    as_array, as_tensor, copy_to_array, pack = kind.as_array, kind.as_tensor, kind.copy_to_array, Packing.pack

    def watched_as_array(self: Any, given: Any) -> Any:
        found = as_array(self, given)
        tally.add("entered as they lie" if _address(found) == given.data_ptr() else "copied again on entry", given.nbytes)
        return found

    def watched_copy_to_array(self: Any, vector: Any) -> Any:
        tally.add("packed", vector.nbytes)
        return copy_to_array(self, vector)

    def watched_pack(self: Any, tensors: Any) -> Any:
        found = pack(self, tensors)
        for vector in found.values():
            tally.add("packed", vector.nbytes)
        return found

    def watched_as_tensor(self: Any, array: Any) -> Any:
        found = as_tensor(self, array)
        tally.add("left as they lie" if _address(array) == found.data_ptr() else "copied on leaving", found.nbytes)
        return found

    yield kind, "as_array", watched_as_array
    yield kind, "copy_to_array", watched_copy_to_array
    yield Packing, "pack", watched_pack
    yield kind, "as_tensor", watched_as_tensor


def _address(array: Any) -> int:
    """Local: where an array of TensorFlow or JAX has its numbers."""
    if isinstance(array, np.ndarray):
        return int(array.ctypes.data)  # JAX takes it from there when a compiled function is called with it
    if hasattr(array, "unsafe_buffer_pointer"):
        return int(array.unsafe_buffer_pointer())
    import tensorflow as tf

    return int(torch.utils.dlpack.from_dlpack(tf.experimental.dlpack.to_dlpack(array)).data_ptr())
