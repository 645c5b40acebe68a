"""Adasum over the steps of an optimiser: each rank makes its own step, and the changes of the weights are combined.

d = step(w) - w;    w <- w + Adasum over the ranks of d
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from unisono.horovod._impl.compressor import Compressor
from unisono.horovod._impl.job.persistent_ids import PersistentId
from unisono.horovod._impl.job.process_sets import global_process_set
from unisono.horovod._impl.torch.gradient_names import name_newcomers
from unisono.horovod._impl.torch.operations import allreduce_async_, synchronize_all
from unisono.horovod._impl.torch.submission import Adasum
from unisono.optim.wrapped_optimizer import Wrapped


class DeltaSteps(Wrapped):
    """The class in front of the user's optimiser class."""

    def _begin_deltas(self, names: dict[Tensor, str], compression: type[Compressor], passes: int) -> None:
        """Sets up what an optimiser that combines changes needs besides the state of the given one; called once."""
        self._parameter_names = names
        self._compression = compression
        self.backward_passes_per_step = passes
        self._persistent_id = PersistentId("optimizer", global_process_set, owner=self)
        _ = self._persistent_id.number  # in the order in which they are made

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets how many backward passes a user makes before a step; nothing is sent before. Local."""
        if passes < 1:
            raise ValueError(f"backward_passes_per_step must be at least 1; received {passes}")
        self.backward_passes_per_step = passes

    def synchronize(self) -> None:
        """Does nothing: gradients are not reduced with Adasum. Local."""

    def skip_synchronize(self) -> AbstractContextManager[None]:
        """Raises an error, unless this rank is the only one, where there is nothing to skip. Local."""
        if global_process_set.size() > 1:
            raise AssertionError(
                "skip_synchronize() is not possible with op=hvd.Adasum, where the ranks exchange updates and not gradients; leave "
                "it out"
            )
        return nullcontext()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes a step and combines the changes of all ranks. Weights that the ranks could not agree on stay as they were.
        Collective over all ranks, blocking."""
        self._made_from._opt_called = True  # a scheduler that was made for it looks there whether steps are made
        name_newcomers(self._parameter_names, self.param_groups)
        moved = [one for one in self._parameter_names if one.requires_grad]
        begins = [one.detach().clone() for one in moved]
        result = super().step(closure)
        with torch.no_grad():
            deltas = [self._compression.compress((one - begin).contiguous()) for one, begin in zip(moved, begins, strict=True)]
            torch._foreach_copy_(moved, begins)
            prefix = f"optimizer.{self._persistent_id.number}."
            handles = [
                allreduce_async_(small, name=f"{prefix}{self._parameter_names[one]}", op=Adasum)
                for one, (small, _) in zip(moved, deltas, strict=True)
            ]
            for one, agreed, (_, undo) in zip(moved, synchronize_all(handles), deltas, strict=True):
                one.add_(self._compression.decompress(agreed, undo))
        return result

    step.hooked = True  # type: ignore[attr-defined]  # the step of the user's class calls the hooks, ours must not

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state. Local."""
        self._load(state_dict)
