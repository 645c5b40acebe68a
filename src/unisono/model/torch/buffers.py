"""The buffers of a model: floating ones (running statistics) as views of flat vectors; all others (counters, masks) as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unisono.model.flat import FlatLayout, is_dense
from unisono.model.torch.parameters import Empty


class Buffers:
    """The buffers of one model. Its floating buffers are moved into flat vectors when this is made. Local."""

    def __init__(self, model: nn.Module, empty: Empty) -> None:
        self._model = model
        named = [(name, buffer) for name, buffer in self._named_buffers() if buffer.is_floating_point()]
        layout = FlatLayout.of((name, buffer.contiguous()) for name, buffer in named)
        self._vectors = layout.vectors(empty)
        views = layout.views(self._vectors)
        # With `data` each has a version of its own; else autograd would take a change of one buffer for a change of all.
        moved = {buffer: views[name].copy_(buffer).data for name, buffer in named}
        self._kept: tuple[list[Tensor], dict[str, Tensor]] = ([], {})
        counters = [one for one in self.counters() if one.layout is torch.strided]
        spread = {one: one.contiguous() for one in counters if not is_dense(one)}  # expanded ones cannot be written
        self._owners: list[tuple[nn.Module, str, Tensor]] = []
        for module in model.modules():  # a buffer may have several owners
            for name, owned in module._buffers.items():
                if owned in moved:
                    module._buffers[name] = moved[owned]
                    self._owners.append((module, name, moved[owned]))
                elif owned in spread:
                    module._buffers[name] = spread[owned]

    def statistics(self) -> list[Tensor]:
        """Returns the flat vectors, one for each type; a tensor that user code has put in the place of a view is copied back
        first."""
        for module, name, view in self._owners:
            held = module._buffers.get(name)
            if held is not view and held is not None and held.shape == view.shape:
                module._buffers[name] = view.copy_(held)
        return list(self._vectors.values())

    def counters(self) -> list[Tensor]:
        """Returns the buffers that are not of a floating type."""
        return list(self._named_counters().values())

    def keep(self) -> None:
        """Copies all buffers for `put_back`, into the same memory each time. Whether they change cannot be seen: batch-norm leaves
        their version as it is."""
        vectors, counters = self._kept
        now = self._named_counters()
        self._kept = (
            [_copied(one, vectors[place] if vectors else None) for place, one in enumerate(self.statistics())],
            {name: _copied(one, counters.get(name)) for name, one in now.items()},
        )

    def put_back(self, left_out: Tensor | None = None) -> None:
        """Restores the buffers as they were at the last `keep`; with `left_out`, a flag on the device, only where it is true."""
        vectors, counters = self._kept
        now = self._named_counters()
        pairs = [
            *zip(vectors, self.statistics(), strict=True),
            *((kept, now[name]) for name, kept in counters.items() if name in now),
        ]
        for before, after in pairs:
            if before.shape == after.shape:
                after.copy_(before if left_out is None else torch.where(left_out, before, after))

    def unknown(self) -> list[str]:
        """Returns the names of floating buffers that were made, or made larger, after this object."""
        known = {id(view) for _, _, view in self._owners}
        return [name for name, buffer in self._named_buffers() if buffer.is_floating_point() and id(buffer) not in known]

    def non_persistent(self, weights: Mapping[str, Any]) -> dict[str, Tensor]:
        """Returns the buffers that are not among the weights of the model (persistent=False), without copies."""
        return {name: buffer for name, buffer in self._named_buffers() if name not in weights}

    def restore(self, weights: Mapping[str, Any], left_out: Mapping[str, Tensor]) -> None:
        """Loads the non-persistent buffers (`left_out`), and makes space for those among the weights: training may have made
        them, or made them larger. Tensors are copied."""
        modules = dict(self._model.named_modules())
        for name, value in {**weights, **left_out}.items():
            owner, _, leaf = name.rpartition(".")
            module = modules.get(owner)
            held = None if module is None else module._buffers.get(leaf)
            if held is not None and held.shape == value.shape:
                held.copy_(value)
            elif module is not None and leaf in module._buffers:
                module._buffers[leaf] = value.to(self._device(), copy=True)
            elif module is not None and name in left_out:
                module.register_buffer(leaf, value.to(self._device(), copy=True), persistent=False)

    def _named_counters(self) -> dict[str, Tensor]:
        return {name: buffer for name, buffer in self._named_buffers() if not buffer.is_floating_point()}

    def _device(self) -> torch.device:
        return next(self._model.parameters()).device

    def _named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, buffer) for name, buffer in self._model.named_buffers() if buffer is not None)


def _copied(tensor: Tensor, held: Tensor | None) -> Tensor:
    """A copy of a tensor, in the memory of an earlier one if that fits."""
    return tensor.clone() if held is None or held.shape != tensor.shape else held.copy_(tensor)
