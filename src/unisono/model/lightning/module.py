"""Hooks of a LightningModule, which are called or refused, and its optimiser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from unisono.errors import UsageError

_NOT_CALLED = (
    "on_fit_start on_fit_end on_train_start on_train_end on_validation_start on_validation_end on_test_start on_test_end "
    "on_train_batch_start on_train_batch_end on_validation_batch_start on_validation_batch_end on_test_batch_start "
    "on_test_batch_end on_validation_model_zero_grad on_validation_model_eval on_validation_model_train on_test_model_eval "
    "on_test_model_train on_before_zero_grad on_before_backward on_after_backward on_before_optimizer_step "
    "training_epoch_end validation_epoch_end test_epoch_end training_step_end validation_step_end test_step_end"
)
_OWN_STEP = "write the step as a function of the task, un.Task(step=...)"
_REMEDIES: Mapping[str, str] = {
    **dict.fromkeys(_NOT_CALLED.split(), "move what it does into the step, or into on_train_epoch_start or on_..._epoch_end"),
    **dict.fromkeys(("backward", "optimizer_step", "optimizer_zero_grad", "lr_scheduler_step"), _OWN_STEP),
    **dict.fromkeys(
        ("transfer_batch_to_device", "on_before_batch_transfer", "on_after_batch_transfer"),
        "use un.Task(augment=...), or Source.map in the data of the task",
    ),
    "configure_gradient_clipping": "use un.Task(clip_norm=...)",
    "configure_callbacks": "use patience, target and monitor of un.Task instead",
    "configure_sharded_model": "make the layers in __init__ or configure_model",
}
"""Hooks that are never called here -> what to do instead. A module that defines one is refused."""


def set_up(model: nn.Module) -> None:
    """Local: calls the hooks that a Trainer calls before the weights are used; refuses a module that needs more of a Trainer."""
    kind = type(model).__name__
    if getattr(model, "automatic_optimization", True) is not True:
        raise UsageError(f"{kind} uses manual optimization (automatic_optimization = False), which is not supported; {_OWN_STEP}")
    for hook, remedy in _REMEDIES.items():
        if defines(model, hook):
            raise UsageError(f"{kind} defines {hook}, which is not called here; {remedy}")
    for hook, arguments in (("setup", ("fit",)), ("configure_model", ())):
        if defines(model, hook):
            getattr(model, hook)(*arguments)


@dataclass(frozen=True)
class ConfiguredOptimizer:
    """The optimiser and the scheduler that `configure_optimizers` returned."""

    optimizer: Optimizer
    scheduler: Any = None
    interval: str = "epoch"
    frequency: int = 1


def configured_optimizer(model: nn.Module) -> ConfiguredOptimizer:
    """Local: calls `configure_optimizers` and returns the optimiser of the module and its scheduler; refuses several."""
    found = model.configure_optimizers()  # type: ignore[operator]
    schedulers: Sequence[Any] = ()
    if isinstance(found, (tuple, list)) and len(found) == 2 and all(isinstance(part, (tuple, list)) for part in found):
        optimizers, schedulers = found
    else:
        optimizers = found if isinstance(found, (tuple, list)) else (found,)
    if len(optimizers) > 1 or len(schedulers) > 1:
        raise UsageError(
            f"configure_optimizers of {type(model).__name__} returned {len(optimizers)} optimizers and {len(schedulers)} "
            f"schedulers, and only one of each is supported; to use several optimizers, {_OWN_STEP} and optimizer={{NAME: ...}}"
        )
    optimizer = optimizers[0] if optimizers else None
    if isinstance(optimizer, Mapping):
        if "frequency" in optimizer:
            raise UsageError(
                f"configure_optimizers of {type(model).__name__} returned a frequency, which needs several optimizers; leave it out"
            )
        schedulers = (optimizer["lr_scheduler"],) if optimizer.get("lr_scheduler") is not None else ()
        optimizer = optimizer.get("optimizer")
    if not isinstance(optimizer, Optimizer):
        raise UsageError(f"configure_optimizers of {type(model).__name__} returned {found!r}; it must return a torch optimizer")
    if not schedulers:
        return ConfiguredOptimizer(optimizer)
    (scheduler,) = schedulers
    if not isinstance(scheduler, Mapping):
        return ConfiguredOptimizer(optimizer, scheduler)
    interval, frequency = scheduler.get("interval", "epoch"), scheduler.get("frequency", 1)
    if interval not in ("step", "epoch") or not isinstance(frequency, int) or frequency < 1:
        raise UsageError(
            f"lr_scheduler of {type(model).__name__} has interval {interval!r} and frequency {frequency!r}; "
            "interval must be 'step' or 'epoch', frequency a whole number of at least 1"
        )
    return ConfiguredOptimizer(optimizer, scheduler.get("scheduler"), interval, frequency)


def defines(model: nn.Module, name: str) -> bool:
    """Pure: whether the user's class has this method, and not only Lightning's."""
    owner = next((cls for cls in type(model).__mro__ if name in vars(cls)), None)
    return owner is not None and owner.__module__.partition(".")[0] not in ("lightning", "pytorch_lightning", "torch")
