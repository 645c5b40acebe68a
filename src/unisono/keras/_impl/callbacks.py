"""Runs Keras's callbacks in our training loop: they run on the first worker, and what they change is sent to all.

They may set the learning rate, the weights and `model.stop_training`. The model that they hold has the weights of the end of the
epoch, or of the batch where one of them has something to do with every batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unisono.comm.base import Communicator
from unisono.comm.replicate import replicate
from unisono.events import EpochDone, Observer, StepDone
from unisono.model.keras.module import KerasModule
from unisono.model.keras.optimizer import publish_learned, rate_of, set_rate
from unisono.model.torch.adapter import TorchAdapter
from unisono.training.early_stopping import Goals
from unisono.training.progress import EARLY, Progress

BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
SHARED = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")
"""Methods of a model that ours replace."""
LOOK_AT_LOGS = ("TerminateOnNaN", "ProgbarLogger", "History")


def has_batch_hooks(callback: Any) -> bool:
    """Local: whether a callback has hooks that are called with every batch."""
    from keras.callbacks import Callback

    return any(name in vars(callback) or getattr(type(callback), name) is not getattr(Callback, name) for name in BATCH_HOOKS)


def needs_model_every_batch(callback: Any) -> bool:
    """Local: whether a callback may read or change the model with every batch."""
    kind = type(callback)
    if kind.__module__.startswith("keras."):
        often = getattr(callback, "save_freq", getattr(callback, "update_freq", None))
        if kind.__name__ in LOOK_AT_LOGS or often == "epoch":
            return False
    return has_batch_hooks(callback)


@dataclass
class Callbacks(Observer):
    """The observer that calls the Keras callbacks of one fit. All workers make one and call it alike."""

    comm: Communicator
    adapter: TorchAdapter
    listed: Any
    """The keras.callbacks.CallbackList; on workers other than the first it has only the history."""
    num_epochs: int
    needs_model_every_batch: bool
    """Whether a callback of the user, on any worker, may read or change the model with every batch."""
    lr: float | None
    """The learning rate; None where a schedule of Keras sets it."""
    stops: bool = False
    _loss: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def __post_init__(self) -> None:
        self._has_batch_hooks = self.comm.rank == 0 and any(map(has_batch_hooks, self.listed.callbacks))

    @property
    def _module(self) -> KerasModule:
        assert isinstance(self.adapter.model, KerasModule)
        return self.adapter.model

    def begin(self, epoch: int, mid_epoch: bool) -> None:
        """Collective, before the first step: calls the hooks for the begin. With `mid_epoch` the epoch began in an earlier
        attempt."""
        self._publish()
        self._module.pure.model.stop_training = False
        self._call_hook("on_train_begin")
        self._begin_epoch(epoch)
        if mid_epoch and self.lr is not None:  # what was made of it at the beginning is in the state
            self._module.pure.model.optimizer.learning_rate = self.lr
        self._share_changes()

    def resume(self) -> None:
        """Local: called when the trainer has resumed from a checkpoint: publishes the restored weights and learning rate."""
        lr, self.lr = self.lr, None
        self._publish()
        if lr is not None:
            self.lr = rate_of(self._module.pure.model.optimizer)

    def _call_hook(self, hook: str, *told: Any) -> None:
        """Local: calls a hook of all callbacks. In it `predict` and `evaluate` of the model are Keras's own, as only this worker
        calls them."""
        model = self._module.pure.model
        ours = {name: vars(model).pop(name) for name in SHARED if name in vars(model)}
        try:
            getattr(self.listed, hook)(*told)
        finally:
            vars(model).update(ours)

    def _begin_epoch(self, epoch: int) -> None:
        """Calls the hooks of the beginning of an epoch and of its first batch."""
        self._loss = [0.0, 0.0]
        self._call_hook("on_epoch_begin", epoch)
        self._call_hook("on_train_batch_begin", 0)

    def step(self, event: StepDone) -> None:
        """Calls the batch hooks with the mean loss of the epoch so far; all workers take over what they changed."""
        self._loss[0] += event.loss * event.num_samples
        self._loss[1] += event.num_samples
        if self.needs_model_every_batch:
            self._publish()
        if self._has_batch_hooks:
            logs = {"loss": self._loss[0] / self._loss[1], **event.sums}
            self._call_hook("on_train_batch_end", event.step_in_epoch, logs)
            model = self._module.pure.model
            model.stop_training = model.stop_training or self.stops  # said of an earlier step of the same round
            if event.step_in_epoch + 1 < self.listed.params["steps"] and not model.stop_training:
                self._call_hook("on_train_batch_begin", event.step_in_epoch + 1)
        if self.needs_model_every_batch:
            self._share_changes(self._current_rate())

    def epoch(self, event: EpochDone) -> None:
        """Calls the hooks of an evaluation and of the epoch's end, and begins the next; all workers take over what they changed."""
        self._publish()
        if any(name.startswith("val_") for name in event.metrics):
            self._call_hook("on_test_begin")
            seen = {name.removeprefix("val_"): value for name, value in event.metrics.items() if name.startswith("val_")}
            self._call_hook("on_test_end", seen)
        self._call_hook("on_epoch_end", event.epoch, dict(event.metrics))
        at_end = self._current_rate()
        if not self._module.pure.model.stop_training and event.epoch + 1 < self.num_epochs:
            self._begin_epoch(event.epoch + 1)
        self._share_changes(at_end)

    def end(self, logs: Mapping[str, float]) -> None:
        """Collective, after the last step: calls the hooks for the end."""
        self._publish()
        self._call_hook("on_train_end", dict(logs))
        self._share_changes(self._current_rate())
        self._publish()

    def settings(self, step: int) -> Any:  # noqa: ARG002
        """Local: the optimiser settings of the next step."""
        return {"": ({} if self.lr is None else {"lr": self.lr},)}

    def _publish(self) -> None:
        """Copies the trained state to where callbacks and `model.save` read it."""
        self._module.publish()
        publish_learned(self.adapter.parts[""], self._module, self._module.pure.model.optimizer)
        if self.lr is not None:
            self._module.pure.model.optimizer.learning_rate = self.lr

    def _share_changes(self, at_end: float | None = None) -> None:
        """Collective: sends to all what the callbacks of the first worker have changed: stop, learning rate, and weights.
        `at_end` is the rate at the end of the epoch, with which a resumed attempt begins the next one, whose hooks may change it
        again."""
        model = self._module.pure.model
        mine = (bool(model.stop_training), self._current_rate(), at_end, self.comm.rank == 0 and self._module.model_differs())
        self.stops, self.lr, at_end, has_changed = self.comm.broadcast_object(mine)
        model.stop_training = self.stops
        if at_end is not None:
            set_rate(self.adapter.parts[""], at_end)
        if not has_changed:
            return
        if self.comm.rank == 0:
            self._module.absorb()
        replicate(self.comm, self.adapter.shared_state())
        if self.comm.rank:
            self._module.publish()

    def _current_rate(self) -> float | None:
        """Returns the learning rate of the Keras optimiser; None if a schedule sets it."""
        return None if self.lr is None else rate_of(self._module.pure.model.optimizer)


@dataclass(frozen=True)
class CallbackGoals(Goals):
    """Goals of a fit: so many epochs, unless a callback stops it."""

    callbacks: Callbacks | None = None

    def verdict(self, done: Progress) -> str:
        return EARLY if self.callbacks is not None and self.callbacks.stops and done.history else ""
