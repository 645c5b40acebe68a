"""An unchanged LightningModule without a Trainer: its steps give the loss, the values it logs become exact means over all workers.

The loss of a step is a mean over the samples of this worker, as Lightning has it: sum = loss * num_samples. That is exact for means
over samples, and only for them; a mean over tokens or over class weights differs between workers by what their samples weigh.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import Any

from torch import Tensor, nn

from unisono.errors import UsageError
from unisono.model.base import TEST, TRAIN, Evaluated, Logged, PartialEpochLog
from unisono.model.lightning.module import defines
from unisono.model.packed import pack
from unisono.model.recognise import MIXES_SAMPLES
from unisono.model.torch.body import Outcome, call, num_rows, split_batch

Running = tuple[Tensor | float, Tensor | float]
"""A sum and its weight, on the device while they are being added up."""

_GIVEN = ("epoch", "global_step", "state_dict")
"""Keys of a checkpoint that `on_save_checkpoint` and `on_load_checkpoint` find besides those that they add."""


@dataclass
class TrainerStandIn:
    """Stands in for Lightning's Trainer: `self.trainer.max_epochs`, `self.current_epoch`, `self.global_step` of a module read
    it."""

    max_epochs: int = 1
    num_training_batches: int = 1
    """Number of steps of an epoch."""
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
        """Number of steps of the whole run, as Lightning names it."""
        return self.max_epochs * self.num_training_batches

    @property
    def is_global_zero(self) -> bool:
        """Whether this process has rank 0."""
        return self.global_rank == 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by Python itself, e.g. when something is copied
            raise AttributeError(name)
        known = ", ".join(one for one in dir(self) if not one.startswith("_"))
        raise UsageError(f"the module uses trainer.{name}, but no Lightning Trainer runs here; available: {known}")


class LightningBody:
    """A batch through `training_step`, `validation_step` or `test_step`. Takes the place of the module's `log` and `log_dict`.

    A value that is logged counts with the rows of its batch, or with `batch_size`; one of on_..._epoch_end with the samples that
    this worker had. A metric object of TorchMetrics is computed when the stage ends. `with_outputs`: an evaluation also calls
    `forward`, for metrics that the task names."""

    has_targets = False
    prepares = False
    host_code = "a LightningModule logs, and may run hooks, on the host"

    def __init__(self, model: nn.Module, trainer: TrainerStandIn, with_outputs: bool = False) -> None:
        self.trainer = trainer
        self.with_outputs = with_outputs
        self._model = model
        self._stage = TRAIN
        self._keeps = False
        self._rows = 0
        self._num_samples = 0
        self._num_batches = 0
        self._first_step = 0
        """First step of the current epoch."""
        self._over: Logged | None = None
        """What was logged in the current epoch, once `end` was called."""
        self._kept: Mapping[str, Any] | None = None
        """The `user_state` of an earlier attempt, until the module has loaded it."""
        self._sums: dict[str, Running] = {}
        self._metrics: dict[str, dict[str, Any]] = {}
        """Stage -> the metric objects that were logged in it."""
        for name, value in (("trainer", trainer), ("log", self._log), ("log_dict", self._log_dict)):
            object.__setattr__(model, name, value)  # nn.Module would look for parameters in them

    @contextmanager
    def sanity_check(self) -> Iterator[None]:
        """Local: a context in which `self.trainer.sanity_checking` says that the steps of the module are only tried out."""
        self.trainer.sanity_checking = True
        yield
        self.trainer.sanity_checking = False

    def begin(self, stage: str, step: int | None = None, epoch: int | None = None) -> None:
        """Begins an epoch of this stage; state of the user that a checkpoint held is loaded first."""
        self._load_user_state()
        self._begin_stage(stage, step, epoch)

    def resume_epoch(self, epoch: int, first_step: int, step: int, partial_epoch: PartialEpochLog) -> None:
        """Resumes an epoch of training. The hook of its start is called again: what it set in the module may be lost with the
        earlier attempt. What it does to tensors, and to the state that the module saves itself, has been done already."""
        with _tensors_as_they_are(self._model):
            self._begin_stage(TRAIN, first_step, epoch)
        self._load_user_state()
        self._num_samples, self._sums = partial_epoch.num_samples, dict(partial_epoch.logged)
        self._over = dict(partial_epoch.logged) if partial_epoch.is_over else None
        self.trainer.global_step = step if partial_epoch.is_over else step - 1

    def _begin_stage(self, stage: str, step: int | None, epoch: int | None) -> None:
        """Sets the sums of the stage to zero and calls its on_..._epoch_start."""
        self._stage, self._keeps = stage, True
        self._rows = self._num_samples = self._num_batches = 0
        self._sums = {}
        for metric in self._metrics.get(stage, {}).values():
            metric.reset()
        if step is not None and epoch is not None:
            self._first_step, self._over = step, None
            self.trainer.global_step, self.trainer.current_epoch = step, epoch
        self._call_hook(f"on_{stage}_epoch_start")

    def end(self, stage: str) -> Logged:
        """Ends the epoch of this stage: calls its on_..._epoch_end and returns what was logged, as (sum, weight) by name."""
        if stage == TRAIN and self._over is not None:
            return self._over
        self._rows = self._num_samples
        if stage == TRAIN:
            self.trainer.global_step += 1
        self._call_hook(f"on_{stage}_epoch_end")
        for name, metric in self._metrics.get(stage, {}).items():
            self._sums[name] = (_logged_number(name, metric.compute()), 1.0)  # the same on all workers
            metric.reset()
        found, self._sums = self._sums, {}
        self._stage, self._keeps = TRAIN, False
        logged = _as_numbers(found)
        if stage == TRAIN:
            self._over = logged
        return logged

    def partial_epoch(self) -> PartialEpochLog:
        """Returns what was logged in this epoch so far, and the names of TorchMetrics objects that a checkpoint cannot hold."""
        if self._over is not None:
            return PartialEpochLog(0, self._over, True)
        # Objects of TorchMetrics have states of any size, other ones on each worker.
        unkept = [name for name, module in self._model.named_modules() if getattr(module, "_update_count", 0)]
        return PartialEpochLog(self._num_samples, _as_numbers(self._sums), False, unkept)

    def user_state(self) -> dict[str, Any]:
        """Returns epoch and step of the module, and what `on_save_checkpoint` adds to a checkpoint."""
        where = {"epoch": self.trainer.current_epoch, "global_step": self.trainer.global_step}
        if not defines(self._model, "on_save_checkpoint"):
            return {"where": where, "added": {}}
        checkpoint = {**where, "state_dict": dict(self._model.state_dict())}
        self._model.on_save_checkpoint(checkpoint)  # type: ignore[operator]
        added = {name: value for name, value in checkpoint.items() if name not in _GIVEN}
        try:
            pack(added, {}, "checkpoint")
        except UsageError as error:
            raise UsageError(f"on_save_checkpoint of {type(self._model).__name__}: {error}") from error
        return {"where": where, "added": added}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Resumes at the epoch and step of a checkpoint; the state of the user is loaded at the next `begin`."""
        self._kept = kept
        self.trainer.current_epoch, self.trainer.global_step = kept["where"]["epoch"], kept["where"]["global_step"]

    def _load_user_state(self) -> None:
        """Gives the module's on_load_checkpoint what the checkpoint held, once."""
        kept, self._kept = self._kept, None
        if kept is not None and defines(self._model, "on_load_checkpoint"):
            with _tensors_as_they_are(self._model):  # they have come back already
                checkpoint = {**kept["where"], "state_dict": dict(self._model.state_dict()), **kept["added"]}
                self._model.on_load_checkpoint(checkpoint)  # type: ignore[operator]

    def __call__(self, model: nn.Module, batch: Any, step: int) -> Outcome:
        self.trainer.global_step = step
        rows = self._count_batch(batch)
        loss = _loss_of(_run(model, "training_step", batch, step - self._first_step))
        if loss is None:
            raise UsageError(f"training_step of {type(model).__name__} returned no loss; return it, alone or as {{'loss': ...}}")
        return Outcome(loss * rows, float(rows), None, None, None, rows)

    def mark(self, mixes_samples: bool) -> None:
        """Local: leaves in the module whether the loss of its `training_step` is no mean over samples."""
        object.__setattr__(self._model, MIXES_SAMPLES, mixes_samples)

    def evaluate(self, model: nn.Module, batch: Any) -> Evaluated:
        """Runs the module's step of this stage, or its `forward`; returns loss sum, and outputs where metrics need them."""
        outputs, targets, weights = None, None, None
        keeps = self._keeps
        self._keeps = keeps and self._stage != TRAIN  # within an epoch of training, an evaluation adds nothing to its sums
        try:
            rows = self._count_batch(batch) if self._keeps else num_rows(batch)
            step = evaluation_step(model, self._stage)
            loss = None if step is None else _loss_of(_run(model, step, batch, self._num_batches - 1))
            if self.with_outputs:
                inputs, targets, weights = split_batch(batch)
                outputs = call(model, inputs)
        finally:
            self._keeps = keeps
        total, weight = (None, 0.0) if loss is None else (loss * rows, float(rows))
        return Evaluated(outputs, targets, weights, total, weight, rows)

    def _count_batch(self, batch: Any) -> int:
        """Counts the batch and its samples in the sums of this stage; returns its number of samples."""
        self._rows = num_rows(batch)
        self._num_samples += self._rows
        self._num_batches += 1
        return self._rows

    def _call_hook(self, hook: str) -> None:
        """Calls this hook of the module if the user has defined it."""
        if defines(self._model, hook):
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
        """`self.log` of the module: adds the value to the sums of the epoch; arguments that say where and when to show it have no
        effect."""
        if not self._keeps:
            return
        if reduce_fx not in ("mean", "avg"):
            raise UsageError(f"self.log({name!r}, reduce_fx={reduce_fx!r}): only means can be logged here; leave reduce_fx out")
        if callable(getattr(value, "compute", None)) and callable(getattr(value, "reset", None)):
            self._metrics.setdefault(self._stage, {})[name] = value
            return
        number = _logged_number(name, value)
        weight = self._rows if batch_size is None else batch_size
        self._sums[name] = _added(self._sums.get(name, (0.0, 0.0)), number, weight, self._stage == TRAIN)

    def _log_dict(self, dictionary: Mapping[str, Any], *shown: Any, **options: Any) -> None:
        """`self.log_dict` of the module: logs each entry with `self.log`."""
        for name, value in dictionary.items():
            self._log(name, value, *shown, **options)


