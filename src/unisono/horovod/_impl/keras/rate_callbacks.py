"""Callbacks that set the learning rate by epoch or by batch.

    lr(epoch) = initial_lr * multiplier(epoch)
    warm-up:  multiplier(epoch) = (epoch * (size - 1) / warmup_epochs + 1) / size       from 1 / size to 1

Goyal et al., Accurate, large minibatch SGD: training ImageNet in 1 hour, arXiv:1706.02677; momentum correction is their remark 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from unisono.horovod._impl.job.process_state import PROCESS
from unisono.horovod._impl.keras.reduced_updates import inner_of
from unisono.horovod._impl.keras.replicas import sync_variables


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the learning rate to `initial_lr * multiplier` from `start_epoch` to before `end_epoch`. Local."""

    def __init__(
        self,
        initial_lr: float | None = None,
        multiplier: float | Callable[[Any], float] = 1.0,
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        """`multiplier` is a function of the epoch: a whole number with `staircase`, else `epoch + batch / steps_per_epoch`; or a
        constant, for exponential decay."""
        super().__init__()
        if (
            initial_lr is None
        ):  # programs of before Horovod 0.19 have none; the optimisers of the ranks may differ before a broadcast
            raise ValueError(
                f"{type(self).__name__} needs initial_lr, the same on all ranks; give it the learning rate of the optimizer, e.g. "
                "initial_lr=0.01 * hvd.size()"
            )
        self.initial_lr = float(initial_lr)
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            constant = float(multiplier)
            self.multiplier = lambda epoch: constant ** (epoch - start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Raises `ValueError` if the optimiser has a schedule of its own, or if the number of steps of an epoch is needed and
        unknown."""
        if not hasattr(inner_of(self.model.optimizer)._learning_rate, "assign"):
            raise ValueError(
                f"{type(self).__name__} sets the learning rate, but the optimizer has a learning-rate schedule; create the "
                "optimizer with a number"
            )
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    f"{type(self).__name__} does not know how many steps an epoch has; give steps_per_epoch to the callback or to "
                    "fit"
                )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Notes the number of the epoch."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Sets the learning rate for this batch, or with `staircase` in the first batch of an epoch; nothing outside of the
        schedule's epochs."""
        if self.current_epoch < self.start_epoch or (self.end_epoch is not None and self.current_epoch >= self.end_epoch):
            return
        if not self.staircase:
            assert self.steps_per_epoch is not None
            self._set_rate_for(self.current_epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._set_rate_for(self.current_epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Adds the learning rate to `logs` as `lr`."""
        if logs is not None:
            logs["lr"] = _learning_rate_of(self.model)

    def _set_rate_for(self, epoch: float) -> None:
        """Sets the learning rate to the initial one times the multiplier for this epoch, which may be a fraction."""
        self._set_rate(self.initial_lr * self.multiplier(epoch))

    def _set_rate(self, now: Any) -> None:
        """Sets the learning rate, and scales the remembered steps of an optimiser with momentum to it if that was asked for."""
        sync_variables(self.model)
        before = _learning_rate_of(self.model)
        self.model.optimizer.learning_rate = now
        if self.momentum_correction and before not in (0.0, now):
            correct_momentum(inner_of(self.model.optimizer), now / before)


def correct_momentum(optimizer: Any, factor: float) -> None:
    """Scales the steps that an optimiser with momentum remembers, once, from the old learning rate to the new one. That is the same
    as scaling its momentum for one step, and it also reaches a compiled step. Local."""
    # Of others, as Muon and Nadam, the momentum is one of gradients, which know no rate.
    remembers_steps = isinstance(optimizer, (keras.optimizers.SGD, keras.optimizers.RMSprop))
    if remembers_steps and optimizer.momentum and optimizer.built:
        remembered_steps: Any = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", ())
        for remembered in remembered_steps:
            remembered.assign(remembered * factor)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from `initial_lr / size` to `initial_lr`, with every batch of the first epochs. Local."""

    def __init__(
        self,
        initial_lr: float | None = None,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            assert self.steps_per_epoch is not None
            reached = epoch + 1.0 / self.steps_per_epoch  # by the end of the batch, so that an epoch ends with a round number
            size = PROCESS.topology.size
            return min(1.0, (reached * (size - 1) / warmup_epochs + 1) / size)  # an epoch may be longer than what is left

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,  # type: ignore[arg-type]  # a fraction of an epoch works too
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the learning rate to `logs`; after the last epoch of the warm-up sets the full one, and rank 0 prints that."""
        assert self.end_epoch is not None
        is_last = epoch < self.end_epoch <= epoch + 1
        if is_last:  # also where one call of Keras makes several steps, and the last of them had the rate of the first
            self._set_rate(self.initial_lr)
        super().on_epoch_end(epoch, logs)
        if is_last and self.verbose and PROCESS.topology.rank == 0:
            print(f"\nEpoch {epoch + 1}: the learning rate has warmed up to {_learning_rate_of(self.model):g}.", flush=True)


def _learning_rate_of(model: Any) -> float:
    """Returns the present learning rate of a model's optimiser."""
    return float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))
