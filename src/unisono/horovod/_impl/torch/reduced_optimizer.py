"""An optimiser whose gradients are reduced over the ranks while the backward pass runs, and used by `step`."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from weakref import finalize, ref

import torch
from torch import Tensor

from unisono.horovod._impl.exceptions import HorovodInternalError
from unisono.horovod._impl.job.process_state import PROCESS
from unisono.horovod._impl.torch.gradient_names import name_newcomers
from unisono.horovod._impl.torch.gradient_transport import GradientTransport, PendingReduction, start_reductions
from unisono.horovod._impl.torch.submission import Sum
from unisono.optim.wrapped_optimizer import Wrapped

SEEN = "_seen_by_distributed_optimizer"
"""Set on gradients whose computation was counted: one that a backward pass has made anew does not have it."""


def check_passes(passes: int) -> None:
    """Raises `ValueError` for a number of backward passes below 1. Pure."""
    if passes < 1:
        raise ValueError(f"backward_passes_per_step must be at least 1; received {passes}")


def _computed(owner: ref[_DistributedOptimizer], one: Tensor) -> None:
    """Notes that a gradient was computed. A parameter outlives optimisers that were made for it before, in notebooks say; they must
    not keep reducing. After `shutdown` gradients may still be of interest, e.g. of a saliency map."""
    optimizer = owner()
    if optimizer is not None and PROCESS.has_begun:
        optimizer._on_gradient(one)


class _DistributedOptimizer(Wrapped):
    """The class in front of the user's optimiser class. All methods are local, except `synchronize` and `step`. Its name is
    Horovod's, by which other packages recognise a distributed optimiser."""

    def _begin_reductions(
        self, names: dict[Tensor, str], transport: GradientTransport, passes: int, together: Sequence[Sequence[Tensor]]
    ) -> None:
        """Sets up what the reductions need and adds hooks to the parameters; called once, when the optimiser is made."""
        self._parameter_names = names
        self._transport = transport
        self.backward_passes_per_step = passes
        self._handles: dict[Tensor, PendingReduction | None] = {}
        """Parameter -> the reduction of its computed gradient; None: not all its passes are over."""
        self._requires_update: set[Tensor] = {one for one in names if one.requires_grad}
        self._allreduce_delay: dict[Tensor, int] = dict.fromkeys(names, passes)
        self._should_synchronize, self._synchronized = True, False
        self._group_of = {one: group for group in together for one in group}
        self._ready: dict[int, set[Tensor]] = {id(group): set() for group in together}
        self._lock = threading.RLock()  # gradients of several devices are computed by several threads
        self._backward: int | None = None
        """The backward pass in which a gradient was computed last."""
        if transport.process_set.included():
            _ = transport.title.number  # in the order in which they are made
        _share(names)
        self._hooks: list[Any] = []
        finalize(self, _remove_hooks, self._hooks)
        for one in self._requires_update:
            self._add_hook(one)

    def _add_hook(self, one: Tensor) -> None:
        """Has `_computed` called whenever the gradient of this parameter was computed."""
        self._hooks.append(one.register_post_accumulate_grad_hook(partial(_computed, ref(self))))  # type: ignore[no-untyped-call]

    def _adopt_newcomers(self) -> None:
        """Includes parameters that were frozen when this was made, or were added by `add_param_group`; otherwise they would differ
        between ranks."""
        known = set(self._parameter_names)
        name_newcomers(self._parameter_names, self.param_groups)
        _share(self._parameter_names.keys() - known)
        for one in self._parameter_names:
            if one.requires_grad and one not in self._requires_update:
                self._allreduce_delay[one] = self.backward_passes_per_step
                self._requires_update.add(one)
                self._add_hook(one)

    def _take_over(self, shared: Sequence[Tensor]) -> None:
        """Makes other optimisers of these parameters drop their gradients."""
        for rival in (thing.owner for thing in PROCESS.persistent_ids()) if shared else ():
            if isinstance(rival, _DistributedOptimizer) and rival is not self:
                for one in shared:
                    rival._forget(one, keep=True)

    def _reduces(self) -> bool:
        """Whether there are other ranks to reduce with; after another `init` that may be different."""
        return self._transport.process_set.included() and self._transport.process_set.size() > 1

    # ---- during the backward pass --------------------------------------------------------------------------------------

    def _on_gradient(self, one: Tensor) -> None:
        """Counts a computed gradient and, after its last pass, starts its reduction. Raises `AssertionError` for a pass too
        many."""
        # Of a parameter with two optimisers nobody knows yet who will make the step, and how that one wants it reduced. And a hook
        # of the user's may have taken the gradient away.
        if not self._reduces() or _is_shared(one) or one.grad is None:
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
                    "before step() or synchronize(); increase backward_passes_per_step, or call step() in between"
                )
            self._allreduce_delay[one] -= 1
            self._handles[one] = None
            if self._allreduce_delay[one] == 0:
                self._start_when_group_is_ready(one)

    def _start_when_group_is_ready(self, one: Tensor) -> None:
        """Starts the reduction of a gradient, if all of its group are computed and their forms are agreed."""
        group = self._group_of.get(one)
        if group is not None:
            ready = self._ready[id(group)]
            ready.add(one)
            if len(ready) < len(group):
                return
        together = [one] if group is None else group
        if not any(self._transport.lacks_form(member) for member in together):  # else `synchronize` starts it
            self._start_together(together)

    def _start_together(self, together: Sequence[Tensor]) -> None:
        """Starts the reduction of these gradients: a group, or one alone."""
        group = self._group_of.get(together[0])
        if group is not None:
            self._ready[id(group)].clear()
        self._handles.update(start_reductions(self._transport, together, self._parameter_names))

    def _forget(self, one: Tensor, keep: bool = False, zeros: Collection[Tensor] = ()) -> None:
        """Drops the gradient of a parameter, as if it had not been computed, and those that are reduced together with it. Blocking
        while it is in flight.

        With `keep` a reduced gradient that no rank dropped stays, as the mean over the ranks: reduced again, it gives the right
        result. Where `zeros` were sent in its place, this rank's gradient is not in it.
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
            # Else it was dropped, or is a new one already.
            if kept not in zeros and kept.grad is not None and getattr(kept.grad, SEEN, False):
                flight.write_gradient(kept)
                if self._transport.op == Sum:
                    kept.grad.detach().div_(self._transport.process_set.size())

    def _forget_all(self, keep: bool = False) -> None:
        """Drops all gradients, as if none had been computed. A gradient that only some ranks have sent would meet the next one of
        the others; so gradients that others may have sent are sent here first, as zeros. A rank that has nothing to drop while
        others do is found by `synchronize`. Collective where gradients are in flight, blocking."""
        zeros: set[Tensor] = set()
        if not all(map(self._allreduce_delay.get, self._handles)):  # passes are over, so somebody may have sent something
            held = {one: one.grad for one in self._parameter_names}
            try:
                for one in self._parameter_names:
                    together = self._group_of.get(one, [one])
                    if self._handles.get(one) is None and all(map(self._may_have_started, together)):
                        for member in together:
                            member.grad = None
                        self._start_together(together)
                        zeros.update(together)
            finally:
                for one, grad in held.items():
                    one.grad = grad
        if any(flight is not None and not self._transport.lacks_form(one) for one, flight in self._handles.items()):  # of this era
            self._transport.count_drop()
        for one in list(self._handles):
            self._forget(one, keep, zeros)

    def _may_have_started(self, one: Tensor) -> bool:
        """Whether a gradient is reduced during the backward pass of some rank: the same answer on all of them."""
        return one in self._requires_update and not _is_shared(one) and not self._transport.lacks_form(one)

    # ---- what users call -----------------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Waits until all gradients are those of all ranks. Parameters without a gradient take part with zeros, as others may have
        one. If some cannot be reduced, raises the first error when all are over. Collective over the process set, blocking."""
        if not self._reduces():
            self._synchronized = True
            return
        self._adopt_newcomers()
        needed = {one: name for one, name in self._parameter_names.items() if one in self._requires_update}  # in one order
        mixed = self._transport.share_forms(needed) if any(map(self._transport.lacks_form, needed)) else []
        self._take_over([one for one in needed if _is_shared(one)])
        compared = self._transport.compare_drops()
        for one in needed:
            if self._handles.get(one) is None:
                together = [member for member in self._group_of.get(one, [one]) if member in needed and member not in mixed]
                if together:
                    self._start_together(together)
        for one in mixed:
            self._forget(one)
        travelling, self._handles = self._handles, {}
        for one in travelling:
            self._allreduce_delay[one] = self.backward_passes_per_step
        errors = []
        try:
            dropped_alike = compared()
        except HorovodInternalError as error:  # then none of the others will come either
            dropped_alike = True
            errors.append(error)
        if not dropped_alike:  # before any is waited for: some never come
            raise ValueError(
                "some ranks dropped gradients in flight (zero_grad or load_state_dict between backward and step) and others did "
                "not, so gradients of different passes were reduced together; drop them on all ranks, and use "
                "torch.autograd.grad for gradients that no step uses. To start again, call hvd.shutdown() and hvd.init()"
            )
        for one, flight in travelling.items():
            assert flight is not None
            try:
                flight.write_gradient(one)
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
        """Makes `step` inside this context use the gradients as they are, after `synchronize` was called by hand."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Synchronises and makes the step of the user's class. With a closure the gradients are synchronised each time it has
        computed them. Collective over the process set, blocking."""
        if not self._should_synchronize:
            self._synchronized = False
            return self._step_synchronized(closure, lambda loss: loss)
        if self._synchronized:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() after optimizer.synchronize(): the gradients are "
                "reduced twice; write `with optimizer.skip_synchronize(): optimizer.step()`",
                stacklevel=2,
            )

        def synchronized(loss: Any) -> Any:
            self.synchronize()
            # Line searches decide by it, so it must be the same on all ranks.
            return loss if loss is None or not self._reduces() else self._transport.share_loss(loss)

        result = self._step_synchronized(closure, synchronized)
        self._synchronized = False
        return result

    step.hooked = True  # type: ignore[attr-defined]  # the step of the user's class calls the hooks, ours must not

    def zero_grad(self, *args: Any, **options: Any) -> None:
        """Clears the gradients; the arguments are those of the user's class. Local; where gradients are in flight it is collective
        and blocking, as they are then dropped."""
        dropped = [one for one, flight in self._handles.items() if flight is not None]
        if PROCESS.has_begun:
            self._forget_all()
        else:  # what travelled ended with `shutdown`
            self._handles.clear()
            self.set_backward_passes_per_step(self.backward_passes_per_step)
        if dropped:
            warnings.warn(
                f"optimizer.zero_grad() was called before optimizer.step(), so {len(dropped)} reduced gradients were not "
                "used; if another network's backward pass computes them, as in a GAN, call requires_grad_(False) before "
                "that pass to save time",
                stacklevel=2,
            )
        super().zero_grad(*args, **options)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets how many backward passes add up to one step. Local."""
        check_passes(passes)
        self.backward_passes_per_step = passes
        for one in self._allreduce_delay:
            self._allreduce_delay[one] = passes

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state. Local; where gradients are in flight it is collective and blocking, as they are then dropped."""
        if PROCESS.has_begun:
            with suppress(HorovodInternalError):  # they are from before a `shutdown`, or the ranks disagree about them
                self._forget_all()
        self._handles.clear()
        for ready in self._ready.values():
            ready.clear()
        self._synchronized = False
        self.set_backward_passes_per_step(self.backward_passes_per_step)
        self._load(state_dict)


def _share(parameters: Iterable[Tensor]) -> None:
    """Notes that these parameters have one more optimiser."""
    for one in parameters:
        PROCESS.are_shared[one] = one in PROCESS.are_shared


def _is_shared(one: Tensor) -> bool:
    """Whether a parameter has, or ever had, several optimisers: which of them are alive may differ between ranks, but which
    gradients are reduced during a backward pass must not."""
    return one in PROCESS.are_shared and bool(PROCESS.are_shared[one])


def _remove_hooks(hooks: list[Any]) -> None:
    for hook in hooks:
        hook.remove()
