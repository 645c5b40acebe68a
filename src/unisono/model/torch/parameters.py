"""The parameters of one optimiser: values and gradients as flat vectors of which the layers' tensors are views.

A backward pass adds to the gradients in place; a hook on each parameter notes that it was used and says when a bucket is complete.
Where all of it is one bucket, nothing can be sent early: then the gradients of a pass are copied at its end, in one go and without
hooks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import isfinite
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.optim import Optimizer

from unisono.errors import UsageError
from unisono.model.flat import Bucket, FlatLayout, view_of
from unisono.model.torch.one_vector import (
    ELEMENTWISE_OPTIMIZERS,
    ElementwiseOptimizer,
    bare_step,
    has_own_step,
    is_new,
    merge_slices,
    optimizer_on_vector,
    slice_optimizer,
    vectors_of,
)
from unisono.model.torch.optimizer_record import InitialOptimizer
from unisono.model.torch.optimizer_state import is_like, load_state, load_state_of_vector, own_copy, state_of, state_of_vector
from unisono.model.torch.vector_slices import copy_in_slices, cut_by, cut_evenly, cut_tensors, step_in_slices, works_in_slices

Empty = Callable[[int, torch.dtype], Tensor]
"""Makes an uninitialised vector, e.g. in memory that the peers see too."""


NO_GRADIENT = (
    "the loss does not depend on any trainable parameter; check that the loss uses the outputs of the model and that nothing is "
    "detached or frozen on the way"
)


class Gradients(NamedTuple):
    """Gradients of a loss that a framework computed: vectors of the same layout as those of the parameters."""

    vectors: Mapping[torch.dtype, Tensor]
    unused: Sequence[int] = ()
    """Numbers of parameters that the loss does not depend on."""


QUICK = (torch.float32, torch.float64)
"""Types whose squares NumPy can add up."""
MOST_NAMED = 3
MOST_QUICK = 2**18
"""Elements: with more of them the threads of torch are faster than NumPy."""


class FlatParameters:
    """Parameters of a model, which are moved into flat vectors when this is made."""

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]], empty: Empty) -> None:
        if not named:
            raise UsageError("the model has no trainable parameters; set requires_grad=True on some")
        self.layout = FlatLayout.of(named)
        self.tensors = [parameter for _, parameter in named]
        device = self.tensors[0].device
        self.values = self.layout.vectors(lambda numel, dtype: torch.empty(numel, dtype=dtype, device=device))
        self.gradients = self.layout.vectors(empty)
        self.optimizer: Optimizer | None = None
        self._made = InitialOptimizer((), {})
        self.used: npt.NDArray[np.float64] = np.zeros(len(self.tensors))
        """1 for each parameter that got a gradient since the last `clear`."""
        views = self.layout.views(self.values)
        self._gradient_views = list(self.layout.views(self.gradients).values())
        for number, (name, parameter) in enumerate(named):
            views[name].copy_(parameter.detach())
            parameter.data = views[name]
            parameter.grad = self._gradient_views[number]
        self._value_views = list(views.values())
        self._addresses = [parameter.data_ptr() for parameter in self.tensors]
        self._watch_gradients()
        self._vectors = list(self.gradients.values())
        self._on_host = [vector.numpy() for vector in self._vectors if _is_small_on_cpu(vector)]
        self._whole: Optimizer | None = None
        self._num_groups = 0
        self._is_slice = False
        self._whole_state: Mapping[str, Tensor] = {}
        self._buckets: list[Bucket] = []
        self._bucket_of: list[int] = []
        self._missing: list[int] = []
        self._next = 0
        self._reported: set[int] = set()
        self._on_ready: Callable[[Bucket], None] | None = None
        self._copies = False
        """Whether passes are between `begin_backward` and `end_backward`, which copies the gradients that they made."""
        self._is_clear = False
        """Whether no pass has come since `clear`."""
        self._apart: list[Tensor] | None = None
        """Gradients of all parameters that are not in the vector."""

    def set_optimizer(self, optimizer: Optimizer, as_one: bool = True) -> None:
        """Local: sets the optimiser of these parameters. An elementwise one is run on the whole vector, as if that were one
        parameter: the same update in one pass instead of one for each tensor; not if it has hooks, a `step` of its own or a state
        that was loaded. Not `as_one` where user code may read its optimiser's state."""
        self.optimizer = optimizer
        self._num_groups = len(optimizer.param_groups)
        self._whole = _on_whole_vector(optimizer, self) if as_one else None
        if self._whole is not None:
            self._rule = bare_step(self._whole)
            if isinstance(optimizer, ElementwiseOptimizer):
                self._merge_state(self._whole, optimizer)
        self._made = InitialOptimizer.of(self.running)

    def check_sliceable(self) -> None:
        """Local: refuses optimisers that `restrict_to_slice` cannot restrict."""
        if self._whole is None or (self.optimizer is not None and has_own_step(self.optimizer)):
            raise UsageError(
                f"{type(self.optimizer).__name__} cannot train weights that are divided over several servers (--servers): it needs "
                "whole tensors, has settings for some of them, leaves some out or has hooks; use --servers 1, or an optimizer like "
                "sgd or adam"
            )

    def restrict_to_slice(self, stretch: slice) -> None:
        """Local: from now on the optimiser updates only this slice of the vector, whatever tensors are there, with the state
        that it has."""
        self.check_sliceable()
        assert self._whole is not None
        (gradients,) = self.gradients.values()
        self._whole, self._is_slice = slice_optimizer(self._whole, stretch, gradients), True
        self._rule = bare_step(self._whole)
        self._vectors = [gradients[stretch]]
        self._on_host = [vector.numpy() for vector in self._vectors if _is_small_on_cpu(vector)]

    def slice_state(self) -> dict[str, Tensor]:
        """Local: returns the state vectors of an optimiser that is restricted to a slice, without copies; empty for others."""
        return vectors_of(self.running) if self._is_slice else {}

    @property
    def running(self) -> Optimizer:
        """The optimiser whose `step` is called."""
        found = self._whole or self.optimizer
        assert found is not None, "there is no optimiser yet"
        return found

    def make_buckets(self, most_bytes: int) -> list[Bucket]:
        """Local: divides the gradient into buckets, which are reported as ready in the order in which they are returned."""
        self._buckets = self.layout.buckets(most_bytes)
        self._bucket_of = [0] * len(self.tensors)
        for position, bucket in enumerate(self._buckets):
            for number in bucket.entry_numbers:
                self._bucket_of[number] = position
        while self._hooks:
            self._hooks.pop().remove()
        self._copies = len(self._buckets) == 1
        if not self._copies:  # after hooks of the user's, whose changes are to be sent too
            self._watch_gradients()
        return self._buckets

    def _watch_gradients(self) -> None:
        """Local: has autograd call `_on_gradient` for each parameter, after the hooks that are there already."""
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(_on_gradient, ref(self), number))  # type: ignore[no-untyped-call]
            for number, parameter in enumerate(self.tensors)
        ]

    def clear(self) -> None:
        """Local: sets gradients to zero, and makes them views again where user code dropped them
        (`zero_grad(set_to_none=True)`)."""
        self.used.fill(0)
        self._is_clear = True
        if self._copies:
            return  # the next pass writes over it
        for vector in self._vectors:
            vector.zero_()
        for parameter, view in zip(self.tensors, self._gradient_views, strict=True):
            if parameter.grad is not view:
                parameter.grad = view

    def begin_backward(self) -> None:
        """Local, before a backward pass: drops the gradients where autograd is to make them itself, to be copied afterwards."""
        if self._copies:
            for parameter in self.tensors:
                parameter.grad = None

    def end_backward(self) -> None:
        """Local, after a backward pass, also where there is none in this step: adds gradients that autograd made to the vectors."""
        self._take_back_values()
        if not self._copies:
            self._take_back_all()
            return
        made, views = [parameter.grad for parameter in self.tensors], self._gradient_views
        usual = [gradient for gradient in made if gradient is not None and not gradient.is_sparse]
        if len(usual) == len(made):
            if self._is_clear:
                self._take_usual(usual)
            else:
                torch._foreach_add_(views, usual)
            self.used.fill(1)
        else:
            if self._is_clear:
                for vector in self._vectors:
                    vector.zero_()
            for number, gradient in enumerate(made):
                if gradient is not None:
                    views[number].add_(gradient)
                    self.used[number] = 1
        self._is_clear = False
        for parameter, view in zip(self.tensors, views, strict=True):
            parameter.grad = view

    @property
    def is_apart(self) -> bool:
        """Local: whether the gradients of the newest pass are not in the vector."""
        return bool(self._apart)

    def _take_usual(self, made: list[Tensor]) -> None:
        """Local: copies the gradients that autograd made for all parameters into the vectors, unless they stay apart."""
        if self._apart is None:
            copy = copy_in_slices if works_in_slices(made[0]) else torch._foreach_copy_
            copy(self._gradient_views, made)
            return
        for one, view in zip(made, self._gradient_views, strict=True):
            self._apart.append(one if one.stride() == view.stride() and one.dtype is view.dtype else view.copy_(one))

    @contextmanager
    def apart(self) -> Iterator[bool]:
        """In this context the gradients of one pass are used where autograd has put them, if the optimiser can do that: the vector
        of gradients is then not written. Yields whether it can."""
        step = None if self._whole is None or self._is_slice or not self._whole.state else step_in_slices(self._whole)
        if step is None or not self._copies:
            yield False
            return
        self._apart, self._step_apart = [], step
        try:
            yield True
        finally:
            self._apart = None

    def add_gradients(self, gradients: Gradients) -> None:
        """Local: adds gradients that a framework computed, in the place of a backward pass."""
        for dtype, made in gradients.vectors.items():
            if self._is_clear:
                self.gradients[dtype].copy_(made)
            else:
                self.gradients[dtype].add_(made)
        self._is_clear = False
        unused = list(gradients.unused)
        before = self.used[unused]
        self.used.fill(1)
        self.used[unused] = before

    def take_assigned_gradients(self, from_pass: npt.NDArray[np.bool_]) -> bool:
        """Local: copies gradients that user code has assigned into the vectors, and counts them as used; those that it dropped, and
        no pass has made again, are set to zero and unused. Returns whether none was put in the place of one `from_pass`."""
        for number, (parameter, view) in enumerate(zip(self.tensors, self._gradient_views, strict=True)):
            if parameter.grad is view:
                continue
            if parameter.grad is None:
                self.used[number] = 0
                parameter.grad = view.zero_()
            elif from_pass[number]:
                return False
            else:
                self.used[number] = 1
                self._take_back(number, parameter)
        return True

    def has_unnoticed_gradients(self) -> bool:
        """Local; waits for the device if a parameter is unused: whether a gradient that no pass has made is not zero."""
        return any(bool(self._gradient_views[number].any()) for number in np.flatnonzero(self.used == 0))

    def watch(self, on_ready: Callable[[Bucket], None]) -> None:
        """Local: from now on calls `on_ready` for each complete bucket, until `report_remaining_buckets`."""
        self._missing = [len(bucket.entry_numbers) for bucket in self._buckets]
        self._next = 0
        self._reported.clear()
        self._on_ready = on_ready

    def report_remaining_buckets(self) -> None:
        """Local, after a backward pass: reports the buckets of parameters without a gradient, and ends the watch."""
        tell, self._on_ready = self._on_ready, None
        if tell is not None:
            for bucket in self._buckets[self._next :]:
                tell(bucket)

    def _on_gradient(self, number: int, parameter: Tensor) -> None:
        """Hook of autograd: notes that the parameter has its gradient, and reports each bucket, in order, that is complete."""
        self.used[number] = 1
        if parameter.grad is not self._gradient_views[number]:
            self._take_back(number, parameter)
        if self._on_ready is None:
            return
        position = self._bucket_of[number]
        if number in self._reported:  # checkpointing in parts gives a shared module its gradient piece by piece
            if position < self._next:
                raise UsageError(
                    f"the gradient of {self.layout.entries[number].name} changed after it was sent to the other workers; use "
                    "checkpoint(..., use_reentrant=False), or send all gradients at the end (--set algorithm.bucket_mb=1e6)"
                )
            return
        self._reported.add(number)
        self._missing[position] -= 1
        while self._next < len(self._buckets) and self._missing[self._next] == 0:
            self._next += 1
            self._on_ready(self._buckets[self._next - 1])

    def _take_back(self, number: int, parameter: Tensor) -> None:
        """Copies a gradient that autograd made because user code dropped the view (`zero_grad`) back into the vector."""
        view = self._gradient_views[number]
        if parameter.grad is None:
            raise UsageError(
                f"a hook removed the gradient of {self.layout.entries[number].name}; hooks may change gradients, not remove them"
            )
        view.copy_(parameter.grad)
        parameter.grad = view

    def _take_back_all(self) -> None:
        """Copies gradients that user code put in the place of views, after our hook had seen them, back into the vector, and puts
        dropped views back."""
        for number, (parameter, view) in enumerate(zip(self.tensors, self._gradient_views, strict=True)):
            if parameter.grad is view:
                continue
            if parameter.grad is None:
                parameter.grad = view
                continue
            if self._on_ready is not None and self._bucket_of[number] < self._next:
                raise UsageError(
                    f"the gradient of {self.layout.entries[number].name} was replaced after it had been sent to the other workers; "
                    "register hooks of parameters before the training begins, where the model is made"
                )
            self.used[number] = 1
            self._take_back(number, parameter)

    def _take_back_values(self) -> None:
        """Local, cheap: copies values that user code put in the place of views (`parameter.data = ...`) into the vector, which is
        updated, sent and summed, and puts the views back."""
        if [parameter.data_ptr() for parameter in self.tensors] == self._addresses:
            return
        for entry, parameter, view in zip(self.layout.entries, self.tensors, self._value_views, strict=True):
            if parameter.data_ptr() == view.data_ptr():
                continue
            if (parameter.shape, parameter.dtype, parameter.device) != (view.shape, view.dtype, view.device):
                raise UsageError(
                    f"{entry.name} got another shape, type or device after the training had begun; change the model before that"
                )
            view.copy_(parameter.data)
            parameter.data = view

    def scale(self, factor: float | Tensor) -> None:
        """Local: multiplies the gradient by a factor, which may be on the device."""
        if isinstance(factor, float) and len(self._on_host) == len(self._vectors):
            for one in self._on_host:
                np.multiply(one, one.dtype.type(factor), out=one)
            return
        for vector in self._vectors:
            vector.mul_(factor)

    def scale_if_finite(self, factor: Tensor, not_finite: Tensor, loss: Tensor | None = None) -> None:
        """Local, on the device: multiplies the gradient by a factor; sets the flag to 1 if an element is not finite, also of a
        loss, which is scaled with those that are `apart`."""
        if self._apart:
            checked = self._apart if loss is None else [*self._apart, loss.reshape(1)]
            torch._amp_foreach_non_finite_check_and_unscale_(cut_tensors(checked, 1), not_finite, factor.float())
            return
        for vector in self._vectors:
            if vector.dtype is torch.float32:  # in one pass
                torch._amp_foreach_non_finite_check_and_unscale_(cut_evenly(vector, 1), not_finite, factor.float())
            else:
                not_finite.copy_(torch.maximum(not_finite, ~torch.isfinite(vector.sum())))
                vector.mul_(factor)

    def unused_names(self, uses: npt.NDArray[np.float64]) -> str:
        """Local: the names of some parameters that were not used, as these flags say."""
        return ", ".join(self.layout.entries[number].name for number in np.flatnonzero(uses == 0)[:MOST_NAMED])

    def update(self, settings: Sequence[Mapping[str, Any]], uses: npt.NDArray[np.float64], left_out: Tensor | None = None) -> None:
        """Local: makes one step of the optimiser. Parameters that no worker used are not changed, as in plain torch. `left_out`,
        on a GPU with a fused optimiser: not 0 where nothing must be changed."""
        self._follow_user()
        everything = bool(uses.all())
        if not everything and self._whole is not None:
            if not uses.any():
                return
            if self._is_slice:
                raise UsageError(
                    f"a batch did not use {self.unused_names(uses)}, and several servers (--servers) cannot leave out single "
                    "parameters; use --servers 1"
                )
            self._use_single_tensors(self._whole)
        optimizer = self.running
        if left_out is not None:
            optimizer.found_inf = left_out  # type: ignore[attr-defined]
            settings = [_as_on_device(values) for values in settings]
            _make_momentum(optimizer)
        for group, values in zip(optimizer.param_groups, settings, strict=True):
            group.update(values)
        if self._whole is not None:
            with torch.no_grad():
                if self._apart:
                    self._step_apart(cut_by(self.layout.entries), self._apart)
                else:
                    self._rule()
            increment_version(self.tensors)  # else a loss that was computed before would train on, with wrong gradients
            return
        unused = np.flatnonzero(uses == 0)
        for number in unused:
            self.tensors[number].grad = None
        optimizer.step()
        self._take_back_values()
        for number in unused:
            self.tensors[number].grad = self._gradient_views[number]

    def _follow_user(self) -> None:
        """Local, cheap: follows what user code has done to its optimiser since the start: calls new hooks, refuses new groups."""
        assert self.optimizer is not None
        if len(self.optimizer.param_groups) != self._num_groups:
            raise UsageError(
                "the optimizer has parameter groups that were added after the training had begun, so each worker would train them "
                "by itself; give it all groups from the start (batches that do not use a parameter do not change it)"
            )
        if self._whole is not None and has_own_step(self.optimizer):
            if self._is_slice:
                self.check_sliceable()
            self._use_single_tensors(self._whole)

    def _use_single_tensors(self, whole: Optimizer) -> None:
        """Local: from now on the optimiser updates the single tensors, with the state that they had as parts of the vector; so
        each of them can be left out, and counts its own steps."""
        assert self.optimizer is not None
        for group, moved in zip(self.optimizer.param_groups, whole.param_groups, strict=True):
            group.update({name: value for name, value in moved.items() if name != "params"})
        self.optimizer.state.update(self.split_state(whole.state))
        self._whole = None

    def split_state(self, of_whole: Mapping[Any, Any]) -> defaultdict[Any, Any]:
        """Local: splits the state of an optimiser of the whole vector into that of the tensors."""
        (vector,) = self.values.values()
        (state,) = of_whole.values() or ({},)
        found: defaultdict[Any, Any] = defaultdict(dict)
        for entry, tensor in zip(self.layout.entries, self.tensors, strict=True):
            found[tensor] = {
                name: view_of(entry, value).clone() if is_like(value, vector) else own_copy(value) for name, value in state.items()
            }
        return found

    def _merge_state(self, whole: Optimizer, of_each: ElementwiseOptimizer) -> None:
        """Local: merges the state of an optimiser of the tensors into that of the whole vector; the values are moved, not
        copied."""
        (vector,) = whole.param_groups[0]["params"]
        for name, first in of_each.state[self.tensors[0]].items():
            if not is_like(first, self.tensors[0]):
                whole.state[vector][name] = first
                continue
            joined = whole.state[vector][name] = torch.zeros_like(vector.detach())
            for entry, tensor in zip(self.layout.entries, self.tensors, strict=True):
                view_of(entry, joined).copy_(of_each.state[tensor][name])
        of_each.state.clear()

    def optimizer_state(self) -> dict[str, Any]:
        """Local: returns the state of the optimiser by the names of the parameters; tensors are not copied."""
        if self._whole is None:
            return state_of(self.running, self._made, self._named_tensors())
        whole = self._whole
        if self._is_slice:
            (values,), (gradients,) = self.values.values(), self.gradients.values()
            # Before anything was gathered the size of the state may be asked for.
            vectors = self._whole_state or {name: one.new_empty(values.shape) for name, one in self.slice_state().items()}
            whole = merge_slices(whole, values, gradients, vectors)
        return state_of_vector(whole, self._made, self.layout.entries)

    def set_full_state(self, vectors: Mapping[str, Tensor]) -> None:
        """Local: sets what an optimiser that is restricted to a slice saves: the vectors of `slice_state`, gathered from all
        servers."""
        self._whole_state = vectors

    def load_optimizer_state(self, state: Mapping[str, Any]) -> None:
        """Local: loads what `optimizer_state` returned, here or elsewhere. Tensors are copied."""
        if isinstance(self.running, ElementwiseOptimizer):
            self.running.state.clear()  # its state may be empty
        if self._whole is not None and "of_all" not in state:
            self._use_single_tensors(self._whole)
        if self._whole is None:
            load_state(self.running, state, self._named_tensors())
        else:
            load_state_of_vector(self._whole, state, self.layout.entries)

    def _named_tensors(self) -> list[tuple[str, nn.Parameter]]:
        """Returns the parameters with their names, in the order of the layout."""
        return [(entry.name, tensor) for entry, tensor in zip(self.layout.entries, self.tensors, strict=True)]

    def is_finite(self) -> bool:
        """Local; waits for the device: whether every gradient is finite."""
        if len(self._on_host) == len(self._vectors) and all(isfinite(np.dot(one, one)) for one in self._on_host):
            return True  # squares may overflow where numbers do not; so a sum decides
        return isfinite(float(self.sum()))

    def squared_norm(self) -> Tensor:
        """Local: returns the squared norm of the whole gradient, on the device (the gaps are zero)."""
        squares = [torch.linalg.vector_norm(vector, dtype=torch.float64) ** 2 for vector in self._vectors]
        return squares[0] if len(squares) == 1 else torch.stack(squares).sum()

    def sum(self) -> Tensor:
        """Local: returns the sum of all gradients, on the device; it is finite only if each of them is."""
        sums = [vector.sum() for vector in self._vectors]
        return sums[0] if len(sums) == 1 else torch.stack([one.double() for one in sums]).sum()


