"""The optimisers of Keras that most people use, formula by formula, as optimisers of torch. They are elementwise; so one pass moves
the whole vector, on every backend, and a server may have a slice of it.

With anything that is more than the formula (clipping, averages of weights, a schedule, constraints) Keras's own code updates the
tensors; see `optimizer.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from unisono.model.keras.module import KerasModule
from unisono.model.torch.one_vector import ElementwiseOptimizer
from unisono.model.torch.parameters import FlatParameters

ITERATIONS = "iterations"
"""Name of the step count in the state of a parameter."""
EXACT: Mapping[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}


class KerasRule(ElementwiseOptimizer, ABC):
    """Base of these optimisers. The state of a parameter has tensors by the names of `memory`."""

    memory: ClassVar[Mapping[str, str]] = {}
    """Name in the state -> attribute of the Keras optimiser, a list with a variable for each trainable one of the model."""

    def __init__(self, params: Iterable[Any], lr: float = 0.0, weight_decay: float = 0.0, **more: Any) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, **more})

    @classmethod
    @abstractmethod
    def settings_of(cls, optimizer: Any) -> dict[str, Any] | None:
        """Pure: returns the settings of the formula; None where the optimiser does more than the formula."""

    @abstractmethod
    def update(self, value: Tensor, gradient: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> None:
        """Local: updates a parameter and its state, in place."""

    def state_for(self, parameter: Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
        """Local: returns the state of a parameter; the initial state where it was cleared."""
        state: dict[str, Any] = self.state[parameter]
        if not state:
            names = self.memory_names(group)
            first = {name: torch.full_like(parameter, self.initial_value(group), requires_grad=False) for name in names}
            state.update({ITERATIONS: 0, **first})
        return state

    def memory_names(self, group: Mapping[str, Any]) -> list[str]:
        """Pure: returns the names of the state that this group needs; a momentum of 0 needs none."""
        return [name for name in self.memory if name != "momentum" or group.get("momentum") != 0]

    def initial_value(self, group: Mapping[str, Any]) -> float:  # noqa: ARG002
        """Pure: returns the initial value of the state."""
        return 0.0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Local: makes one update from the gradients; parameters without a gradient are not changed but count the step."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state_for(parameter, group)
                if parameter.grad is not None:
                    if group["weight_decay"]:
                        parameter.mul_(1 - group["weight_decay"] * group["lr"])
                    self.update(parameter, parameter.grad, state, group)
                state[ITERATIONS] += 1


class KerasSGD(KerasRule):
    memory: ClassVar[Mapping[str, str]] = {"momentum": "momentums"}

    @classmethod
    def settings_of(cls, optimizer: Any) -> dict[str, Any] | None:
        return {"momentum": optimizer.momentum, "nesterov": optimizer.nesterov}

    def update(self, value: Tensor, gradient: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> None:
        lr, momentum = group["lr"], group["momentum"]
        if not momentum:
            value.sub_(gradient, alpha=lr)
        elif group["nesterov"]:
            held = state["momentum"].mul_(momentum).sub_(gradient, alpha=lr)
            value.add_(held, alpha=momentum).sub_(gradient, alpha=lr)
        else:
            # Uphill by -1 of what is dampened to lr: torch's formula is that of Keras then, which has the rate in the momentum.
            torch._fused_sgd_(
                [value],
                [gradient],
                [state["momentum"]],
                lr=-1.0,
                momentum=momentum,
                dampening=1.0 - lr,
                weight_decay=0.0,
                nesterov=False,
                maximize=True,
                is_first_step=False,
            )


class KerasAdam(KerasRule):
    memory: ClassVar[Mapping[str, str]] = {"momentum": "_momentums", "velocity": "_velocities"}

    @classmethod
    def settings_of(cls, optimizer: Any) -> dict[str, Any] | None:
        if optimizer.amsgrad:
            return None
        return {"beta_1": optimizer.beta_1, "beta_2": optimizer.beta_2, "epsilon": optimizer.epsilon}

    def update(self, value: Tensor, gradient: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> None:
        number = EXACT[value.dtype]  # in which Keras corrects the bias, outside of epsilon
        count = number(state[ITERATIONS] + 1)
        first, second = number(group["beta_1"]) ** count, number(group["beta_2"]) ** count
        rate = number(group["lr"]) * np.sqrt(1 - second) / (1 - first)
        # After infinitely many steps torch corrects no bias any more, and its formula is that of Keras.
        endless = torch.full((), inf, device=value.device)
        torch._fused_adam_(
            [value],
            [gradient],
            [state["momentum"]],
            [state["velocity"]],
            [],
            [endless],
            lr=float(rate),
            beta1=group["beta_1"],
            beta2=group["beta_2"],
            weight_decay=0.0,
            eps=group["epsilon"],
            amsgrad=False,
            maximize=False,
        )


class KerasRMSprop(KerasRule):
    memory: ClassVar[Mapping[str, str]] = {"velocity": "_velocities", "momentum": "_momentums"}

    @classmethod
    def settings_of(cls, optimizer: Any) -> dict[str, Any] | None:
        if optimizer.centered:
            return None
        return {"rho": optimizer.rho, "momentum": optimizer.momentum, "epsilon": optimizer.epsilon}

    def update(self, value: Tensor, gradient: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> None:
        lr, rho, momentum = group["lr"], group["rho"], group["momentum"]
        root = state["velocity"].mul_(rho).addcmul_(gradient, gradient, value=1 - rho).add(group["epsilon"]).sqrt_()
        if momentum:
            value.sub_(state["momentum"].mul_(momentum).addcdiv_(gradient, root, value=lr))
        else:
            value.addcdiv_(gradient, root, value=-lr)


class KerasAdagrad(KerasRule):
    memory: ClassVar[Mapping[str, str]] = {"accumulator": "_accumulators"}

    @classmethod
    def settings_of(cls, optimizer: Any) -> dict[str, Any] | None:
        return {"epsilon": optimizer.epsilon, "initial": optimizer.initial_accumulator_value}

    def initial_value(self, group: Mapping[str, Any]) -> float:
        return float(group["initial"])

    def update(self, value: Tensor, gradient: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> None:
        root = state["accumulator"].addcmul_(gradient, gradient).add(group["epsilon"]).sqrt_()
        value.addcdiv_(gradient, root, value=-group["lr"])


RULES: Mapping[str, type[KerasRule]] = {
    "SGD": KerasSGD,
    "Adam": KerasAdam,
    "AdamW": KerasAdam,
    "RMSprop": KerasRMSprop,
    "Adagrad": KerasAdagrad,
}
"""Name in Keras -> rule. AdamW has weight decay by default, which all of them can have."""


def rule_of(optimizer: Any, module: KerasModule) -> KerasRule | None:
    """Local: returns the rule of a built optimiser of Keras, with its state; None where it does more than a rule."""
    kind = RULES.get(type(optimizer).__name__)
    if kind is None or not type(optimizer).__module__.startswith("keras.") or _does_more(optimizer, module):
        return None
    settings = kind.settings_of(optimizer)
    if settings is None or settings.get("epsilon") == 0:  # which would make the gaps of the vector 0 / 0
        return None
    lr, iterations = (module.backend.value_of(one).item() for one in (optimizer._learning_rate, optimizer.iterations))
    parameters = module.trainable()
    found = kind(parameters, float(lr), optimizer.weight_decay or 0.0, **settings)
    for number, parameter in enumerate(parameters):
        state = found.state_for(parameter, found.param_groups[0])
        state[ITERATIONS] = int(iterations)
        for name in found.memory_names(found.param_groups[0]):
            state[name].copy_(module.backend.value_of(getattr(optimizer, kind.memory[name])[number]))
    return found


def publish_rule(rule: KerasRule, part: FlatParameters, module: KerasModule, optimizer: Any) -> None:
    """Local: copies the state of the rule into the Keras optimiser itself, for user code that reads or saves it."""
    (group,) = rule.param_groups
    states = [rule.state_for(parameter, group) for parameter in group["params"]]
    optimizer.iterations.assign(states[0][ITERATIONS])
    optimizer.learning_rate = group["lr"]
    learned = part.optimizer_state()["each"].values()
    for name in rule.memory_names(group):
        values = module.backend.as_backend_arrays([one[name] for one in learned])
        for variable, value in zip(getattr(optimizer, rule.memory[name]), values, strict=True):
            variable.assign(value)


def _does_more(optimizer: Any, module: KerasModule) -> bool:
    """Returns whether this optimiser does more than its rule: clips, averages, scales, spares variables from decay, and so on."""
    limits = (optimizer.clipnorm, optimizer.clipvalue, optimizer.global_clipnorm)
    averages = (optimizer.gradient_accumulation_steps, optimizer.use_ema, optimizer.loss_scale_factor)
    spared = optimizer.weight_decay and any(not optimizer._use_weight_decay(variable) for variable in module.pure.trainable)
    kinds = {parameter.dtype for parameter in module.trainable()}
    return (
        any(one is not None for one in limits)
        or any(averages)
        or bool(spared)
        or any(variable.constraint is not None for variable in module.pure.trainable)
        or not hasattr(optimizer._learning_rate, "assign")
        or len(kinds) > 1
        or not kinds <= set(EXACT)
    )
