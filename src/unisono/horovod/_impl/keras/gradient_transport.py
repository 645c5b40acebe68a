"""Reduction of the gradients of a Keras optimiser: the framework packs them into few vectors, which are all in flight at once.

Called while a step is traced, or in each step where Keras does not compile. What it builds is collective when it runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from unisono.horovod._impl.compressor import Compressor
from unisono.horovod._impl.engine.operation_request import ReduceOp
from unisono.horovod._impl.job.persistent_ids import PersistentId
from unisono.horovod._impl.job.process_sets import ProcessSet, global_process_set
from unisono.horovod._impl.job.process_state import PROCESS
from unisono.horovod._impl.keras.compression import Compression, dtype_of
from unisono.horovod._impl.keras.gradient_groups import Groups, group_gradients
from unisono.horovod._impl.keras.name_space import NameSpace
from unisono.horovod._impl.keras.step_backend import own_backend
from unisono.horovod._impl.keras.step_parcels import Parcel
from unisono.horovod._impl.torch.submission import Average, Sum


@dataclass(frozen=True)
class ReductionOptions:
    """The options of `DistributedOptimizer`."""

    title: str
    """The prefix of the names of its operations."""
    compression: type[Compressor] = Compression.none
    op: int = Average
    predivide: float = 1.0
    sparse_as_dense: bool = False
    groups: Groups = None
    process_set: ProcessSet = global_process_set
    scale_local: bool = True
    passes: int = 1
    """Backward passes whose gradients are added up; Keras makes their mean."""
    averages_passes: bool = False


@dataclass
class GradientTransport:
    """Reduces the gradients of one optimiser. Ranks use their optimisers for the first time in the same order, as each has its own
    name space."""

    options: ReductionOptions
    accumulated: int = 1
    """Backward passes of which Keras makes the mean; also where a file says so, and not the user of `DistributedOptimizer`."""
    local: set[Hashable] = field(default_factory=set)
    """Keys, as the optimiser has them, of variables that every rank keeps for itself."""
    is_elastic: bool = False
    """Whether ranks may come later, so that also a single rank runs all operations."""

    def __post_init__(self) -> None:
        options = self.options
        options.process_set.included()  # an error where the optimiser is made, if there is no such set
        self._factor = 1.0 if options.averages_passes else float(options.passes)
        choices = {
            "op": ReduceOp(options.op).name,
            "gradient_predivide_factor": options.predivide,
            "sparse_as_dense": options.sparse_as_dense,
            "backward_passes_per_step": self.accumulated,
            "average_aggregated_gradients": self._factor == 1.0,
        }
        self._persistent_id = PersistentId("optimizer", options.process_set)
        self._space = NameSpace(options.title, self._persistent_id, choices)

    @property
    def is_needed(self) -> bool:
        """Whether there are other ranks to reduce with. Local."""
        process_set = self.options.process_set
        return process_set.included() and (self.is_elastic or process_set.size() > 1)

    def reduce(
        self, gradients: Sequence[Any], variables: Sequence[Any], keys: Sequence[Hashable], is_done: bool = False
    ) -> list[Any]:
        """Returns the gradient over all ranks of each variable; gradients of all variables are given. `is_done`: the program has
        reduced them itself."""
        found = list(gradients)
        if self.is_needed and not is_done:
            shared = [number for number, key in enumerate(keys) if key not in self.local]
            if self.options.scale_local and len(shared) < len(found):
                share = 1.0 / self.options.process_set.size()
                found = [_scaled(one, share) if key in self.local else one for one, key in zip(found, keys, strict=True)]
            self._space.enter()
            plan = _StepExchange(self)
            finishers = plan.add_gradients([found[number] for number in shared], [variables[number] for number in shared])
            results = plan.exchange()
            for number, finish in zip(shared, finishers, strict=True):
                found[number] = finish(results)
        return found if self._factor == 1.0 else [_scaled(one, self._factor) for one in found]

    def all_agree(self, flag: Any) -> Any:
        """Returns whether the flag is true on all ranks."""
        from keras import ops

        if not self.is_needed:
            return flag
        self._space.enter()
        parcel = Parcel(self._space, "finite", int(ReduceOp.MIN))
        (found,) = own_backend().through_host([parcel], [ops.reshape(ops.cast(flag, "int32"), (1,))], [(1,)])
        return ops.cast(ops.reshape(found, ()), "bool")


Results = Sequence[Any]
Finish = Callable[[Results], Any]


class _StepExchange:
    """The operations of one step: vectors are added, then exchanged, then each gradient is cut out of the results."""

    def __init__(self, transport: GradientTransport) -> None:
        self._space, self._reduction_options = transport._space, transport.options
        self._backend = own_backend()
        self._parcels: list[Parcel] = []
        self._tensors: list[Any] = []
        self._shapes: list[tuple[int | None, ...]] = []

    def add_gradients(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Finish]:
        """Adds the operations for these gradients; returns for each a function that finds it in the results."""
        finishers: dict[int, Finish] = {}
        dense: dict[int, tuple[Any, Any]] = {}
        if self._backend.HAS_SLICES and not self._reduction_options.sparse_as_dense:
            self._add_layout(gradients, variables)
        for number, gradient in enumerate(gradients):
            if not self._backend.is_slices(gradient):
                dense[number] = self._reduction_options.compression.compress(gradient)
            elif self._reduction_options.sparse_as_dense:
                dense[number] = self._reduction_options.compression.compress(self._backend.dense(gradient))
            else:
                finishers[number] = self._add_rows(gradient, number, tuple(variables[number].shape[1:]))
        threshold = PROCESS.settings.fusion_threshold_bytes
        shapes = {number: _shape_of(small, variables[number]) for number, (small, _) in dense.items()}
        kinds = {number: (dtype_of(small), math.prod(shapes[number])) for number, (small, _) in dense.items()}
        for members in group_gradients(kinds, variables, self._reduction_options.groups, threshold):
            finishers |= self._add_dense({number: dense[number] for number in members}, [shapes[number] for number in members])
        return [finishers[number] for number in range(len(gradients))]

    def exchange(self) -> list[Any]:
        """Carries out all operations and returns their results."""
        if not self._parcels:
            return []
        results: list[Any] = self._backend.through_host(self._parcels, self._tensors, self._shapes)
        return results

    def _add_layout(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Adds the first operation, which compares which gradients consist of some rows only: the names of other operations depend
        on that, so ranks that differ in it would never meet."""
        from keras import ops

        names = tuple(str(getattr(variable, "path", variable.name)) for variable in variables)
        flags = ops.convert_to_tensor([int(self._backend.is_slices(gradient)) for gradient in gradients], "int32")
        self._parcels.append(Parcel(self._space, "layout", Sum, layout=names))
        self._tensors.append(flags)
        self._shapes.append((len(names),))

    def _add_dense(self, packed: dict[int, tuple[Any, Any]], shapes: Sequence[tuple[int, ...]]) -> dict[int, Finish]:
        """Adds tensors of one type as one vector; returns for each, by its number, a function that cuts it out of the results."""
        from keras import ops

        smalls = [small for small, _ in packed.values()]
        lengths = [math.prod(shape) for shape in shapes]
        flat = [ops.reshape(small, (-1,)) for small in smalls]
        options = self._reduction_options
        factors = (1.0 / options.predivide, options.predivide) if options.op == Average else (1.0, 1.0)
        place = self._add(
            f"gradients.{min(packed)}", flat[0] if len(flat) == 1 else ops.concatenate(flat), (sum(lengths),), factors
        )
        ends = [sum(lengths[: number + 1]) for number in range(len(lengths) - 1)]
        cut: list[Any] = []

        def finish_at(position: int, undo: Any) -> Finish:
            def finish(results: Results) -> Any:
                if not cut:  # by the first of them
                    cut.extend(ops.split(results[place], ends) if ends else [results[place]])
                return options.compression.decompress(ops.reshape(cut[position], shapes[position]), undo)

            return finish

        return {number: finish_at(position, undo) for position, (number, (_, undo)) in enumerate(packed.items())}

    def _add_rows(self, slices: Any, number: int, shape: tuple[int, ...]) -> Finish:
        """Adds a gradient of some rows: the rows of all ranks and their indices. Returns a function that makes the gradient of the
        results."""
        small, undo = self._reduction_options.compression.compress(slices.values)
        values = self._add(f"values.{number}", small, (None, *shape), gathers=True)
        indices = self._add(f"indices.{number}", slices.indices, (None,), gathers=True)

        def finish(results: Results) -> Any:
            rows = self._reduction_options.compression.decompress(results[values], undo)
            return self._backend.with_rows(slices, rows, results[indices])

        return finish

    def _add(
        self,
        name: str,
        tensor: Any,
        shape: tuple[int | None, ...],
        factors: tuple[float, float] = (1.0, 1.0),
        gathers: bool = False,
    ) -> int:
        """Adds an operation and returns its index among the results."""
        self._parcels.append(Parcel(self._space, name, self._reduction_options.op, *factors, gathers))
        self._tensors.append(tensor)
        self._shapes.append(shape)
        return len(self._parcels) - 1


def _shape_of(gradient: Any, variable: Any) -> tuple[int, ...]:
    """The shape of a gradient; TensorFlow may know it only when the gradient is computed, then that of the variable."""
    known = getattr(gradient.shape, "rank", 0) is not None and None not in tuple(gradient.shape)
    return tuple(gradient.shape if known else variable.shape)


def _scaled(gradient: Any, factor: float) -> Any:
    """Returns a gradient times a factor, in its type; one of some rows stays one."""
    from keras import ops

    backend = own_backend()
    if backend.is_slices(gradient):
        return backend.with_rows(gradient, gradient.values * ops.cast(factor, dtype_of(gradient.values)), gradient.indices)
    return ops.multiply(gradient, ops.cast(factor, dtype_of(gradient)))