def _on_gradient(held: ref[FlatParameters], number: int, parameter: Tensor) -> None:
    """Hook of autograd that calls the method of this name, unless `held` is gone. Torch keeps the hook where Python does not
    collect cycles, so it must not keep the vectors alive."""
    if (found := held()) is not None:
        found._on_gradient(number, parameter)


def _as_on_device(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings of an update that may also be repeated with a learning rate on the device: it has float32 there."""
    lr = settings.get("lr")
    return {**settings, "lr": float(np.float32(lr))} if isinstance(lr, float) else settings


def _make_momentum(optimizer: Optimizer) -> None:
    """Local, cheap: makes the momentum of torch's SGD as zeros: in a first step that is left out torch leaves it as it found the
    memory."""
    for group in optimizer.param_groups if type(optimizer) is torch.optim.SGD else ():
        for tensor in group["params"] if group["momentum"] and not group["dampening"] else ():
            if tensor.grad is not None and optimizer.state[tensor].get("momentum_buffer") is None:
                optimizer.state[tensor]["momentum_buffer"] = torch.zeros_like(tensor.detach())


def _is_small_on_cpu(vector: Tensor) -> bool:
    """Returns whether the vector is on the CPU and so small that numpy is faster than torch."""
    return vector.device.type == "cpu" and vector.dtype in QUICK and vector.numel() <= MOST_QUICK


def _on_whole_vector(optimizer: Optimizer, held: FlatParameters) -> Optimizer | None:
    """Local: returns the same optimiser for the whole vector as one parameter; None where its updates would differ."""
    is_ours = isinstance(optimizer, ElementwiseOptimizer)
    by_itself = (type(optimizer) in ELEMENTWISE_OPTIMIZERS or is_ours) and not has_own_step(optimizer)
    if not by_itself or len(optimizer.param_groups) != 1 or len(held.values) != 1:
        return None
    (group,) = optimizer.param_groups
    if set(map(id, group["params"])) != set(map(id, held.tensors)):
        return None
    (values,), (gradients,) = held.values.values(), held.gradients.values()
    whole = optimizer_on_vector(optimizer, values, gradients)
    return whole if is_ours or is_new(optimizer, whole, held.layout.entries, held.tensors) else None
