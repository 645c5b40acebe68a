"""Any optimiser of Keras as an optimiser of torch: it updates the same vectors, and its state is saved like that of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.errors import UsageError
from unisono.model.keras.backends import on_host
from unisono.model.keras.module import KerasModule
from unisono.model.keras.rules import KerasRule, publish_rule, rule_of
from unisono.model.torch.parameters import FlatParameters

MEMORY = "variables"
"""Name under which the state of all parameters together is saved."""


class KerasOptimizer(Optimizer):
    """A Keras optimiser that updates the parameters of a `KerasModule`. Its variables are values like the model's, so that
    copies of this share the Keras object."""

    def __init__(self, module: KerasModule, optimizer: Any) -> None:
        self.of_keras = optimizer
        self._backend = module.backend
        device = module.trainable()[0].device
        self._first = [module.backend.copy_of(variable).to(device) for variable in optimizer.variables]
        lr = optimizer._learning_rate
        self._lr = next((number for number, one in enumerate(optimizer.variables) if one is lr), None)
        super().__init__(module.trainable(), {} if self._lr is None else {"lr": float(self._first[self._lr])})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Local: makes one update from the gradients of the parameters; parameters without a gradient are not changed."""
        assert closure is None
        (group,) = self.param_groups
        memory = self._state_tensors()
        self.set_rate(group.get("lr", 0.0))
        parameters: Sequence[nn.Parameter] = group["params"]
        self._backend.update(self.of_keras, [one.data for one in parameters], [one.grad for one in parameters], memory)

    def set_rate(self, lr: float) -> None:
        """Local: sets the learning rate, in the saved state too."""
        if self._lr is not None:
            self._state_tensors()[self._lr].fill_(lr)

    def publish(self) -> None:
        """Local: copies the state of this optimiser into the Keras optimiser itself."""
        for variable, value in zip(self.of_keras.variables, self._state_tensors(), strict=True):
            variable.assign(on_host(value))

    def _state_tensors(self) -> list[Tensor]:
        """Returns the tensors of the optimiser's state, which are made from the first values where torch has none yet."""
        state: Any = self.state  # torch keys it by parameters alone
        held = state[MEMORY]
        if not held:
            held.update({str(number): value.clone() for number, value in enumerate(self._first)})
        return [held[str(number)] for number in range(len(self._first))]


def make_keras_optimizer(module: KerasModule, spec: Any, lr: float | None, options: dict[str, Any]) -> Optimizer:
    """Local: makes the optimiser of a compiled model from a Keras name, a class, or an instance."""
    import keras

    if isinstance(spec, keras.Optimizer):
        if options:
            raise UsageError(
                f"options of the optimizer ({', '.join(options)}) have no effect, as {type(spec).__name__} is already an instance; "
                "set them when you create it"
            )
        made = spec
        if lr is not None and not hasattr(made._learning_rate, "assign"):
            raise UsageError(
                f"lr {lr} of the task (--lr) has no effect, as {type(spec).__name__} has a Keras learning-rate schedule; leave one "
                "out"
            )
        if lr is not None:
            made.learning_rate = lr
    else:
        given = options | ({} if lr is None else {"learning_rate": lr})
        try:
            made = spec(**given) if isinstance(spec, type) else keras.optimizers.get({"class_name": spec, "config": given})
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"Keras optimizer {spec} cannot be created: {str(error).splitlines()[0]}; check its options"
            ) from error
    _refuse_unsupported(made)
    if made.built and list(map(id, made._trainable_variables)) != list(map(id, module.pure.trainable)):
        raise UsageError(
            f"optimizer {type(made).__name__} was built for other variables, or for these in another order; create a new one for "
            "this model"
        )
    made.build(module.pure.trainable)
    return rule_of(made, module) or KerasOptimizer(module, made)


def _refuse_unsupported(optimizer: Any) -> None:
    """Refuses an optimiser with a loss scale or an average of the weights (use_ema)."""
    import keras

    name = type(optimizer).__name__
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise UsageError(
            f"{name} finds its loss scale by trying, but a step that is not finite ends a run here; use the policy mixed_bfloat16, "
            "which needs no loss scale, instead of mixed_float16"
        )
    if optimizer.loss_scale_factor is not None:
        raise UsageError(f"loss_scale_factor of {name} has no effect; leave it out")
    if optimizer.use_ema:
        raise UsageError(
            f"use_ema of {name} is not possible: the average replaces the weights only at the end of fit, so a run cannot resume "
            "from a checkpoint; leave it out"
        )


def publish_learned(part: FlatParameters, module: KerasModule, optimizer: Any) -> None:
    """Local: copies the optimiser state of these parameters into the Keras optimiser, for user code that reads or saves it."""
    if isinstance(part.running, KerasOptimizer):
        part.running.publish()
    elif isinstance(part.running, KerasRule):
        publish_rule(part.running, part, module, optimizer)


def set_rate(part: FlatParameters, lr: float) -> None:
    """Local: sets the learning rate with which a resumed training would start."""
    (group,) = part.running.param_groups
    group["lr"] = lr
    if isinstance(part.running, KerasOptimizer):
        part.running.set_rate(lr)


def rate_of(optimizer: Any) -> float:
    """Local: returns the learning rate of an optimiser of Keras as a number."""
    from keras import ops

    return float(ops.convert_to_numpy(optimizer.learning_rate))


def keras_names() -> list[str]:
    """Local: returns the names of all optimisers that Keras knows, in small letters."""
    import keras

    found = vars(keras.optimizers).values()
    return [one.__name__.lower() for one in found if isinstance(one, type) and issubclass(one, keras.Optimizer)]
