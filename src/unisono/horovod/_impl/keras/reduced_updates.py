"""The classes in front of a user's optimiser class, which Keras calls between the gradients of a step and their use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from unisono.horovod._impl.keras.gradient_transport import GradientTransport, ReductionOptions
from unisono.horovod._impl.keras.step_backend import backend_name, own_backend


class CallableList(list[Any]):
    """A list that can be called, as programs of before Keras 3 call `optimizer.variables()`."""

    def __call__(self) -> CallableList:
        return self


if TYPE_CHECKING:

    class _Optimizer:
        """What is behind us in the order of classes."""

        gradient_accumulation_steps: int | None
        learning_rate: Any
        _iterations: Any
        variables: Any
        _backend_apply_gradients: Callable[..., None]
        _filter_empty_gradients: Callable[..., tuple[list[Any], list[Any]]]
        _clip_gradients: Callable[..., list[Any]]
        apply_gradients: Callable[..., Any]
        _var_key: Callable[[Any], Any]
        inner_optimizer: Any

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...
else:
    _Optimizer = object


def refuse_pickles(optimizer: Any) -> NoReturn:
    """Refuses to pickle a distributed optimiser: Keras would pickle the plain class, whose gradients are not reduced."""
    raise TypeError(
        f"this {type(optimizer).__name__} cannot be pickled, as it belongs to the ranks of one job (hvd.DistributedOptimizer); "
        "pickle the original optimizer, or save the model and call hvd.load_model"
    )


class AsBefore(_Optimizer):
    """The methods and attributes that programs of before Keras 3 use."""

    _turn: _Turn

    @property
    def variables(self) -> CallableList:
        """The optimiser's variables, as a list that can also be called."""
        return CallableList(super().variables)

    @property
    def lr(self) -> Any:
        """The name that the learning rate had before Keras 3."""
        return self.learning_rate

    @lr.setter
    def lr(self, value: Any) -> None:
        self.learning_rate = value

    def __reduce__(self) -> Any:
        refuse_pickles(self)

    def apply_gradients(
        self,
        grads_and_vars: Any,
        name: str | None = None,  # noqa: ARG002 -- of Keras 2, as the others
        skip_gradients_aggregation: bool = False,
        experimental_aggregate_gradients: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Updates the variables. Collective, unless the program says that it has reduced the gradients itself."""
        self._turn.is_done = bool(skip_gradients_aggregation) or not experimental_aggregate_gradients
        try:
            return super().apply_gradients(grads_and_vars, **kwargs)
        finally:
            self._turn.is_done = False


class ReducedUpdates(AsBefore):
    """The class in front of the user's optimiser class. An update is collective over the process set when it runs, and blocking.

    Keras comes to `_clip_gradients` exactly once for each update, on every backend: with the gradients of all backward passes that
    belong to it, before they are clipped. So norms are those of the reduced gradients, as in one process.
    """

    _reduction_options: ClassVar[ReductionOptions]
    """Of the class, so that what `from_config` makes of it is the same."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        own_backend()  # which tells its framework of our list
        self._transport = GradientTransport(self._reduction_options, self.gradient_accumulation_steps or 1)
        self._turn = _Turn()

    def register_local_var(self, var: Any) -> None:
        """Leaves the gradient of this variable unreduced, so that every rank keeps it for itself; to be called before the first
        step. Local."""
        self._transport.local.add(self._var_key(var))

    def _filter_empty_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> Any:
        """Returns gradients and variables with zeros for a variable without a gradient, as other ranks may have one."""
        grads, variables = list(grads), list(vars)
        if self._transport.is_needed and not self._turn.is_done and any(one is not None for one in grads):
            grads = [
                _zeros_like(variable) if one is None and self._var_key(variable) not in self._transport.local else one
                for one, variable in zip(grads, variables, strict=True)
            ]
        return super()._filter_empty_gradients(grads, variables)

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> None:
        """Applies the gradients as Keras does; meanwhile `_clip_gradients` knows their variables."""
        self._turn.variables = list(trainable_variables)
        try:
            super()._backend_apply_gradients(grads, trainable_variables)
        finally:
            self._turn.variables = []

    def _clip_gradients(self, grads: Any) -> Any:
        """Reduces the gradients over the ranks, in the passes in which an update is due, and then clips them as Keras does."""
        gradients, variables, is_done = list(grads), self._turn.variables, self._turn.is_done
        keys = [self._var_key(variable) for variable in variables]

        def reduce() -> list[Any]:
            return self._transport.reduce(gradients, variables, keys, is_done)

        steps = self.gradient_accumulation_steps
        if not steps or backend_name() != "jax":
            return super()._clip_gradients(reduce())
        # It computes an update with each pass, and drops it if it is not due.
        from keras import ops

        is_due = ops.equal((self._iterations + 1) % steps, 0)
        if own_backend().is_traced(is_due):
            return super()._clip_gradients(ops.cond(is_due, reduce, lambda: gradients))
        return super()._clip_gradients(reduce() if is_due else gradients)


class ScaledLosses(AsBefore):
    """The class in front of a user's `LossScaleOptimizer`. The inner optimiser is distributed; ranks agree in `compile_hooks.py`
    whether a step counts."""

    @property
    def _turn(self) -> _Turn:  # type: ignore[override]
        """The current update of the inner optimiser."""
        turn: _Turn = self.inner_optimizer._turn
        return turn


def inner_of(optimizer: Any) -> Any:
    """Returns the inner optimiser of one of mixed precision, and any other optimiser itself. Local."""
    return getattr(optimizer, "inner_optimizer", optimizer)


class _Turn:
    """The current update: its variables, and whether its gradients are reduced already. It is kept outside the optimiser, where
    TensorFlow would track it."""

    def __init__(self) -> None:
        self.variables: list[Any] = []
        self.is_done = False


def _zeros_like(variable: Any) -> Any:
    """Returns zeros in the shape and type of a variable."""
    from keras import backend, ops

    return ops.zeros(variable.shape, backend.standardize_dtype(variable.dtype))
