"""Reduction of the gradients of parameters: compressed or not, dense or sparse, alone or in a group. Local, not blocking."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from unisono.horovod._impl.compressor import Compressor
from unisono.horovod._impl.exceptions import HorovodInternalError
from unisono.horovod._impl.job.persistent_ids import PersistentId
from unisono.horovod._impl.job.process_sets import ProcessSet
from unisono.horovod._impl.job.process_state import PROCESS
from unisono.horovod._impl.torch.gradient_forms import Forms, fill_with_zeros
from unisono.horovod._impl.torch.operations import (
    allreduce_async_,
    grouped_allreduce_async_,
    sparse_allreduce_async,
    synchronize,
)
from unisono.horovod._impl.torch.submission import Average, Sum


class Drops:
    """The number of times that gradients were dropped in this era of the channel: a rank that was not there, or had joined, could
    drop none."""

    def __init__(self) -> None:
        self._era: object = None
        self._number = 0

    def number(self, era: object, more: int = 0) -> int:
        """Returns the number, increased by `more`. Local."""
        self._number = more + (self._number if self._era is era else 0)
        self._era = era
        return self._number


@dataclass
class GradientTransport:
    """Reduces the gradients of one optimiser."""

    compression: type[Compressor]
    op: int
    predivide: float
    sparse_as_dense: bool
    process_set: ProcessSet
    title: PersistentId
    """The number of the optimiser, which is a part of all names."""
    forms: Forms = field(default_factory=Forms)
    drops: Drops = field(default_factory=Drops)

    def operation_name(self, name: str) -> str:
        """Returns the name of the operation for a parameter. Local."""
        return f"optimizer.{self.title.number}.{name}"

    def extra_name(self, what: str) -> str:
        """Returns the name of another operation, which no parameter's has. Local."""
        return f"optimizer.{self.title.number}:{what}"

    def lacks_form(self, one: Tensor) -> bool:
        """Whether a parameter's gradient cannot be reduced yet, as its form is unknown. Local."""
        return self.forms.is_unknown(one, self.process_set.channel().era)

    def share_forms(self, names: Mapping[Tensor, str]) -> list[Tensor]:
        """Exchanges the forms of gradients; see `Forms.apply_marks`. Collective over the process set, blocking."""
        marks, era = self.forms.marks(names), self.process_set.channel().era
        synchronize(allreduce_async_(marks, None, self.extra_name("forms"), Sum, process_set=self.process_set))
        return self.forms.apply_marks(marks, names, era, self.sparse_as_dense)

    def count_drop(self) -> None:
        """Notes that gradients in flight were dropped. Local."""
        self.drops.number(self.process_set.channel().era, 1)

    def compare_drops(self) -> Callable[[], bool]:
        """Sends the number of drops along with the gradients. Returns a blocking function that says, on all ranks alike, whether
        all ranks have dropped equally often; ranks that have joined do not count. Local, not blocking."""
        number = self.drops.number(self.process_set.channel().era) % 4  # small, so that one rank among thousands is seen
        sums = torch.tensor([1.0, number, number * number], dtype=torch.float32, device="cpu")
        before, after = _factors(self)  # as the gradients, or it would not travel with them
        handle = allreduce_async_(sums, None, self.extra_name("drops"), self.op, before, after, self.process_set)

        def alike() -> bool:
            present, total, squares = synchronize(handle).tolist()
            return bool(squares / present - (total / present) ** 2 < 3e-5)  # the variance, but for rounding

        return alike

    def share_loss(self, loss: Any) -> Any:
        """Returns the loss that belongs to the reduced gradients, the same on all ranks. A loss that is not a single number is
        returned as it is. Collective over the process set, blocking."""
        try:
            own = float(loss.detach() if isinstance(loss, Tensor) else loss)
        except (TypeError, ValueError, RuntimeError):  # the last one is PyTorch's, for several numbers
            return loss
        everybodys = torch.tensor([own], dtype=torch.float64, device="cpu")
        synchronize(allreduce_async_(everybodys, None, self.extra_name("loss"), self.op, process_set=self.process_set))
        return loss.detach().clone().fill_(everybodys[0]) if isinstance(loss, Tensor) else everybodys.item()