def evaluation_step(model: nn.Module, stage: str) -> str | None:
    """Pure: returns the name of the method that evaluates a batch: for a test without `test_step` that of the validation; None
    where there is none."""
    wanted = ("test_step", "validation_step") if stage == TEST else ("validation_step",)
    return next((name for name in wanted if defines(model, name)), None)


@contextmanager
def _tensors_as_they_are(model: nn.Module) -> Iterator[None]:
    """Local: a context after which all weights and buffers have the values that they had before."""
    before = {name: tensor.detach().clone() for name, tensor in _named_tensors(model)}
    yield
    for name, tensor in _named_tensors(model):
        if name in before:
            tensor.detach().copy_(before[name])


def _named_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Returns parameters and buffers of the model with their names."""
    return [*model.named_parameters(), *model.named_buffers()]


def _as_numbers(sums: Mapping[str, Running]) -> Logged:
    """Returns the sums as numbers on the host."""
    return {name: (float(total), float(weight)) for name, (total, weight) in sums.items()}


def _run(model: nn.Module, name: str, batch: Any, index: int) -> Any:
    """Local: runs a step of the module, whose method may have no parameter for the number of the batch."""
    step = getattr(model, name)
    return step(batch, index) if len(inspect.signature(step).parameters) > 1 else step(batch)


def _loss_of(found: Any) -> Tensor | None:
    """Returns the loss in the result of a step; None where there is none."""
    loss = found.get("loss") if isinstance(found, Mapping) else found
    if loss is None:
        return None
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise UsageError(f"a step of the LightningModule returned {what} as its loss; return one number, the mean over the samples")
    return loss.reshape(())


def _logged_number(name: str, value: Any) -> Tensor | float:
    """Returns a logged value as one number; a tensor without gradient on a GPU, where it is not awaited. Refuses anything else."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value) if value.device.type == "cpu" else value.detach().double().reshape(())
    if isinstance(value, (int, float)):
        return float(value)
    what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    raise UsageError(
        f"self.log({name!r}) received {what}; log one number that is a mean over the samples of the batch, e.g. "
        "(outputs.argmax(1) == labels).float().mean(), and name other metrics in un.Task(metrics=...)"
    )


def _added(before: Running, value: Tensor | float, weight: float, only_finite: bool) -> Running:
    """Local, no wait for the device: returns the sum and weight with one more value. In training a value that is no number is
    left out, as the update of its step is."""
    if only_finite:
        if isinstance(value, Tensor):
            finite = value.isfinite()
            return before[0] + value.where(finite, 0.0) * weight, before[1] + finite * weight
        if not isfinite(value):
            return before
    return before[0] + value * weight, before[1] + weight
