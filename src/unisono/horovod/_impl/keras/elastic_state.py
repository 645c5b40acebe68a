"""The elastic state of a program with Keras, and the callbacks that keep it up to date."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from unisono.horovod._impl.elastic.elastic_loop import begin_again, run_fn
from unisono.horovod._impl.elastic.surviving_state import ObjectState
from unisono.horovod._impl.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from unisono.horovod._impl.job.basics import rank
from unisono.horovod._impl.keras.compile_hooks import check_compiled
from unisono.horovod._impl.keras.reduced_updates import ReducedUpdates, inner_of
from unisono.horovod._impl.keras.replicas import broadcast_variables, holds_state_outside, release_state, sync_variables
from unisono.horovod._impl.torch.object_exchange import broadcast_object


class KerasState(ObjectState):
    """A model and its optimiser, and further values as attributes."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """The model must be built. Local."""
        if not model.built:
            raise ValueError("the model is not built, so its variables are not known (KerasState); call model.build(input_shape)")
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        if self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)  # one that is new must have as many variables as the others
        inner = inner_of(self.optimizer)
        if isinstance(inner, ReducedUpdates):
            inner._transport.is_elastic = True
            check_compiled(model)
        sync_variables(model)
        self._copy_variables()
        super().__init__(broadcast_object, rank, **kwargs)

    def _all_variables(self) -> list[Any]:
        """Returns the variables of the model and of the optimiser."""
        return [*self.model.variables, *(self.optimizer.variables if self.optimizer is not None else ())]

    def _copy_variables(self) -> None:
        """Keeps a copy of the values of all variables, for `restore`."""
        self._kept = [np.array(keras.ops.convert_to_numpy(variable)) for variable in self._all_variables()]

    def save(self) -> None:
        """Copies everything. Local."""
        sync_variables(self.model)
        self._copy_variables()
        super().save()

    def restore(self) -> None:
        """Returns to the last copy. Local."""
        release_state(self.model)
        for variable, value in zip(self._all_variables(), self._kept, strict=True):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Gives all ranks the values of rank 0. Collective, blocking."""
        if holds_state_outside(self.model):  # by `fit`, which was left without a commit as hosts have changed: its last step counts
            sync_variables(self.model)
        release_state(self.model)
        broadcast_variables(self._all_variables(), root_rank=0)
        super().sync()
        self._copy_variables()  # last: a rank that is lost on the way leaves the others with their previous copy, which is whole

    def reset(self) -> None:
        """Discards compiled steps, which depend on the old workers. Local."""
        self.model.train_function = None
        super().reset()


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `func(state, ...)` that survives the loss of workers: the decorator `hvd.elastic.run`."""

    @functools.wraps(func)
    def with_plain_errors(*args: Any, **kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except (HorovodInternalError, HostsUpdatedInterrupt):
            raise
        except Exception as error:
            # A compiled step gives our error to its framework, which raises one of its own with the text of ours.
            for one in _error_chain(error):
                if HorovodInternalError.__name__ in f"{type(one).__name__}: {one}":
                    raise HorovodInternalError(str(one)) from error
            raise

    return run_fn(with_plain_errors, begin_again)


def _error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an exception, then the one that caused it, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


class CommitStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Commits the state after every `batches_per_commit` batches, and at the end of an epoch. Collective."""

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Restarts the count of batches, as on ranks that have just joined."""
        self.batches_remaining = self.batches_per_commit  # alike on ranks that have just come

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Commits the state if `batches_per_commit` batches are done since the last time."""
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.batches_remaining = self.batches_per_commit
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Commits the state."""
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Sets `state.batch` to the last batch that is done, and to 0 between epochs. A resumed epoch is shown as shorter. Local."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.steps_per_epoch: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Forgets how many steps an epoch has."""
        self.steps_per_epoch = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Shows a resumed epoch as shorter, by the batches that are done."""
        if self.params.get("steps"):
            self.steps_per_epoch = self.steps_per_epoch or self.params["steps"]
            self.params["steps"] = self.steps_per_epoch - self.state.batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Sets `state.batch` to this batch."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Sets `state.batch` to 0."""
        self.state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Sets `state.epoch` to the number of epochs that are done, those of earlier attempts included. Local."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Notes the number of epochs that are done already."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Sets `state.epoch` to the number of epochs that are done."""
        self.state.epoch = self.initial_epoch + epoch + 1
