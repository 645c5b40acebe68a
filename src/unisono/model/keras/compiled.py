"""The common part of TensorFlow and JAX: a step is compiled once for each shape of a batch; vectors are copied in, and results
are read without a copy."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unisono.model.keras.backends import Backend, BatchResult
from unisono.model.keras.packed_variables import KINDS, NAMES, Packing, addresses_of
from unisono.model.keras.pure import Pure, PureResult
from unisono.model.torch.parameters import Gradients

if TYPE_CHECKING:
    from unisono.model.keras.module import KerasModule


class CompiledBackend(Backend):
    """A backend whose arrays cannot be views of our vectors."""

    def __init__(self, pure: Pure) -> None:
        super().__init__(pure)
        self._trained = Packing([self.value_of(variable) for variable in pure.trainable])
        self._kept = Packing([self.value_of(variable) for variable in pure.non_trainable])
        changes = [one for one, is_frozen in zip(pure.non_trainable, pure.is_frozen, strict=True) if not is_frozen]
        self._changed = Packing([self.value_of(variable) for variable in changes])
        self._unused: tuple[int, ...] = ()
        """Trainable variables that no loss depends on; known once a step is compiled."""
        self._compute_gradients = self.compile(self._compute_gradients_natively)
        self._evaluate = self.compile(self._evaluate_natively)
        self._apply_model = self.compile(self._apply_natively)
        self._cut = self.compile(self._trained.split)
        self._moves: dict[tuple[int, tuple[bool, ...]], tuple[tuple[Packing, Packing, Packing], Callable[..., Any]]] = {}

    @abstractmethod
    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Pure: returns the function in a form that is compiled at its first call with batches of a shape."""

    @abstractmethod
    def with_gradients(self, function: Callable[[list[Any]], PureResult], values: list[Any]) -> tuple[PureResult, list[Any]]:
        """Pure, in the framework: returns the result of a function for these values, and the gradients of its loss; None for
        values that it does not depend on."""

    def apply_optimizer(
        self, optimizer: Any, values: list[Any], gradients: list[Any], memory: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        """In the framework: returns the values and the memory of an optimiser after one step."""
        after, learned = optimizer.stateless_apply(memory, gradients, values)
        return after, learned

    @abstractmethod
    def as_array(self, tensor: Tensor) -> Any:
        """Local: returns a tensor as an array of the framework, which may use the memory of the tensor."""

    def copy_to_array(self, vector: Tensor) -> Any:
        """Local: returns an array of the framework with a copy of a vector that will change."""
        return self.as_array(vector.clone())

    @abstractmethod
    def as_tensor(self, array: Any) -> Tensor:
        """Local, blocking until the array is computed: returns it as a tensor in the same memory, which must not be changed."""

    @abstractmethod
    def as_numbers(self, array: Any) -> list[float]:
        """Local, blocking: returns the elements of a short array."""

    def apply_model(self, module: KerasModule, inputs: Any) -> Any:
        return self.as_tensors(self._apply_model(*self._arrays_of_state(module), self._as_arrays(inputs)))

    def compute_gradients(self, module: KerasModule, inputs: Any, targets: Any, weights: Any) -> BatchResult:
        given = map(self._as_arrays, (inputs, targets, weights))
        scalars, outputs, kept, gradients = self._compute_gradients(*self._arrays_of_state(module), *given)
        if kept:
            module.update_non_trainable(self._changed.views(self._tensors_by_dtype(kept)))
        return self._batch_result(scalars, outputs)._replace(gradients=Gradients(self._tensors_by_dtype(gradients), self._unused))

    def evaluate(self, module: KerasModule, inputs: Any, targets: Any, weights: Any) -> BatchResult:
        given = map(self._as_arrays, (inputs, targets, weights))
        return self._batch_result(*self._evaluate(*self._arrays_of_state(module), *given))

    def update(
        self, optimizer: Any, values: Sequence[Tensor], gradients: Sequence[Tensor | None], memory: Sequence[Tensor]
    ) -> None:
        has = tuple(gradient is not None for gradient in gradients)
        kind = (id(optimizer), has)
        if kind not in self._moves:
            packings = Packing(values), Packing([one for one in gradients if one is not None]), Packing(memory)

            def move_natively(*vectors: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
                now, made, known = (packing.split(one) for packing, one in zip(packings, vectors, strict=True))
                each = iter(made)
                after, learned = self.apply_optimizer(optimizer, now, [next(each) if one else None for one in has], known)
                return packings[0].join(after), packings[2].join(learned)

            self._moves[kind] = packings, self.compile(move_natively)
        packings, move = self._moves[kind]
        made = [one for one in gradients if one is not None]
        vectors = [self._arrays_by_dtype(packing.pack(one)) for packing, one in zip(packings, (values, made, memory), strict=True)]
        after, learned = move(*vectors)
        with torch.no_grad():
            torch._foreach_copy_(list(values), packings[0].views(self._tensors_by_dtype(after)))
            torch._foreach_copy_(list(memory), packings[2].views(self._tensors_by_dtype(learned)))

    def as_backend_arrays(self, tensors: Sequence[Tensor]) -> list[Any]:
        existing = self._trained.find_vectors(tensors)
        if existing is None:
            return super().as_backend_arrays(tensors)
        found: list[Any] = self._cut(self._copied_arrays_by_dtype(existing.vectors))
        return found

    def as_tensors(self, outputs: Any) -> Any:
        from keras import tree as nesting

        return nesting.map_structure(self.as_tensor, nesting.lists_to_tuples(outputs))

    # ---- in the framework ------------------------------------------------------------------------------------------

    def _compute_gradients_natively(self, trained: Any, kept: Any, seeds: Any, inputs: Any, targets: Any, weights: Any) -> Any:
        """The function that is compiled for a training step: scalars, outputs, new non-trainable values, gradients."""

        def of(values: list[Any]) -> PureResult:
            return self.pure.compute_batch(
                values, self._kept.split(kept), self._each_seed(seeds), inputs, targets, weights, training=True
            )

        found, gradients = self.with_gradients(of, self._trained.split(trained))
        return _scalars(found), found.outputs, self._changed.join(found.non_trainable), self._trained.join(gradients)

    def _evaluate_natively(self, trained: Any, kept: Any, seeds: Any, inputs: Any, targets: Any, weights: Any) -> Any:
        """The function that is compiled for an evaluation: returns the scalars of the batch and the outputs."""
        state = self._trained.split(trained), self._kept.split(kept), self._each_seed(seeds)
        found = self.pure.compute_batch(*state, inputs, targets, weights, training=False)
        return _scalars(found), found.outputs

    def _apply_natively(self, trained: Any, kept: Any, seeds: Any, inputs: Any) -> Any:
        """The function that is compiled for a prediction: returns the outputs."""
        return self.pure.apply_model(self._trained.split(trained), self._kept.split(kept), self._each_seed(seeds), inputs)

    def _each_seed(self, seeds: Any) -> list[Any]:
        """Returns the state of each seed generator, in the dtype of its variable."""
        from keras import ops

        return [ops.cast(seeds[number], variable.dtype) for number, variable in enumerate(self.pure.seeds)]

    # ---- between the two -------------------------------------------------------------------------------------------

    def _arrays_of_state(self, module: KerasModule) -> tuple[Any, Any, Any]:
        """Returns trainable values, other values and seeds as arrays of the backend."""
        trained = module.trainable()
        if module.vectors_in_use is None or module.vectors_in_use.addresses != addresses_of(trained):
            module.vectors_in_use = self._trained.find_vectors(trained)
        existing = module.vectors_in_use
        return (
            self._arrays_by_dtype(self._trained.pack(trained))
            if existing is None
            else self._copied_arrays_by_dtype(existing.vectors),
            self._arrays_by_dtype(self._kept.pack(module.non_trainable())) if self.pure.non_trainable else {},
            self.as_array(module.seeds()) if self.pure.seeds else (),
        )

    def _as_arrays(self, tree: Any) -> Any:
        """Returns the tree with its leaves as arrays of the backend; None for None."""
        if isinstance(tree, Tensor):
            return self.as_array(tree)
        from keras import tree as nesting

        return None if tree is None else nesting.map_structure(self.as_array, tree)

    def _arrays_by_dtype(self, vectors: Mapping[torch.dtype, Tensor]) -> dict[str, Any]:
        """Returns the vectors as arrays of the backend, by the names of their dtypes; memory may be shared."""
        return {NAMES[kind]: self.as_array(vector) for kind, vector in vectors.items()}

    def _copied_arrays_by_dtype(self, vectors: Mapping[torch.dtype, Tensor]) -> dict[str, Any]:
        """Returns copies of the vectors as arrays of the backend, by the names of their dtypes."""
        return {NAMES[kind]: self.copy_to_array(vector) for kind, vector in vectors.items()}

    def _tensors_by_dtype(self, arrays: Mapping[str, Any]) -> dict[torch.dtype, Tensor]:
        """Returns the arrays as tensors, by their dtypes."""
        return {KINDS[name]: self.as_tensor(array) for name, array in arrays.items()}

    def _batch_result(self, scalars: Any, outputs: Any) -> BatchResult:
        """Returns the result of a batch; the scalars are loss sum, weight, and the sums of the metrics."""
        loss_sum, weight, *sums = self.as_numbers(scalars)
        return BatchResult(loss_sum, weight, outputs, sums)


def _scalars(found: PureResult) -> Any:
    """In the framework: returns loss sum, weight and metric sums as one array, which is faster to read than several."""
    from keras import ops

    kind = found.loss_sum.dtype
    return ops.concatenate([ops.reshape(ops.cast(one, kind), (-1,)) for one in (found.loss_sum, found.weight, *found.sums)])
