"""What TensorFlow and JAX have in common: a step is compiled once for each shape of a batch; vectors are copied in, and what comes
out is looked at where it lies."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unisono.model.keras.backends import Backend, Seen
from unisono.model.keras.packing import Packing
from unisono.model.keras.pure import Found, Pure

if TYPE_CHECKING:
    from unisono.model.keras.module import KerasModule


class CompiledBackend(Backend):
    """A framework whose arrays cannot be views of our vectors."""

    def __init__(self, pure: Pure) -> None:
        super().__init__(pure)
        self._trained = Packing([self.copied(variable) for variable in pure.trained])
        self._kept = Packing([self.copied(variable) for variable in pure.kept])
        self._unused: frozenset[int] = frozenset()
        """Trained variables that no loss depends on; known once a step is compiled."""
        self._learn = self.compiled(self._learn_natively)
        self._look = self.compiled(self._look_natively)
        self._outputs = self.compiled(self._outputs_natively)
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

    @abstractmethod
    def tensor(self, array: Any) -> Tensor:
        """Local: a finished array as a tensor in the same memory, which must not be changed."""

    @abstractmethod
    def finished(self, found: Any) -> Any:
        """Local, blocking: the same once it is computed."""

    def outputs(self, module: KerasModule, inputs: Any) -> Any:
        found = self.finished(self._outputs(*self._state(module), self._given(inputs)))
        return self._shown(found)

    def learn(self, module: KerasModule, inputs: Any, targets: Any, weights: Any) -> Seen:
        given = map(self._given, (inputs, targets, weights))
        found, gradients = self.finished(self._learn(*self._state(module), *given))
        module.keep(self._kept.views(self._tensors(found.kept)))
        pieces: list[Tensor | None] = list(self._trained.views(self._tensors(gradients)))
        for number in self._unused:
            pieces[number] = None
        seen = self._seen(found)
        return seen._replace(loss_sum=KnownGradients.apply(seen.loss_sum, pieces, *module.trained()))  # type: ignore[no-untyped-call]

    def look(self, module: KerasModule, inputs: Any, targets: Any, weights: Any) -> Seen:
        given = map(self._given, (inputs, targets, weights))
        return self._seen(self.finished(self._look(*self._state(module), *given)))

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
        after, learned = self.finished(move(*vectors))
        with torch.no_grad():
            torch._foreach_copy_(list(values), packings[0].views(self._tensors(after)))
            torch._foreach_copy_(list(memory), packings[2].views(self._tensors(learned)))

    # ---- in the framework ------------------------------------------------------------------------------------------

    def _learn_natively(self, trained: Any, kept: Any, seeds: Any, inputs: Any, targets: Any, weights: Any) -> Any:
        def of(values: list[Any]) -> Found:
            return self.pure.found(values, self._kept.parts(kept), self._each_seed(seeds), inputs, targets, weights, training=True)

        found, gradients = self.with_gradients(of, self._trained.parts(trained))
        return self._packed(found), self._trained.joined(gradients)

    def _look_natively(self, trained: Any, kept: Any, seeds: Any, inputs: Any, targets: Any, weights: Any) -> Any:
        state = self._trained.parts(trained), self._kept.parts(kept), self._each_seed(seeds)
        return self._packed(self.pure.found(*state, inputs, targets, weights, training=False))

    def _outputs_natively(self, trained: Any, kept: Any, seeds: Any, inputs: Any) -> Any:
        return self.pure.outputs(self._trained.parts(trained), self._kept.parts(kept), self._each_seed(seeds), inputs)

    def _each_seed(self, seeds: Any) -> list[Any]:
        from keras import ops

        return [ops.cast(seeds[number], variable.dtype) for number, variable in enumerate(self.pure.seeds)]

    def _packed(self, found: Found) -> Found:
        from keras import ops

        sums = [ops.reshape(ops.cast(one, "float32"), (-1,)) for one in found.sums]
        return found._replace(kept=self._kept.joined(found.kept), sums=ops.concatenate(sums) if sums else None)

    # ---- between the two -------------------------------------------------------------------------------------------

    def _state(self, module: KerasModule) -> tuple[Any, Any, Any]:
        seeds = module.seeds()
        return (
            self._natives(self._trained.packed(module.trained())),
            self._natives(self._kept.packed(module.kept())),
            self.native(torch.stack(seeds).to(torch.int32) if seeds else torch.zeros(0, 2, dtype=torch.int32)),
        )

    def _given(self, tree: Any) -> Any:
        from keras import tree as nesting

        return None if tree is None else nesting.map_structure(self.native, tree)

    def _shown(self, outputs: Any) -> Any:
        from keras import tree as nesting

        return nesting.map_structure(self.tensor, nesting.lists_to_tuples(outputs))

    def _natives(self, vectors: dict[str, Tensor]) -> dict[str, Any]:
        return {kind: self.native(vector) for kind, vector in vectors.items()}

    def _tensors(self, arrays: dict[str, Any]) -> dict[str, Tensor]:
        return {kind: self.tensor(array) for kind, array in arrays.items()}

    def _seen(self, found: Found) -> Seen:
        sums = torch.zeros(0) if found.sums is None else self.tensor(found.sums).double()
        return Seen(self.tensor(found.loss_sum), float(found.weight), self._shown(found.outputs), sums)


class KnownGradients(torch.autograd.Function):
    """A loss whose gradients were computed with it, as something that autograd can go back from."""

    @staticmethod
    def forward(context: Any, loss: Tensor, gradients: list[Tensor | None], *parameters: Tensor) -> Tensor:  # noqa: ARG004
        context.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(context: Any, *factors: Tensor) -> Any:
        (factor,) = factors
        gradients = context.gradients
        if factor.item() != 1:
            gradients = [None if one is None else one * factor for one in gradients]
        return None, None, *gradients
