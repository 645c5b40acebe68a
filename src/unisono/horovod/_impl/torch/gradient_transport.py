"""How the gradients of parameters travel: compressed or not, dense or sparse, alone or in a group. Local, not blocking."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from unisono.horovod._impl.compressor import Compressor
from unisono.horovod._impl.exceptions import HorovodInternalError
from unisono.horovod._impl.job.lasting_numbers import Lasting
from unisono.horovod._impl.job.process_sets import ProcessSet
from unisono.horovod._impl.job.process_state import PROCESS
from unisono.horovod._impl.torch.gradient_forms import Forms, fill
from unisono.horovod._impl.torch.operations import (
    allreduce_async_,
    grouped_allreduce_async_,
    sparse_allreduce_async,
    synchronize,
)
from unisono.horovod._impl.torch.submission import Average, Sum


class Drops:
    """How often gradients were dropped in this era of the channel: who was not there, or had joined, could not drop any."""

    def __init__(self) -> None:
        self._era: object = None
        self._number = 0

    def number(self, era: object, more: int = 0) -> int:
        """Local: with `more` that are new."""
        self._number = more + (self._number if self._era is era else 0)
        self._era = era
        return self._number


@dataclass
class Traveller:
    """What is the same for all gradients of an optimiser."""

    compression: type[Compressor]
    op: int
    predivide: float
    sparse_as_dense: bool
    process_set: ProcessSet
    title: Lasting
    """Stands before all names."""
    forms: Forms = field(default_factory=Forms)
    drops: Drops = field(default_factory=Drops)

    def named(self, name: str) -> str:
        """Local: the operation for a parameter."""
        return f"optimizer.{self.title.number}.{name}"

    def of_our_own(self, what: str) -> str:
        """Local: an operation for something else; no parameter's has this name."""
        return f"optimizer.{self.title.number}:{what}"

    def lacks_form(self, one: Tensor) -> bool:
        """Local: whether a parameter's gradient cannot travel yet."""
        return self.forms.lacks(one, self.process_set.channel().era)

    def share_forms(self, names: Mapping[Tensor, str]) -> list[Tensor]:
        """Collective over the process set, blocking; see `Forms.hear`."""
        marks, era = self.forms.marks(names), self.process_set.channel().era
        synchronize(allreduce_async_(marks, None, self.of_our_own("forms"), Sum, process_set=self.process_set))
        return self.forms.hear(marks, names, era, self.sparse_as_dense)

    def count_drop(self) -> None:
        """Local: gradients were dropped on their way."""
        self.drops.number(self.process_set.channel().era, 1)

    def compare_drops(self) -> Callable[[], bool]:
        """Local, not blocking: tell how often gradients were dropped here, beside the gradients. What it gives is blocking, and
        says on all ranks alike whether all have dropped as often; those that have joined do not count."""
        number = self.drops.number(self.process_set.channel().era) % 4  # small, so that one rank among thousands is seen
        told = torch.tensor([1.0, number, number * number], dtype=torch.float32, device="cpu")
        before, after = _factors(self)  # as the gradients, or it would not travel with them
        handle = allreduce_async_(told, None, self.of_our_own("drops"), self.op, before, after, self.process_set)

        def alike() -> bool:
            present, total, squares = synchronize(handle).tolist()
            return bool(squares / present - (total / present) ** 2 < 3e-5)  # the variance, but for rounding

        return alike

    def share_loss(self, loss: Any) -> Any:
        """Collective over the process set, blocking: the loss that belongs to the reduced gradients, the same on all ranks.
        What is not one number is left as it is."""
        try:
            own = float(loss.detach() if isinstance(loss, Tensor) else loss)
        except (TypeError, ValueError, RuntimeError):  # the last one is PyTorch's, for several numbers
            return loss
        everybodys = torch.tensor([own], dtype=torch.float64, device="cpu")
        synchronize(allreduce_async_(everybodys, None, self.of_our_own("loss"), self.op, process_set=self.process_set))
        return loss.detach().clone().fill_(everybodys[0]) if isinstance(loss, Tensor) else everybodys.item()


