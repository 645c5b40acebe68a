"""How often a step of ours copies between its vectors and the framework, counted by looking at addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from unisono.model.keras.module import KerasModule
from unisono.model.parameters import FlatParameters

CLONE, COPY, FOREACH_COPY = (getattr(torch.ops.aten, name).default for name in ("clone", "copy_", "_foreach_copy_"))


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


class Copying(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what torch copies meanwhile."""

    def __init__(self, tally: Tally, way: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tally, self._way = tally, way

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for one in args[0] if func is FOREACH_COPY else args[:1] if func in (CLONE, COPY) else ():
            self._tally.add(self._way, one.nbytes)
        return func(*args, **(kwargs or {}))


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
    learn, move, keep, take = kind.learn, kind.move, KerasModule.keep, FlatParameters.take

    def watched_learn(self: Any, *given: Any) -> Any:
        tally.num_steps += 1
        with tally.inside(), Copying(tally, "packed"):
            return learn(self, *given)

    def watched_move(self: Any, *given: Any) -> Any:
        with tally.inside(), Copying(tally, "stored"):
            return move(self, *given)

    def watched_keep(self: Any, values: Any) -> None:
        with Copying(tally, "stored"):
            keep(self, values)

    def watched_take(self: Any, gradients: Any) -> None:
        with tally.inside(), Copying(tally, "stored"):
            take(self, gradients)

    yield kind, "learn", watched_learn
    yield kind, "move", watched_move
    yield KerasModule, "keep", watched_keep
    yield FlatParameters, "take", watched_take
    if backend == "torch":
        return
    native, tensor = kind.native, kind.tensor

    def watched_native(self: Any, given: Any) -> Any:
        found = native(self, given)
        tally.add("entered as they lie" if _address(found) == given.data_ptr() else "copied again on entry", given.nbytes)
        return found

    def watched_tensor(self: Any, array: Any) -> Any:
        found = tensor(self, array)
        tally.add("left as they lie" if _address(array) == found.data_ptr() else "copied on leaving", found.nbytes)
        return found

    yield kind, "native", watched_native
    yield kind, "tensor", watched_tensor


def _address(array: Any) -> int:
    """Local: where an array of TensorFlow or JAX has its numbers."""
    if isinstance(array, np.ndarray):
        return 0  # JAX copies arrays of NumPy whenever a compiled function is called with them
    if hasattr(array, "unsafe_buffer_pointer"):
        return int(array.unsafe_buffer_pointer())
    import tensorflow as tf

    return int(torch.utils.dlpack.from_dlpack(tf.experimental.dlpack.to_dlpack(array)).data_ptr())
