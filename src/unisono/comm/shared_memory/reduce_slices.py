"""Sums, minima and maxima over the ranks' parts, in rank order or that of a tree: the arithmetic of the shared-memory engine."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from unisono.comm.arithmetic import HALF_TYPES, combine, reduce_parts
from unisono.comm.calls import SUM, Op
from unisono.comm.shared_memory.twin_sum import Array, Step, TwinSum, twin_sums

CHUNK_BYTES = 512 << 10
"""All ranks' parts of one piece of work together stay in a core's second-level cache."""

_NUMPY_REDUCE: Mapping[Op, np.ufunc] = {Op.SUM: np.add, Op.MIN: np.minimum, Op.MAX: np.maximum}


def reduce_into(out: Tensor, parts: Sequence[Tensor], op: Op) -> None:
    """Computes out = parts[0] op parts[1] op ..., in this order. `out` may be one of the parts only if it is the first."""
    if len(parts) == 1:
        out.copy_(parts[0])
    elif out.dtype in HALF_TYPES:
        out.copy_(reduce_parts(parts, op))
    else:
        combine(parts[0], parts[1], op, out)
        for part in parts[2:]:
            combine(out, part, op, out)


def unowned_view(tensor: Tensor) -> Tensor:
    """Local: returns a view that does not keep the memory of a tensor alive: to be used only while another tensor does."""
    if tensor.numel() == 0:
        return tensor
    memory = (ctypes.c_byte * tensor.nbytes).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype)


def reduction_into(out: Tensor, parts: Sequence[Tensor], op: Op) -> Step:
    """Local: returns a function that writes the reduction of `parts`, in their order, into `out`, which is none of them."""
    if out.numel() == 0:
        return _nothing
    if out.dtype in HALF_TYPES:
        return partial(reduce_into, out, parts, op)
    target, (first, *others) = out.numpy(), (part.numpy() for part in parts)
    if not others:
        return partial(np.copyto, target, first)
    reduce, second, rest = _NUMPY_REDUCE[op], others[0], others[1:]

    def run() -> None:
        reduce(first, second, out=target)
        for other in rest:
            reduce(target, other, out=target)

    return _without_warnings(run)


def reduction(vectors: Sequence[Tensor], op: Op) -> Step:
    """Local: returns a function after which every one of these equally long parts holds the reduction of all, in their order. It
    may be called again for other values; the caller keeps the memory alive."""
    dtype, num_threads = vectors[0].dtype, torch.get_num_threads()
    if vectors[0].numel() == 0 or len(vectors) == 1:
        return _nothing
    if num_threads > 1 or dtype in HALF_TYPES:
        return _in_sequence([_reduction_in_torch(pieces, op) for pieces in _cut_into_chunks(vectors, num_threads)])
    # NumPy's kernels are quicker than PyTorch's where one thread works, but they have one thread only, and no halves.
    twin_sum = twin_sums().get(vectors[0][:0].numpy().dtype) if op is SUM else None
    if twin_sum is not None and len(vectors) == 2:
        return twin_sum.step(vectors[0].numpy(), vectors[1].numpy())
    return _without_warnings(
        _in_sequence(
            [_reduction_in_numpy([piece.numpy() for piece in pieces], op, twin_sum) for pieces in _cut_into_chunks(vectors, 1)]
        )
    )


def tree_sum(parts: Sequence[Tensor], merges: Sequence[tuple[int, int]], targets: Sequence[Tensor]) -> Step:
    """Local: returns a function after which all `targets`, which are among `parts`, hold the sum of all parts. Each merge (left,
    right) makes part `left` the sum of both, rounded to its type; the last one makes the total. Else as `reduction`."""
    *inner, (left, right) = merges
    if parts[0].numel() == 0:
        return _nothing
    if not inner and len(targets) == 2:
        return reduction(parts, SUM)
    num_threads = torch.get_num_threads()
    in_numpy = num_threads == 1 and parts[0].dtype not in HALF_TYPES
    ends = (parts[left].data_ptr(), parts[right].data_ptr())
    others = [target for target in targets if target.data_ptr() not in ends]
    steps: list[Step] = []
    for pieces in _cut_into_chunks([*parts, *others], num_threads):
        steps += [_addition(pieces[one], pieces[other], in_numpy) for one, other in inner]
        steps.append(reduction([pieces[left], pieces[right]], SUM))
        steps += [_copy_step(target, pieces[left], in_numpy) for target in pieces[len(parts) :]]
    return _without_warnings(_in_sequence(steps))


def _addition(first: Tensor, second: Tensor, in_numpy: bool) -> Step:
    """Returns a function that adds the second vector to the first."""
    if in_numpy:
        return partial(np.add, first.numpy(), second.numpy(), first.numpy())
    return partial(combine, first, second, SUM, first)


def _copy_step(target: Tensor, source: Tensor, in_numpy: bool) -> Step:
    """Returns a function that copies `source` into `target`."""
    return partial(np.copyto, target.numpy(), source.numpy()) if in_numpy else partial(reduce_into, target, [source], SUM)


def _cut_into_chunks(vectors: Sequence[Tensor], num_threads: int) -> list[tuple[Tensor, ...]]:
    """Returns the chunks of the vectors that fit the cache together: in each tuple the same part of every vector."""
    numel = max(4096, CHUNK_BYTES // vectors[0].itemsize // len(vectors)) * num_threads
    return list(zip(*(torch.split(vector, numel) for vector in vectors), strict=True))


def _reduction_in_torch(pieces: Sequence[Tensor], op: Op) -> Step:
    """Returns a function after which all pieces hold their reduction, by PyTorch."""

    def run() -> None:
        reduce_into(pieces[0], pieces, op)
        for piece in pieces[1:]:
            piece.copy_(pieces[0])

    return run


def _reduction_in_numpy(pieces: Sequence[Array], op: Op, twin_sum: TwinSum | None) -> Step:
    """Returns a function after which all pieces hold their reduction, by NumPy; a twin sum makes the last step of two."""
    first, *others = pieces
    last = _nothing if twin_sum is None else twin_sum.step(first, others.pop())
    reduce = _NUMPY_REDUCE[op]

    def run() -> None:
        for other in others:
            reduce(first, other, out=first)
        last()
        for other in others:
            np.copyto(other, first)

    return run


def _in_sequence(steps: Sequence[Step]) -> Step:
    """Returns a function that runs the steps one after another."""

    def run() -> None:
        for step in steps:
            step()

    return run


def _without_warnings(step: Step) -> Step:
    """Returns a function that runs the step without NumPy's warnings of infinities and NaN."""

    def run() -> None:
        with np.errstate(all="ignore"):  # infinities are the user's business, as they are with PyTorch
            step()

    return run


def _nothing() -> None:
    """Does nothing: there is nothing to reduce."""
