"""Tensors in the form that the communicator takes: flat, on the host, in a type that it knows. Tensors of a GPU are copied there
and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unisono.horovod._impl.engine.operation_entry import Entry


def plain(tensor: Tensor) -> Tensor:
    """Returns a flat view without gradients; truth values are sent as bytes. Local."""
    flat = _ordinary(tensor).view(-1)
    return flat.view(torch.uint8) if flat.dtype == torch.bool else flat


def _ordinary(tensor: Tensor) -> Tensor:
    """The same memory as an ordinary tensor: one that was made under `torch.inference_mode` may be written only there, and this is
    another thread."""
    if not tensor.is_inference():
        return tensor
    same = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    same.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
    return same


def sources(entry: Entry) -> list[Tensor]:
    """Returns the inputs on the host, as views where they are there already. Local, blocking until they are copied."""
    if not entry.streams:
        return [plain(tensor) for tensor in entry.inputs]
    for event in entry.arrived:
        event.synchronize()
    return [plain(_copy_on_host(tensor)) for tensor in entry.inputs]


def targets(entry: Entry, held: Sequence[Tensor]) -> list[Tensor]:
    """Returns where the results are written: the sources themselves for operations in place. `deliver` brings results to a GPU.
    Local."""
    if entry.outputs is entry.inputs:
        return list(held)
    return [
        plain(tensor) if not tensor.is_cuda else plain(torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu"))
        for tensor in entry.outputs
    ]


def new_output(entry: Entry, position: int, shape: tuple[int, ...]) -> Tensor:
    """Makes the output of a result whose shape was not known before, on the device of the input at `position`; returns it in the
    form that the communicator takes. Local."""
    like = entry.inputs[position]
    if like.is_cpu:
        output = host = torch.empty(shape, dtype=like.dtype, device="cpu")
    else:
        # Of the caller's stream, so that its memory is not given to others while that stream still reads it.
        with torch.cuda.stream(entry.streams[like.device]):
            output = torch.empty(shape, dtype=like.dtype, device=like.device)
        # Kernels that wait in that stream may still read what was in this memory before.
        entry.free.append(entry.streams[like.device].record_event())
        host = torch.empty(shape, dtype=like.dtype, device="cpu")
    entry.outputs.append(output)
    return plain(host)


def deliver(entry: Entry, written: Sequence[Tensor]) -> None:
    """Copies results to the GPUs, if the outputs are there. Local, blocking."""
    if not entry.streams:
        return
    for output, flat in zip(entry.outputs, written, strict=True):
        aside = _copy_stream(output.device)
        for event in entry.free:
            aside.wait_event(event)
        with torch.cuda.stream(aside):
            _ordinary(output).copy_(flat.view(output.dtype).view(output.shape))
        aside.synchronize()


def _copy_on_host(tensor: Tensor) -> Tensor:
    """Returns a copy of a GPU's tensor on the host. Blocking until it is copied."""
    with torch.cuda.stream(_copy_stream(tensor.device)):
        return tensor.detach().cpu()


def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """A CUDA stream for our copies: that of the caller holds unrelated work."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
