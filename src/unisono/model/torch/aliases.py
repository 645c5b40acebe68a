"""Ties through memory: different parameters or buffers that hold the same numbers, as after `dec.weight.data = enc.weight.data`.

A tensor that is moved into a flat vector gets memory of its own, which would cut such a tie without a word. One parameter under
several names is no such tie: it is moved once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from unisono.errors import UsageError
from unisono.model.flat import is_dense


class _Stretch(NamedTuple):
    """The memory of a tensor, from its first byte to behind its last."""

    device: str
    start: int
    end: int
    what: str
    tensor: Tensor


def refuse_aliases(model: nn.Module, parameters: Collection[Tensor], moves_buffers: bool = False) -> None:
    """Local: refuses a model in which one of these parameters, or a floating buffer where those are moved too, shares memory with
    another parameter or buffer."""
    moved = set(parameters)
    if moves_buffers:
        moved |= {buffer for buffer in model.buffers() if buffer.is_floating_point()}
    before: list[_Stretch] = []
    for one in sorted(_stretches(model)):
        before = [other for other in before if other.device == one.device and one.start < other.end]
        for other in before:
            if (one.tensor in moved or other.tensor in moved) and _share_elements(one.tensor, other.tensor):
                raise UsageError(
                    f"{other.what} and {one.what} share memory but are two tensors, and a training would give each memory of its "
                    "own, so that they differ after the first step; make them one parameter (decoder.weight = encoder.weight), use "
                    "the other one in forward (F.linear(x, encoder.weight.t())), or copy it with clone()"
                )
        before.append(one)


def _stretches(model: nn.Module) -> Iterator[_Stretch]:
    """Yields the memory of every parameter and buffer."""
    parameters = ((f"parameter {name}", one) for name, one in model.named_parameters())
    buffers = ((f"buffer {name}", one) for name, one in model.named_buffers())
    for what, tensor in chain[tuple[str, Tensor]](parameters, buffers):
        if is_lazy(tensor) or tensor.layout is not torch.strided or tensor.is_meta or not tensor.numel():
            continue
        last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
        start = tensor.data_ptr()
        yield _Stretch(str(tensor.device), start, start + (last + 1) * tensor.itemsize, what, tensor)


def _share_elements(one: Tensor, other: Tensor) -> bool:
    """Whether tensors whose stretches overlap have a byte in common: columns of one matrix, say, have none."""
    if is_dense(one) and is_dense(other):
        return True
    addresses = [_addresses(tensor) for tensor in (one, other)]
    return bool(torch.isin(*addresses).any())


def _addresses(tensor: Tensor) -> Tensor:
    """Returns the address of every byte of a tensor."""
    found = torch.arange(tensor.data_ptr(), tensor.data_ptr() + tensor.itemsize)
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride:
            found = (found[:, None] + torch.arange(length) * stride * tensor.itemsize).flatten()
    return found
