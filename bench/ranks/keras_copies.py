"""How often a step of ours copies between its vectors and the framework, counted where it does so, and by looking at addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
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

    def step_done(self, *_: Any) -> None:
        self.num_steps += 1

    def per_step(self) -> dict[str, dict[str, float]]:
        steps = max(self.num_steps, 1)
        return {name: {"num": num / steps, "bytes": num_bytes / steps} for name, (num, num_bytes) in self.counts.items()}


def count_copies(backend: str, train: Callable[[], object]) -> dict[str, dict[str, float]]:
    """Local, blocking: copies and their bytes in a mean step of `train`, by way."""
    kind: Any = getattr(import_module(f"unisono.model.keras.on_{backend}"), BACKENDS[backend])
    tally = Tally()

    def stored(values: Iterable[Any], _found: Any) -> None:
        for value in values:
            tally.add("stored", value.nbytes)

    def entered(given: Any, found: Any) -> None:
        tally.add("entered as they lie" if _address(found) == given.data_ptr() else "copied again on entry", given.nbytes)

    def left(array: Any, found: Any) -> None:
        tally.add("left as they lie" if _address(array) == found.data_ptr() else "copied on leaving", found.nbytes)

    def packed(_tensors: Any, found: Any) -> None:
        for vector in found.values():
            tally.add("packed", vector.nbytes)

    watched: list[tuple[Any, str, Callable[[Any, Any], None]]] = [
        (kind, "compute_gradients", tally.step_done),
        (KerasModule, "update_non_trainable", stored),
        (FlatParameters, "add_gradients", lambda gradients, found: stored(gradients.vectors.values(), found)),
    ]
    if backend != "torch":
        watched += [
            (kind, "as_array", entered),
            (kind, "copy_to_array", lambda vector, _: tally.add("packed", vector.nbytes)),
            (Packing, "pack", packed),
            (kind, "as_tensor", left),
        ]
    with ExitStack() as stack:
        for owner, name, note in watched:
            in_step = tally.inside if name in ("compute_gradients", "add_gradients") else nullcontext
            stack.enter_context(patch.object(owner, name, _watched(getattr(owner, name), note, in_step)))
        train()
    return tally.per_step()


def _watched(call: Callable[..., Any], note: Callable[[Any, Any], None], around: Callable[[], Any]) -> Callable[..., Any]:
    """Pure: a method that also notes what it was given and what it gave, where both count."""

    def watched(self: Any, *given: Any) -> Any:
        with around():
            found = call(self, *given)
            note(given[0], found)
        return found

    return watched


def _address(array: Any) -> int:
    """Local: where an array of TensorFlow or JAX has its numbers."""
    if isinstance(array, np.ndarray):
        return int(array.ctypes.data)  # JAX takes it from there when a compiled function is called with it
    if hasattr(array, "unsafe_buffer_pointer"):
        return int(array.unsafe_buffer_pointer())
    import tensorflow as tf

    return int(torch.utils.dlpack.from_dlpack(tf.experimental.dlpack.to_dlpack(array)).data_ptr())
