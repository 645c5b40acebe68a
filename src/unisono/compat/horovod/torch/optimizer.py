"""DistributedOptimizer: gradients are reduced over the ranks while the backward pass goes on, and used by `step`."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.optim import Optimizer

from unisono.compat.horovod.compressor import Compressor
from unisono.compat.horovod.exceptions import HorovodInternalError
from unisono.compat.horovod.lasting import Lasting
from unisono.compat.horovod.process import PROCESS
from unisono.compat.horovod.process_sets import ProcessSet, global_process_set
from unisono.compat.horovod.torch.adasum_optimizer import DeltaSteps
from unisono.compat.horovod.torch.compression import Compression
from unisono.compat.horovod.torch.naming import Groups, parameter_groups, parameter_names
from unisono.compat.horovod.torch.state import load_in_place
from unisono.compat.horovod.torch.submit import Adasum, Average, Sum
from unisono.compat.horovod.torch.travel import Flight, Traveller, started
from unisono.compat.horovod.torch.wrapped import Wrapped, same_class

SEEN = "_seen_by_distributed_optimizer"
"""Set on gradients whose computation was counted: one that a backward pass has made anew does not have it."""


def DistributedOptimizer(
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Local: an optimiser of the same class and state, whose `step` is collective over the process set and blocking.

    Each one has a name space of its own, in the order in which they are made; so ranks make them in the same order.
    """
    if op not in (Average, Sum, Adasum):
        raise ValueError(f"op must be hvd.Average, hvd.Sum or hvd.Adasum for an optimizer; received {op!r}")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError(f"gradient_predivide_factor is for op=hvd.Average only; received {gradient_predivide_factor} with op={op}")
    if isinstance(optimizer, Wrapped):
        raise ValueError("the optimizer is a DistributedOptimizer already; give it the one that it was made from")
    _check_passes(backward_passes_per_step)
    if num_groups:
        warnings.warn("num_groups= is deprecated; give groups=", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    names = parameter_names(optimizer.param_groups, named_parameters)
    together = parameter_groups([one for one in names if one.requires_grad], groups)
    if op == Adasum:
        if process_set is not global_process_set:
            raise ValueError("op=hvd.Adasum works on the global process set only; leave process_set out")
        if together or sparse_as_dense:
            raise ValueError("with op=hvd.Adasum steps travel and not gradients; leave groups and sparse_as_dense out")
        adasum = same_class(optimizer, DeltaSteps)
        adasum._begin_deltas(names, compression, backward_passes_per_step)
        return adasum
    distributed = same_class(optimizer, _DistributedOptimizer)
    title = Lasting("optimizer", process_set, owner=distributed)
    how = Traveller(compression, op, gradient_predivide_factor, sparse_as_dense, process_set, title)
    distributed._begin_reductions(names, how, backward_passes_per_step, together)
    return distributed


def _check_passes(passes: int) -> None:
    if passes < 1:
        raise ValueError(f"backward_passes_per_step must be at least 1; received {passes}")


def _computed(owner: ref[_DistributedOptimizer], one: Tensor) -> None:
    """A parameter outlives optimisers that were made for it before, in notebooks say; they must not go on reducing. After
    `shutdown` gradients may still be of interest, of a saliency map say."""
    optimizer = owner()
    if optimizer is not None and PROCESS.has_begun:
        optimizer._on_gradient(one)


class _DistributedOptimizer(Wrapped):
    """What is put in front of the user's class. All methods are local, except `synchronize` and `step`. Its name is Horovod's,
    by which other packages recognise a distributed optimiser."""

    def _begin_reductions(
        self, names: dict[Tensor, str], how: Traveller, passes: int, together: Sequence[Sequence[Tensor]]
    ) -> None:
        self._parameter_names = names
        self._how = how
        self.backward_passes_per_step = passes
        self._handles: dict[Tensor, Flight | None] = {}
        """Of gradients that were computed: how each travels; None: not all its passes are over."""
        self._requires_update: set[Tensor] = {one for one in names if one.requires_grad}
        self._allreduce_delay: dict[Tensor, int] = dict.fromkeys(names, passes)
        self._should_synchronize, self._synchronized = True, False
        self._group_of = {one: group for group in together for one in group}
        self._ready: dict[int, set[Tensor]] = {id(group): set() for group in together}
        self._lock = threading.RLock()  # gradients of several devices are computed by several threads
        self._backward: int | None = None
        """The backward pass in which a gradient was computed last."""
        self._rivals: dict[Tensor, list[ref[_DistributedOptimizer]]] = {}
        """Other optimisers of a parameter."""
        if how.process_set.included():
            _ = how.title.number  # in the order in which they are made
        self._meet_rivals(names)
        self._hooks: list[Any] = []
        for one in self._requires_update:
            self._hook(one)

    def _hook(self, one: Tensor) -> None:
        self._hooks.append(one.register_post_accumulate_grad_hook(partial(_computed, ref(self))))  # type: ignore[no-untyped-call]

    def _adopt_newcomers(self) -> None:
        """Parameters that were frozen when this was made, or came by `add_param_group`, take part from now on; otherwise each rank
        would go its own way with them."""
        known = set(self._parameter_names)
        self._name_newcomers()
        self._meet_rivals(self._parameter_names.keys() - known)
        for one in self._parameter_names:
            if one.requires_grad and one not in self._requires_update:
                self._allreduce_delay[one] = self.backward_passes_per_step
                self._requires_update.add(one)
                self._hook(one)

    def _meet_rivals(self, parameters: Iterable[Tensor]) -> None:
        others = (thing.owner for thing in PROCESS.remembered())
        for other in others:
            if isinstance(other, _DistributedOptimizer) and other is not self:
                for one in set(parameters) & other._parameter_names.keys():
                    self._rivals.setdefault(one, []).append(ref(other))
                    other._rivals.setdefault(one, []).append(ref(self))

    def _rivals_of(self, one: Tensor) -> list[_DistributedOptimizer]:
        return [rival for held in self._rivals.get(one, ()) if (rival := held()) is not None]

    def _travels(self) -> bool:
        """Whether there is anybody to reduce with; in another life that may be different."""
        return self._how.process_set.included() and self._how.process_set.size() > 1

    # ---- during the backward pass --------------------------------------------------------------------------------------

    def _on_gradient(self, one: Tensor) -> None:
        # Of a parameter with two optimisers nobody knows yet who will make the step, and how that one wants it reduced.
        if not self._travels() or self._rivals_of(one):
            return
        with self._lock:
            backward = torch._C._current_graph_task_id()
            if backward != self._backward:
                self._backward = backward
                # Ranks need not have the same gradients: those of a pass that was dropped must be out of the way of this one.
                if any(not self._allreduce_delay[other] and not getattr(other.grad, SEEN, False) for other in self._handles):
                    self._forget_all(keep=True)
            if not getattr(one.grad, SEEN, False):  # a new gradient: what there was before was dropped, by model.zero_grad() say
                self._forget(one)
                setattr(one.grad, SEEN, True)
            if self._allreduce_delay[one] <= 0:
                raise AssertionError(
                    f"the gradient of {self._parameter_names[one]} was computed more than {self.backward_passes_per_step} times "
                    "before step() or synchronize(); raise backward_passes_per_step, or call step() in between"
                )
            self._allreduce_delay[one] -= 1
            self._handles[one] = None
            if self._allreduce_delay[one] == 0:
                self._start_when_group_is_ready(one)

    def _start_when_group_is_ready(self, one: Tensor) -> None:
        group = self._group_of.get(one)
        if group is not None:
            ready = self._ready[id(group)]
            ready.add(one)
            if len(ready) < len(group):
                return
        together = [one] if group is None else group
        if not any(self._how.lacks_form(member) for member in together):  # else `synchronize` starts it
            self._start(together)

    def _start(self, together: Sequence[Tensor]) -> None:
        group = self._group_of.get(together[0])
        if group is not None:
            self._ready[id(group)].clear()
        self._handles.update(started(self._how, together, self._parameter_names))

    def _forget(self, one: Tensor, keep: bool = False) -> None:
        """Blocking while it travels: as if its gradient had not been computed. With it goes what travels with it.

        What has travelled is kept where nobody dropped it, as the mean over the ranks: reduced again, it gives what is asked for.
        """
        flight = self._handles.pop(one, None)
        with_it = [other for other, its in self._handles.items() if flight is not None and its is flight]
        for gone in (one, *with_it):
            self._handles.pop(gone, None)
            self._allreduce_delay[gone] = self.backward_passes_per_step
            group = self._group_of.get(gone)
            if group is not None:
                self._ready[id(group)].discard(gone)
        if flight is None:
            return
        flight.drop()
        for kept in (one, *with_it) if keep else with_it:
            if kept.grad is not None and getattr(kept.grad, SEEN, False):  # else it was dropped, or is a new one already
                flight.land(kept)
                if self._how.op == Sum:
                    kept.grad.detach().div_(self._how.process_set.size())

    def _forget_all(self, keep: bool = False) -> None:
        """Collective where something travels, blocking: as if no gradient had been computed. One that only some ranks have sent
        would meet the next one of the others; so those that the others may have sent follow first, as zeros."""
        if not all(map(self._allreduce_delay.get, self._handles)):  # passes are over, so somebody may have sent something
            held = {one: one.grad for one in self._parameter_names}
            for one in self._parameter_names:
                together = self._group_of.get(one, [one])
                if self._handles.get(one) is None and all(map(self._may_have_started, together)):
                    for member in together:
                        member.grad = None
                    self._start(together)
            for one, grad in held.items():
                one.grad = grad
        for one in list(self._handles):
            self._forget(one, keep)

    def _may_have_started(self, one: Tensor) -> bool:
        """Whether a gradient travels during the backward pass of some rank: the same answer on all of them."""
        return one in self._requires_update and not self._rivals_of(one) and not self._how.lacks_form(one)

    # ---- what users call -----------------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Collective over the process set, blocking: afterwards all gradients are those of all ranks. Parameters that got none
        here take part with zeros, as others may have one. If some cannot be reduced, raises the first error when all are over."""
        if not self._travels():
            self._synchronized = True
            return
        self._adopt_newcomers()
        needed = {one: name for one, name in self._parameter_names.items() if one in self._requires_update}  # in one order
        mixed = self._how.share_forms(needed) if any(map(self._how.lacks_form, needed)) else []
        for one in needed:
            for rival in self._rivals_of(one):
                rival._forget(one, keep=True)
            if self._handles.get(one) is None:
                together = [member for member in self._group_of.get(one, [one]) if member in needed and member not in mixed]
                if together:
                    self._start(together)
        for one in mixed:
            self._forget(one)
        travelling, self._handles = self._handles, {}
        errors = []
        for one, flight in travelling.items():
            self._allreduce_delay[one] = self.backward_passes_per_step
            assert flight is not None
            try:
                flight.land(one)
            except HorovodInternalError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        if mixed:
            raise ValueError(
                f"the gradients of {', '.join(needed[one] for one in mixed)} are dense on some ranks and sparse on others "
                "(DistributedOptimizer); give sparse_as_dense=True"
            )
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """For a `step` after `synchronize` was called by hand."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Collective over the process set, blocking: `synchronize`, then the step of the user's class. With a closure the
        gradients are synchronised each time it has computed them."""
        self._made_from._opt_called = True  # a scheduler that was made for it looks there whether steps are made
        if not self._should_synchronize:
            self._synchronized = False
            return super().step(closure)
        if self._synchronized:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() after optimizer.synchronize(): the gradients are "
                "reduced twice; write `with optimizer.skip_synchronize(): optimizer.step()`",
                stacklevel=2,
            )
        if closure is None:
            self.synchronize()
            self._synchronized = False
            return super().step()

        def synchronized() -> Any:
            loss = closure()
            self.synchronize()
            # Line searches decide by it, so it must be the same on all ranks.
            return loss if loss is None or not self._travels() else self._how.share_loss(loss)

        result = super().step(synchronized)
        self._synchronized = False
        return result

    step.hooked = True  # type: ignore[attr-defined]  # the step of the user's class calls the hooks, ours must not

    def zero_grad(self, *args: Any, **options: Any) -> None:
        """Local; where gradients travel it is collective and blocking, as they are then dropped. The arguments are those of the
        user's class."""
        dropped = [one for one, flight in self._handles.items() if flight is not None]
        self._forget_all()
        if dropped:
            warnings.warn(
                f"{len(dropped)} gradients were reduced for nothing: optimizer.zero_grad() was called before optimizer.step(); if "
                "another network's backward pass computes them, as in a GAN, requires_grad_(False) during that pass saves time",
                stacklevel=2,
            )
        super().zero_grad(*args, **options)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Local: how many backward passes add up to one step."""
        _check_passes(passes)
        self.backward_passes_per_step = passes
        for one in self._allreduce_delay:
            self._allreduce_delay[one] = passes

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Local; blocking while gradients travel, which are then forgotten."""
        for one in list(self._handles):
            with suppress(HorovodInternalError):  # of a life that is over, or of ranks that disagree
                self._forget(one)
        for ready in self._ready.values():
            ready.clear()
        self._synchronized = False
        self.set_backward_passes_per_step(self.backward_passes_per_step)
        load_in_place(self, partial(super().load_state_dict, state_dict))