class Flight:
    """One operation, with the gradients of one parameter or of several."""

    def __init__(self, wait: Callable[[], Any], put: Callable[[Tensor, Any], None], handle: int | None = None) -> None:
        self._wait, self._put, self._handle = wait, put, handle
        self._result: Any = None
        self._error: HorovodInternalError | None = None
        self._is_over = False

    def __del__(self) -> None:
        """The optimiser is gone: nobody will ask any more."""
        if not self._is_over and self._handle is not None:
            PROCESS.handles.forget(self._handle)

    def wait(self) -> None:
        """Blocking: until it is over, however it ended. Several parameters may share one flight."""
        if not self._is_over:
            self._is_over = True
            try:
                self._result = self._wait()
            except HorovodInternalError as error:
                self._error = error

    def drop(self) -> None:
        """Blocking: it is not wanted any more; raises what went wrong."""
        self.wait()
        if self._error is not None:
            raise self._error

    def land(self, one: Tensor) -> None:
        """Blocking: put the gradient of a parameter in its place; raises what went wrong."""
        self.drop()
        self._put(one, self._result)


def started(how: Traveller, parameters: Sequence[Tensor], names: dict[Tensor, str]) -> dict[Tensor, Flight]:
    """The flight of each parameter. Those without a gradient get zeros first."""
    sparse = set() if how.sparse_as_dense else {one for one in parameters if how.forms.is_sparse(one)}
    for one in parameters:
        if one.grad is None:
            fill(one, one in sparse)
        elif one in sparse and not one.grad.is_sparse:  # the program has put zeros there, say
            one.grad = one.grad.detach().to_sparse(1)
    dense = [one for one in parameters if one not in sparse]
    found = {one: _sparse(how, one, names[one]) for one in parameters if one in sparse}
    if dense:
        # A group that has one dense member only is still a group: all ranks must find the same name.
        flight = _alone(how, dense[0], names[dense[0]]) if len(parameters) == 1 else _together(how, dense, names)
        found |= dict.fromkeys(dense, flight)
    return found


def _alone(how: Traveller, one: Tensor, name: str) -> Flight:
    small, undo = _packed(how, one)
    before, after = _factors(how)
    handle = allreduce_async_(small, None, how.named(name), how.op, before, after, how.process_set)
    return Flight(lambda: synchronize(handle), lambda one, result: _put(how, one, result, undo), handle)


def _together(how: Traveller, parameters: Sequence[Tensor], names: dict[Tensor, str]) -> Flight:
    packed = {one: _packed(how, one) for one in parameters}
    before, after = _factors(how)
    name = how.named(f"group.{names[parameters[0]]}")
    smalls = [small for small, _ in packed.values()]
    handle = grouped_allreduce_async_(smalls, None, name, how.op, before, after, how.process_set)
    return Flight(lambda: synchronize(handle), lambda one, _: _put(how, one, *packed[one]), handle)


def _sparse(how: Traveller, one: Tensor, name: str) -> Flight:
    assert one.grad is not None

    def put(one: Tensor, result: Tensor) -> None:
        one.grad = result

    return Flight(sparse_allreduce_async(one.grad, how.named(name), how.op, how.process_set), put)


def _packed(how: Traveller, one: Tensor) -> tuple[Tensor, object]:
    assert one.grad is not None
    dense = one.grad.detach().to_dense() if one.grad.is_sparse else one.grad.detach()
    small, undo = how.compression.compress(dense)
    return small.contiguous(), undo


def _put(how: Traveller, one: Tensor, travelled: Tensor, undo: object) -> None:
    result = how.compression.decompress(travelled, undo)
    if one.grad is None:  # dropped by the user meanwhile, by model.zero_grad() say
        one.grad = result
    elif one.grad.is_sparse or how.forms.is_sparse(one):  # it travelled dense; the optimiser may know sparse ones only
        one.grad = result.to_sparse(one.grad.sparse_dim() if one.grad.is_sparse else 1)
    elif result.data_ptr() != one.grad.data_ptr():
        one.grad.detach().copy_(result)


def _factors(how: Traveller) -> tuple[float, float]:
    """A mean may be divided in two parts, before and after the sum, where the sum alone would overflow."""
    return (1.0 / how.predivide, how.predivide) if how.op == Average else (1.0, 1.0)
