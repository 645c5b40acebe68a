"""What TensorFlow and JAX have in common: a step is compiled once for each shape of a batch; vectors are copied in, and what comes
out is looked at where it lies."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unisono.model.keras.backends import Backend, Seen
from unisono.model.keras.packed_variables import KINDS, NAMES, Packing, addresses_of
from unisono.model.keras.pure import Found, Pure
from unisono.model.torch.parameters import Gradients

if TYPE_CHECKING:
    from unisono.model.keras.module import KerasModule


class CompiledBackend(Backend):
    """A framework whose arrays cannot be views of our vectors."""

    def __init__(self, pure: Pure) -> None:
        super().__init__(pure)
        self._trained = Packing([self.seen(variable) for variable in pure.trained])
        self._kept = Packing([self.seen(variable) for variable in pure.kept])
        changes = [one for one, is_frozen in zip(pure.kept, pure.is_frozen, strict=True) if not is_frozen]
        self._changed = Packing([self.seen(variable) for variable in changes])
        self._unused: tuple[int, ...] = ()
        """Trained variables that no loss depends on; known once a step is compiled."""
        self._learn = self.compiled(self._learn_natively)
        self._look = self.compiled(self._look_natively)
        self._outputs = self.compiled(self._outputs_natively)
        self._cut = self.compiled(self._trained.parts)
        self._moves: dict[tuple[int, tuple[bool, ...]], tuple[tuple[Packing, Packing, Packing], Callable[..., Any]]] = {}

    @abstractmethod
    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Pure: the same, compiled at its first call with batches of a shape."""

    @abstractmethod
    def with_gradients(self, function: Callable[[list[Any]], Found], values: list[Any]) -> tuple[Found, list[Any]]:
        """Pure, in the framework: what a function gives for these values, and the gradient of its loss; None for those that it does
        not depend on."""

    def moved(self, optimizer: Any, values: list[Any], gradients: list[Any], memory: list[Any]) -> tuple[list[Any], list[Any]]:
        """In the framework: what an optimiser makes of values and of its memory."""
        after, learned = optimizer.stateless_apply(memory, gradients, values)
        return after, learned

    @abstractmethod
    def native(self, tensor: Tensor) -> Any:
        """Local: an array of the framework. It may use the memory of the tensor."""

    def copy_in(self, vector: Tensor) -> Any:
        """Local: an array of the framework with a copy of a vector that will change."""
        return self.native(vector.clone())

    @abstractmethod
    def tensor(self, array: Any) -> Tensor:
        """Local, blocking: an array, once it is computed, as a tensor in the same memory, which must not be changed."""

    @abstractmethod
    def numbers(self, array: Any) -> list[float]:
        """Local, blocking: what a short array holds."""

    def outputs(self, module: KerasModule, inputs: Any) -> Any:
        return self.shown(self._outputs(*self._state(module), self._given(inputs)))

    def learn(self, module: KerasModule, inputs: Any, targets: Any, weights: Any) -> Seen:
        given = map(self._given, (inputs, targets, weights))
        told, outputs, kept, gradients = self._learn(*self._state(module), *given)
        if kept:
            module.keep(self._changed.views(self._tensors(kept)))
        return self._seen(told, outputs)._replace(gradients=Gradients(self._tensors(gradients), self._unused))

    def look(self, module: KerasModule, inputs: Any, targets: Any, weights: Any) -> Seen:
        given = map(self._given, (inputs, targets, weights))
        return self._seen(*self._look(*self._state(module), *given))

    def move(self, optimizer: Any, values: Sequence[Tensor], gradients: Sequence[Tensor | None], memory: Sequence[Tensor]) -> None:
        has = tuple(gradient is not None for gradient in gradients)
        kind = (id(optimizer), has)
        if kind not in self._moves:
            packings = Packing(values), Packing([one for one in gradients if one is not None]), Packing(memory)

            def move_natively(*vectors: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
                now, made, known = (packing.parts(one) for packing, one in zip(packings, vectors, strict=True))
                each = iter(made)
                after, learned = self.moved(optimizer, now, [next(each) if one else None for one in has], known)
                return packings[0].joined(after), packings[2].joined(learned)

            self._moves[kind] = packings, self.compiled(move_natively)
        packings, move = self._moves[kind]
        made = [one for one in gradients if one is not None]
        vectors = [self._natives(packing.packed(one)) for packing, one in zip(packings, (values, made, memory), strict=True)]
        after, learned = move(*vectors)
        with torch.no_grad():
            torch._foreach_copy_(list(values), packings[0].views(self._tensors(after)))
            torch._foreach_copy_(list(memory), packings[2].views(self._tensors(learned)))

    def handed_over(self, tensors: Sequence[Tensor]) -> list[Any]:
        lying = self._trained.lying(tensors)
        if lying is None:
            return super().handed_over(tensors)
        found: list[Any] = self._cut(self._copies(lying.vectors))
        return found

    def shown(self, outputs: Any) -> Any:
        from keras import tree as nesting

        return nesting.map_structure(self.tensor, nesting.lists_to_tuples(outputs))

    # ---- in the framework ------------------------------------------------------------------------------------------

    def _learn_natively(self, trained: Any, kept: Any, seeds: Any, inputs: Any, targets: Any, weights: Any) -> Any:
        def of(values: list[Any]) -> Found:
            return self.pure.found(values, self._kept.parts(kept), self._each_seed(seeds), inputs, targets, weights, training=True)

        found, gradients = self.with_gradients(of, self._trained.parts(trained))
        return _told(found), found.outputs, self._changed.joined(found.kept), self._trained.joined(gradients)

    def _look_natively(self, trained: Any, kept: Any, seeds: Any, inputs: Any, targets: Any, weights: Any) -> Any:
        state = self._trained.parts(trained), self._kept.parts(kept), self._each_seed(seeds)
        found = self.pure.found(*state, inputs, targets, weights, training=False)
        return _told(found), found.outputs

    def _outputs_natively(self, trained: Any, kept: Any, seeds: Any, inputs: Any) -> Any:
        return self.pure.outputs(self._trained.parts(trained), self._kept.parts(kept), self._each_seed(seeds), inputs)

    def _each_seed(self, seeds: Any) -> list[Any]:
        from keras import ops

        return [ops.cast(seeds[number], variable.dtype) for number, variable in enumerate(self.pure.seeds)]

    # ---- between the two -------------------------------------------------------------------------------------------

    def _state(self, module: KerasModule) -> tuple[Any, Any, Any]:
        trained = module.trained()
        if module.lying is None or module.lying.addresses != addresses_of(trained):
            module.lying = self._trained.lying(trained)
        lying = module.lying
        return (
            self._natives(self._trained.packed(trained)) if lying is None else self._copies(lying.vectors),
            self._natives(self._kept.packed(module.kept())) if self.pure.kept else {},
            self.native(module.seeds()) if self.pure.seeds else (),
        )

    def _given(self, tree: Any) -> Any:
        if isinstance(tree, Tensor):
            return self.native(tree)
        from keras import tree as nesting

        return None if tree is None else nesting.map_structure(self.native, tree)

    def _natives(self, vectors: Mapping[torch.dtype, Tensor]) -> dict[str, Any]:
        return {NAMES[kind]: self.native(vector) for kind, vector in vectors.items()}

    def _copies(self, vectors: Mapping[torch.dtype, Tensor]) -> dict[str, Any]:
        return {NAMES[kind]: self.copy_in(vector) for kind, vector in vectors.items()}

    def _tensors(self, arrays: Mapping[str, Any]) -> dict[torch.dtype, Tensor]:
        return {KINDS[name]: self.tensor(array) for name, array in arrays.items()}

    def _seen(self, told: Any, outputs: Any) -> Seen:
        loss_sum, weight, *sums = self.numbers(told)
        return Seen(loss_sum, weight, outputs, sums)


def _told(found: Found) -> Any:
    """In the framework: all that is a number or a few, as one array, which is quicker to look at."""
    from keras import ops

    kind = found.loss_sum.dtype
    return ops.concatenate([ops.reshape(ops.cast(one, kind), (-1,)) for one in (found.loss_sum, found.weight, *found.sums)])