class PendingReduction:
    """One operation in flight, for the gradients of one parameter or of several."""

    def __init__(self, wait: Callable[[], Any], put: Callable[[Tensor, Any], None], handle: int | None = None) -> None:
        self._wait, self._write_reduced, self._handle = wait, put, handle
        self._result: Any = None
        self._error: HorovodInternalError | None = None
        self._is_over = False

    def __del__(self) -> None:
        """Discards the operation: the optimiser is gone."""
        if not self._is_over and self._handle is not None:
            PROCESS.handles.forget(self._handle)

    def wait(self) -> None:
        """Waits until the operation is over, however it ended. Several parameters may share it. Blocking."""
        if not self._is_over:
            self._is_over = True
            try:
                self._result = self._wait()
            except HorovodInternalError as error:
                self._error = error

    def drop(self) -> None:
        """Waits for an operation whose result is not wanted any more; raises its error. Blocking."""
        self.wait()
        if self._error is not None:
            raise self._error

    def write_gradient(self, one: Tensor) -> None:
        """Writes the reduced gradient of a parameter; raises the error of the operation. Blocking."""
        self.drop()
        self._write_reduced(one, self._result)


def start_reductions(
    transport: GradientTransport, parameters: Sequence[Tensor], names: dict[Tensor, str]
) -> dict[Tensor, PendingReduction]:
    """Starts the reduction of each parameter's gradient and returns them. Parameters without a gradient get zeros first."""
    sparse = set() if transport.sparse_as_dense else {one for one in parameters if transport.forms.is_sparse(one)}
    for one in parameters:
        if one.grad is None:
            fill_with_zeros(one, one in sparse)
        elif one in sparse and not one.grad.is_sparse:  # the program has put zeros there, say
            one.grad = one.grad.detach().to_sparse(1)
    dense = [one for one in parameters if one not in sparse]
    found = {one: _start_sparse(transport, one, names[one]) for one in parameters if one in sparse}
    if dense:
        # A group that has one dense member only is still a group: all ranks must find the same name.
        is_alone = len(parameters) == 1
        pending = _start_dense(transport, dense[0], names[dense[0]]) if is_alone else _start_group(transport, dense, names)
        found |= dict.fromkeys(dense, pending)
    return found


def _start_dense(transport: GradientTransport, one: Tensor, name: str) -> PendingReduction:
    """Starts the reduction of one parameter's gradient as a dense tensor and returns it."""
    small, undo = _compressed_gradient(transport, one)
    before, after = _factors(transport)
    handle = allreduce_async_(small, None, transport.operation_name(name), transport.op, before, after, transport.process_set)
    return PendingReduction(lambda: synchronize(handle), lambda one, result: _write_reduced(transport, one, result, undo), handle)


def _start_group(transport: GradientTransport, parameters: Sequence[Tensor], names: dict[Tensor, str]) -> PendingReduction:
    """Starts the reduction of several parameters' gradients as one operation and returns it."""
    packed = {one: _compressed_gradient(transport, one) for one in parameters}
    before, after = _factors(transport)
    name = transport.operation_name(f"group.{names[parameters[0]]}")
    smalls = [small for small, _ in packed.values()]
    handle = grouped_allreduce_async_(smalls, None, name, transport.op, before, after, transport.process_set)
    return PendingReduction(lambda: synchronize(handle), lambda one, _: _write_reduced(transport, one, *packed[one]), handle)


def _start_sparse(transport: GradientTransport, one: Tensor, name: str) -> PendingReduction:
    """Starts the reduction of one parameter's gradient as a sparse tensor and returns it."""
    assert one.grad is not None

    def put(one: Tensor, result: Tensor) -> None:
        one.grad = result

    return PendingReduction(
        sparse_allreduce_async(one.grad, transport.operation_name(name), transport.op, transport.process_set), put
    )


def _compressed_gradient(transport: GradientTransport, one: Tensor) -> tuple[Tensor, object]:
    """Returns the gradient of a parameter, dense and compressed, and what is needed to undo the compression."""
    assert one.grad is not None
    dense = one.grad.detach().to_dense() if one.grad.is_sparse else one.grad.detach()
    small, undo = transport.compression.compress(dense)
    return small.contiguous(), undo


def _write_reduced(transport: GradientTransport, one: Tensor, travelled: Tensor, undo: object) -> None:
    """Decompresses a reduced gradient into that of its parameter, sparse where the parameter's gradients are."""
    result = transport.compression.decompress(travelled, undo)
    if one.grad is None:  # dropped by the user meanwhile, by model.zero_grad() say
        one.grad = result
    elif one.grad.is_sparse or transport.forms.is_sparse(one):  # it travelled dense; the optimiser may know sparse ones only
        one.grad = result.to_sparse(one.grad.sparse_dim() if one.grad.is_sparse else 1)
    elif result.data_ptr() != one.grad.data_ptr():
        one.grad.detach().copy_(result)


def _factors(transport: GradientTransport) -> tuple[float, float]:
    """The factors before and after the sum. A mean may be divided in two parts, where the sum alone would overflow."""
    return (1.0 / transport.predivide, transport.predivide) if transport.op == Average else (1.0, 1.0)
