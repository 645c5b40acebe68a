"""Callbacks of `fit`: equal replicas, metrics over all ranks, the best model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

import keras
import numpy as np

from unisono.horovod._impl.job.process_sets import global_process_set
from unisono.horovod._impl.keras.replicas import broadcast_variables, sync_variables
from unisono.horovod._impl.torch.object_exchange import allgather_object

if TYPE_CHECKING:
    from unisono.horovod._impl.engine.process_set_channel import Channel


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Copies the variables of model and optimiser of `root_rank` to all ranks. Collective.

    Before the first step, where model and optimiser can be built by then on all ranks; else at the end of the first batch, as in
    Horovod. States of random generators stay with their ranks.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        """`device` is the one on which TensorFlow would broadcast; `local_variables` stay as they are on each rank."""
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._done_in: ref[Channel] | None = None
        given = [local_variables] if isinstance(local_variables, keras.Variable) else list(local_variables or ())
        if not all(isinstance(one, keras.Variable) for one in given):
            raise ValueError("local_variables must be variables of Keras; give layer.variables")
        self._local = {id(one) for one in given}

    def register_local_var(self, var: Any) -> None:
        """Leaves a variable as it is on each rank. Local."""
        self._local.add(id(var))

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Copies the root's variables to all ranks if model and optimiser are built everywhere and it was not done since `init`.
        Collective."""
        if self._done_in is not None and self._done_in() is not global_process_set.channel():
            self.broadcast_done = False  # after this `init`, of an elastic job say, there may be ranks that have not done it
        # A rank that has loaded its model from a file may be further than the others, which must not decide otherwise.
        if not self.broadcast_done and all(allgather_object(_build_if_possible(self.model), "broadcast callback")):
            self._broadcast_all()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Copies the root's variables to all ranks if it was not done before. Collective the first time."""
        if not self.broadcast_done:
            sync_variables(self.model)
            self._broadcast_all()

    def _broadcast_all(self) -> None:
        """Copies the root's values of all variables but the local ones to all ranks, and notes that it is done."""
        variables = [*self.model.variables, *(self.model.optimizer.variables if self.model.optimizer else ())]
        broadcast_variables([one for one in variables if id(one) not in self._local], self.root_rank)
        self.broadcast_done = True
        self._done_in = ref(global_process_set.channel())


def _build_if_possible(model: Any) -> bool:
    """Builds the optimiser of a built model if needed; returns False for a model that is not built."""
    if not model.built:
        return False
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    return True


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Replaces metrics by their means over the ranks at the end of each epoch, in place, for the callbacks that follow and for the
    history. Every rank has the same weight, however many samples it has seen. Collective."""

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Replaces the metrics in `logs` by their means over the ranks; `ValueError` if the ranks have different ones.
        Collective."""
        if logs is None:
            return
        everybodys = allgather_object({name: _plain(value) for name, value in sorted(logs.items())}, "metrics")
        for rank, other in enumerate(everybodys):
            if list(other) != sorted(logs):
                raise ValueError(
                    f"the ranks have different metrics: this rank has {', '.join(sorted(logs))}, rank {rank} has "
                    f"{', '.join(other)} (MetricAverageCallback); give all ranks the same metrics and validation data"
                )
        for name in logs:
            logs[name] = sum(other[name] for other in everybodys) / len(everybodys)


def _plain(value: Any) -> Any:
    """A metric as a number, or as an array if it has several values, one for each class."""
    array = np.asarray(keras.ops.convert_to_numpy(value), np.float64)
    return array if array.ndim else float(array)


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Saves the model when the monitored metric is better than ever. `filepath` may be set later, before `fit`. Its arguments are
    in the order of `horovod.tensorflow.keras`."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        filepath: Any = None,
    ) -> None:
        for_now = "best.weights.h5" if save_weights_only else "best.keras"  # Keras wants to see how it ends
        super().__init__(
            filepath or for_now,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        if filepath is None:
            self.filepath: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Raises `ValueError` if no `filepath` is set."""
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint does not know where to save; set its filepath before fit")
        super().on_train_begin(logs)


class BestModelCheckpointOfKeras(BestModelCheckpoint):
    """The same callback with its arguments in the order of `horovod.keras`."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: Any = "epoch",
        save_weights_only: bool = False,
        filepath: Any = None,
    ) -> None:
        super().__init__(monitor, verbose, save_weights_only, mode, save_freq, filepath)
