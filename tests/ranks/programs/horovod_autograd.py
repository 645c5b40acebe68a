"""horovod.torch: what autograd sees of the operations."""
# mypy: disable-error-code="no-untyped-call,arg-type,union-attr,index,assignment,no-any-return,misc"
# Gradients may be None to the type checker.

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import unisono.horovod.torch as hvd

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.ranks.programs.horovod_checks import checks_of, raises, run


def check_gradients_of_gradients() -> None:
    """Of operations that give every rank its own values back, so that a square and the square of its gradient can be computed by
    hand. Means over the ranks are taken once more on the way back of a gather and of a broadcast."""
    size, is_root = hvd.size(), hvd.rank() == 0
    start = torch.arange(1.0, 2 * size + 1)
    ways: dict[str, tuple[Callable[[torch.Tensor], Any], float]] = {
        "allreduce": (lambda x: hvd.allreduce(x, op=hvd.Average), 1.0),
        "group": (lambda x: hvd.grouped_allreduce([x], op=hvd.Average)[0], 1.0),
        "alltoall": (hvd.alltoall, 1.0),
        "reducescatter": (lambda x: hvd.reducescatter(x, op=hvd.Average), 1.0),
        "allgather": (hvd.allgather, 1 / size),
        "broadcast": (lambda x: hvd.broadcast(x, 0), 1 / size if is_root else 0.0),
    }
    for name, (way, factor) in ways.items():
        x = start.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(way(x).square().sum(), x, create_graph=True)
        expected = 2 * start if name != "broadcast" or is_root else torch.zeros_like(start)
        assert torch.allclose(gradient, expected), (name, gradient)
        gradient.square().sum().backward()
        assert torch.allclose(x.grad, 8 * start * factor), (name, x.grad)
    w = torch.ones(2, requires_grad=True)
    y = hvd.allreduce(w, op=hvd.Sum)
    (gradient,) = torch.autograd.grad(y.square().sum(), w, create_graph=True)
    (y.sum() + gradient.square().sum()).backward()
    assert torch.allclose(w.grad, torch.full((2,), size + 4.0 * (2 * size * size) * size * size)), w.grad


def check_batch_normalisation_refuses_second_gradients() -> None:
    if hvd.size() == 1:
        return
    x = torch.randn(4, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(hvd.SyncBatchNorm(3)(x).square().sum(), x, create_graph=True)
    with raises(RuntimeError, "once_differentiable"):
        gradient.sum().backward()


def check_what_is_written_in_place_counts_for_autograd() -> None:
    """Alone or together with others, reduced or broadcast: values that are needed for a gradient must not change unnoticed."""
    for others in (0, 2):
        for begin in (lambda y, name: hvd.allreduce_async_(y, name=name), lambda y, name: hvd.broadcast_async_(y, 0, name)):
            y = torch.ones(3, requires_grad=True).exp()
            tensors = [y, *(torch.ones(2) for _ in range(others))]
            for handle in [begin(tensor, f"in place {number}") for number, tensor in enumerate(tensors)]:
                hvd.synchronize(handle)
            if hvd.size() > 1 or others == 0:
                with raises(RuntimeError, "modified by an inplace operation"):
                    y.sum().backward()


def check_parameters_and_their_views_in_place() -> None:
    matrix = torch.nn.Parameter(torch.full((3, 2), float(hvd.rank() + 1)))
    total = hvd.size() * (hvd.size() + 1) / 2
    hvd.allreduce_(matrix.split(1)[0], op=hvd.Sum)
    hvd.grouped_allreduce_(matrix[1:].unbind(0), op=hvd.Sum)
    assert matrix.tolist() == [[total] * 2] * 3
    hvd.broadcast_(matrix, 0)
    assert matrix.requires_grad and matrix.is_leaf


if __name__ == "__main__":
    run(checks_of(globals()))
