"""A LightningModule as it is, without a Trainer: its steps give the loss, what it logs becomes exact means over all workers.

It is told by what it has (`training_step`, `configure_optimizers`), so that this file needs no other package. The loss of a step
is a mean over the samples of this worker, as Lightning has it: sum = loss * num_samples. That is exact for means over samples, and
only for them; a mean over tokens or over class weights differs between workers by what their samples weigh.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.errors import UsageError
from unisono.model.base import TEST, TRAIN, Evaluated, Logged
from unisono.model.torch import Outcome, call, in_three, num_rows

Running = tuple[Tensor | float, Tensor | float]
"""A sum and its weight, on the device while it goes on."""

_NOT_CALLED = (
    "on_fit_start on_fit_end on_train_start on_train_end on_validation_start on_validation_end on_test_start on_test_end "
    "on_train_batch_start on_train_batch_end on_validation_batch_start on_validation_batch_end on_test_batch_start "
    "on_test_batch_end on_validation_model_zero_grad on_validation_model_eval on_validation_model_train on_test_model_eval "
    "on_test_model_train on_before_zero_grad on_before_backward on_after_backward on_before_optimizer_step "
    "training_epoch_end validation_epoch_end test_epoch_end training_step_end validation_step_end test_step_end"
)
_OWN_STEP = "write it as a step of the task, un.Task(step=...)"
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
"""Hooks that nobody would call here -> what to do instead. A module that defines one is refused."""


def is_lightning(model: nn.Module) -> bool:
    """Pure."""
    return all(callable(getattr(model, name, None)) for name in ("training_step", "configure_optimizers"))


def set_up(model: nn.Module) -> None:
    """Local: what a Trainer would call before the weights are used; refuses what cannot be done here."""
    kind = type(model).__name__
    if getattr(model, "automatic_optimization", True) is not True:
        raise UsageError(f"{kind} optimises by hand (automatic_optimization = False); {_OWN_STEP}")
    for hook, remedy in _REMEDIES.items():
        if _defines(model, hook):
            raise UsageError(f"{kind} defines {hook}, which is not called here; {remedy}")
    for hook, arguments in (("setup", ("fit",)), ("configure_model", ())):
        if _defines(model, hook):
            getattr(model, hook)(*arguments)


@dataclass
class Surroundings:
    """What a module may ask its trainer: `self.current_epoch`, `self.global_step`, `self.trainer.max_epochs`."""

    max_epochs: int = 1
    num_training_batches: int = 1
    """Steps of an epoch."""
    global_rank: int = 0
    world_size: int = 1
    current_epoch: int = 0
    global_step: int = 0
    sanity_checking: bool = False
    logger: None = None
    loggers: Sequence[Any] = ()
    progress_bar_callback: None = None

    @property
    def estimated_stepping_batches(self) -> int:
        return self.max_epochs * self.num_training_batches

    @property
    def is_global_zero(self) -> bool:
        return self.global_rank == 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by Python itself, e.g. when something is copied
            raise AttributeError(name)
        known = ", ".join(one for one in dir(self) if not one.startswith("_"))
        raise UsageError(f"the module asks for trainer.{name}, and there is no Lightning Trainer here; known are {known}")


class LightningBody:
    """A batch through `training_step`, `validation_step` or `test_step`. Takes the place of the module's `log` and `log_dict`.

    A value that is logged counts with the rows of its batch, or with `batch_size`; one of on_..._epoch_end with the samples that
    this worker had. A metric object of TorchMetrics is computed when the stage ends. `with_outputs`: an evaluation also calls
    `forward`, for metrics that the task names."""

    def __init__(self, model: nn.Module, surroundings: Surroundings, with_outputs: bool = False) -> None:
        self.surroundings = surroundings
        self.with_outputs = with_outputs
        self._model = model
        self._stage = TRAIN
        self._keeps = False
        self._rows = 0
        self._num_samples = 0
        self._num_batches = 0
        self._sums: dict[str, Running] = {}
        self._metrics: dict[str, dict[str, Any]] = {}
        """Stage -> the metric objects that were logged in it."""
        for name, value in (("trainer", surroundings), ("log", self._log), ("log_dict", self._log_dict)):
            object.__setattr__(model, name, value)  # nn.Module would look for parameters in them

    def begin(self, stage: str, step: int | None = None) -> None:
        self._stage, self._keeps = stage, True
        self._rows = self._num_samples = self._num_batches = 0
        self._sums = {}
        for metric in self._metrics.get(stage, {}).values():
            metric.reset()
        if step is not None:
            self._at(step)
        self._call(f"on_{stage}_epoch_start")

    def end(self, stage: str) -> Logged:
        self._rows = self._num_samples
        if stage == TRAIN:
            self.surroundings.global_step += 1
        self._call(f"on_{stage}_epoch_end")
        for name, metric in self._metrics.get(stage, {}).items():
            self._sums[name] = (_number(name, metric.compute()), 1.0)  # the same on all workers
            metric.reset()
        found, self._sums = self._sums, {}
        self._stage, self._keeps = TRAIN, False
        return {name: (float(total), float(weight)) for name, (total, weight) in found.items()}

    def logged_so_far(self) -> Logged:
        return {name: (float(total), float(weight)) for name, (total, weight) in self._sums.items()}

    def log_before(self, logged: Logged) -> None:
        self._sums = dict(logged)

    def __call__(self, model: nn.Module, batch: Any, step: int) -> Outcome:
        self._at(step)
        rows = self._count(batch)
        loss = _loss_of(_run(model, "training_step", batch, step % self.surroundings.num_training_batches))
        if loss is None:
            raise UsageError(f"training_step of {type(model).__name__} gave no loss; return it, alone or as {{'loss': ...}}")
        return Outcome(loss * rows, float(rows), None, None, None, rows)

    def evaluate(self, model: nn.Module, batch: Any) -> Evaluated:
        outputs, targets, weights = None, None, None
        keeps = self._keeps
        self._keeps = keeps and self._stage != TRAIN  # in an epoch of training a look at some samples is none of its sums
        try:
            rows = self._count(batch) if self._keeps else num_rows(batch)
            step = evaluation_step(model, self._stage)
            loss = None if step is None else _loss_of(_run(model, step, batch, self._num_batches - 1))
            if self.with_outputs:
                inputs, targets, weights = in_three(batch)
                outputs = call(model, inputs)
        finally:
            self._keeps = keeps
        total, weight = (None, 0.0) if loss is None else (loss * rows, float(rows))
        return Evaluated(outputs, targets, weights, total, weight, rows)

    def _at(self, step: int) -> None:
        self.surroundings.global_step = step
        self.surroundings.current_epoch = step // self.surroundings.num_training_batches

    def _count(self, batch: Any) -> int:
        self._rows = num_rows(batch)
        self._num_samples += self._rows
        self._num_batches += 1
        return self._rows

    def _call(self, hook: str) -> None:
        if _defines(self._model, hook):
            getattr(self._model, hook)()

    def _log(
        self,
        name: str,
        value: Any,
        *_shown: Any,
        reduce_fx: Any = "mean",
        batch_size: int | None = None,
        **_display: Any,
    ) -> None:
        """Instead of LightningModule.log; what says where and when to show it does not matter here."""
        if not self._keeps:
            return
        if reduce_fx not in ("mean", "avg"):
            raise UsageError(f"self.log({name!r}, reduce_fx={reduce_fx!r}): only means can be logged here; leave reduce_fx out")
        if callable(getattr(value, "compute", None)) and callable(getattr(value, "reset", None)):
            self._metrics.setdefault(self._stage, {})[name] = value
            return
        number = _number(name, value)
        weight = self._rows if batch_size is None else batch_size
        self._sums[name] = _added(self._sums.get(name, (0.0, 0.0)), number, weight, self._stage == TRAIN)

    def _log_dict(self, dictionary: Mapping[str, Any], *shown: Any, **options: Any) -> None:
        for name, value in dictionary.items():
            self._log(name, value, *shown, **options)


def evaluation_step(model: nn.Module, stage: str) -> str | None:
    """Pure: the name of the method that looks at a batch: of a test without `test_step` that of the validation; None without."""
    wanted = ("test_step", "validation_step") if stage == TEST else ("validation_step",)
    return next((name for name in wanted if _defines(model, name)), None)


def metric_name(prefix: str, name: str) -> str:
    """Pure: what a value logged in an evaluation is called: "acc", "val_acc" and "val/acc" are all val_acc, in a test test_acc."""
    for head in ("val_", "test_", "val/", "test/"):
        if name.startswith(head):
            return prefix + name.removeprefix(head)
    return prefix + name


def is_error(name: str) -> bool:
    """Pure: whether the name of a logged value says that lower is better."""
    words = name.lower().replace("/", "_").replace("-", "_").split("_")
    return any(word in ("loss", "error", "err", "mse", "mae", "rmse", "nll", "perplexity") for word in words)


@dataclass(frozen=True)
class Configured:
    """What `configure_optimizers` gave."""

    optimizer: Optimizer
    scheduler: Any = None
    interval: str = "epoch"
    frequency: int = 1


def configured(model: nn.Module) -> Configured:
    """Local: the one optimiser of the module and its scheduler; refuses several."""
    found = model.configure_optimizers()  # type: ignore[operator]
    schedulers: Sequence[Any] = ()
    if isinstance(found, (tuple, list)) and len(found) == 2 and all(isinstance(part, (tuple, list)) for part in found):
        optimizers, schedulers = found
    else:
        optimizers = found if isinstance(found, (tuple, list)) else (found,)
    if len(optimizers) > 1 or len(schedulers) > 1:
        raise UsageError(
            f"configure_optimizers of {type(model).__name__} gave {len(optimizers)} optimizers and {len(schedulers)} schedulers, "
            f"and one of each can be used; to learn with several {_OWN_STEP} and optimizer={{NAME: ...}}"
        )
    optimizer = optimizers[0] if optimizers else None
    if isinstance(optimizer, Mapping):
        if "frequency" in optimizer:
            raise UsageError(f"the optimizer of {type(model).__name__} has a frequency, which is for several; leave it out")
        schedulers = (optimizer["lr_scheduler"],) if optimizer.get("lr_scheduler") is not None else ()
        optimizer = optimizer.get("optimizer")
    if not isinstance(optimizer, Optimizer):
        raise UsageError(f"configure_optimizers of {type(model).__name__} gave {found!r}; it must give a torch optimizer")
    if not schedulers:
        return Configured(optimizer)
    (scheduler,) = schedulers
    if not isinstance(scheduler, Mapping):
        return Configured(optimizer, scheduler)
    interval, frequency = scheduler.get("interval", "epoch"), scheduler.get("frequency", 1)
    if interval not in ("step", "epoch") or not isinstance(frequency, int) or frequency < 1:
        raise UsageError(
            f"lr_scheduler of {type(model).__name__} has interval {interval!r} and frequency {frequency!r}; "
            "an interval is 'step' or 'epoch', a frequency a whole number of at least 1"
        )
    return Configured(optimizer, scheduler.get("scheduler"), interval, frequency)


def _run(model: nn.Module, name: str, batch: Any, index: int) -> Any:
    """Local: a step of the module, which may leave out the number of the batch."""
    step = getattr(model, name)
    return step(batch, index) if len(inspect.signature(step).parameters) > 1 else step(batch)


def _loss_of(found: Any) -> Tensor | None:
    """The loss that a step returned, if it did."""
    loss = found.get("loss") if isinstance(found, Mapping) else found
    if loss is None:
        return None
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise UsageError(f"a step of the LightningModule gave {what} as its loss; it must be one number, the mean over its samples")
    return loss.reshape(())


def _number(name: str, value: Any) -> Tensor | float:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value) if value.device.type == "cpu" else value.detach().double().reshape(())
    if isinstance(value, (int, float)):
        return float(value)
    what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    raise UsageError(
        f"self.log({name!r}) was given {what}; log one number that is a mean over the samples of the batch, e.g. "
        "(outputs.argmax(1) == labels).float().mean(), and name other metrics in un.Task(metrics=...)"
    )


def _added(before: Running, value: Tensor | float, weight: float, only_finite: bool) -> Running:
    """Local, no wait for the device. In training a value that is no number is left out, as its update is."""
    if only_finite:
        if isinstance(value, Tensor):
            finite = value.isfinite()
            return before[0] + value.where(finite, 0.0) * weight, before[1] + finite * weight
        if not isfinite(value):
            return before
    return before[0] + value * weight, before[1] + weight


def _defines(model: nn.Module, name: str) -> bool:
    """Whether the user's class has this method, and not only Lightning's."""
    owner = next((cls for cls in type(model).__mro__ if name in vars(cls)), None)
    return owner is not None and owner.__module__.partition(".")[0] not in ("lightning", "pytorch_lightning", "torch")
