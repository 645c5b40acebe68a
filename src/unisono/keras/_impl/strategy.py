"""Strategies: which processes train together, and which models they share: those that are made inside `scope`."""

from __future__ import annotations

import atexit
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from unisono.cluster.resolve import current_topology
from unisono.cluster.topology import Topology
from unisono.comm.base import MAX, MIN, SUM, Communicator, Op
from unisono.comm.choose import describe_process
from unisono.comm.connect import connect
from unisono.data.tree import map_tree
from unisono.errors import UsageError
from unisono.keras._impl.shared_model import SharedModel
from unisono.model.keras.backends import prepare_backend

MEAN = "MEAN"
OPS: Mapping[str, Op] = {"SUM": SUM, MEAN: SUM, "MAX": MAX, "MIN": MIN}


class Strategy:
    """Trains Keras models on all processes of the job, in the way of tf.distribute, on every backend of Keras.

    Make and compile the model inside `scope`; its `fit`, `evaluate` and `predict` then use all workers. `batch_size` is
    that of all workers together, every worker passes the same data and computes its part, and the numbers that come back
    are exact over all samples. The script runs alone too, as one worker.

    Processes meet at the first use of the strategy (`scope`, `num_replicas_in_sync`, `reduce`), which is therefore
    collective. Arguments of `fit` that cannot be honoured by several workers are refused, as are `train_on_batch` and its
    relatives.

    Example:
        import keras
        import unisono as un

        x, y = un.digits()
        strategy = un.keras.Strategy()
        with strategy.scope():
            model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(10)])
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile("sgd", loss, metrics=["accuracy"])
        history = model.fit(x, y, batch_size=128, epochs=2, verbose=0)
        len(history.history["loss"])  # -> 2

    Args:
        algorithm: How the workers agree, as in `unisono train`: "allreduce", "local_sgd", "downpour", and so on.
        seed: The seed of the first weights and of all orders, the same on all workers.
        backup: A folder for checkpoints, from which a `fit` that was killed resumes when the script is started again.
        backup_every: How often a checkpoint is saved: "500steps", "2epochs", "30s", "10m" or "1h".
        comm: The communicator to use; left out, that of all processes of the job.
        options: The options of the algorithm, by name.
    """

    def __init__(
        self,
        algorithm: str = "allreduce",
        *,
        seed: int = 0,
        backup: str | None = None,
        backup_every: str = "10m",
        comm: Communicator | None = None,
        **options: Any,
    ) -> None:
        self.algorithm = algorithm
        self.options = options
        self.seed = seed
        self.backup = backup
        self.backup_every = backup_every
        self.num_fits = 0
        self._comm = comm
        self._world: Communicator | None = None
        """The communicator of all processes, where it was opened here."""

    @property
    def comm(self) -> Communicator:
        """The communicator of all workers. Collective at its first use, when the processes meet."""
        if self._comm is None:
            self._world = connect()
            self._comm = self._select_workers(self._world)
            atexit.register(self.close)
            if self._comm.size == 1 and (note := hint_for_single_worker(current_topology())):
                print(f"unisono: {note}", file=sys.stderr, flush=True)
        return self._comm

    def _select_workers(self, world: Communicator) -> Communicator:
        """Returns the communicator of the workers that train together: here all processes."""
        return world

    def count_fit(self) -> None:
        """Counts the fits of a script, so that their checkpoints and orders differ; `fit` calls it. Local."""
        self.num_fits += 1

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of workers. Collective at the first use of the strategy."""
        return self.comm.size

    @property
    def is_chief(self) -> bool:
        """Whether this process is rank 0, which writes files. Collective at the first use of the strategy."""
        return self.comm.rank == 0

    @contextmanager
    def scope(self) -> Iterator[Strategy]:
        """Returns a context manager: Keras models that are made inside it are trained by all workers.

        It also sets the seeds of Python, NumPy, torch and TensorFlow, so that all workers make the same first weights.
        Collective, blocking at the first use of the strategy.
        """
        import keras

        prepare_backend()
        self.comm  # noqa: B018 - processes meet here, and draw random numbers for that
        self._seed_all()
        before = keras.Model.__new__

        def make_shared(cls: type, *args: Any, **kwargs: Any) -> Any:
            model = before(cls, *args, **kwargs)
            if "fit" not in vars(model):  # a functional model comes through here twice
                SharedModel(self, model).replace_methods()
            return model

        keras.Model.__new__ = make_shared
        try:
            yield self
        finally:
            keras.Model.__new__ = before

    def _seed_all(self) -> None:
        """Local: seeds all generators alike on all workers, for initial weights and for shuffling of data streams."""
        random.seed(self.seed)
        np.random.seed(self.seed % 2**32)
        torch.manual_seed(self.seed)
        if (tensorflow := sys.modules.get("tensorflow")) is not None:  # not loaded for it: Keras may run on another backend
            tensorflow.random.set_seed(self.seed)

    def run(self, function: Callable[..., Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Calls a function, for loops of your own: every worker calls it with its own part of the data. Local.

        Args:
            function: What is called.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
        """
        return function(*args, **(kwargs or {}))

    def reduce(self, op: Any, value: Any, axis: int | None = None) -> Any:
        """Combines a value of all workers and returns it as NumPy arrays, the same on all of them.

        Workers may have different numbers of samples, so reduce sums and counts rather than means of means. Collective,
        blocking.

        Example:
            import unisono as un

            strategy = un.keras.Strategy()
            total = strategy.reduce("SUM", {"loss": 6.0, "samples": 3})
            float(total["loss"] / total["samples"])  # -> 2.0

        Args:
            op: "SUM", "MEAN", "MAX" or "MIN", or the members of these names of tf.distribute.ReduceOp.
            value: A number or an array, or dicts and tuples of these; shapes must be the same on all workers.
            axis: An axis that is combined as well, such as 0 for the samples; left out, only the workers are.
        """
        name = str(getattr(op, "value", op)).upper()
        if name not in OPS:
            raise UsageError(f"op must be one of {', '.join(OPS)}; received {op!r} (strategy.reduce)")
        return map_tree(lambda one: self._reduce_array(name, np.asarray(one), axis), value)

    def _reduce_array(self, name: str, array: Any, axis: int | None) -> Any:
        """Returns this array reduced over all workers, and before over `axis` if it is not None. Collective, blocking."""
        num = 1 if axis is None else array.shape[axis]
        if axis is not None:
            array = {"MAX": np.max, "MIN": np.min}.get(name, np.sum)(array, axis=axis)
        buffer = torch.from_numpy(np.array(array, ndmin=1)).to(self.comm.device)
        self.comm.allreduce(buffer, OPS[name])
        found = buffer.cpu().numpy().reshape(np.shape(array))
        return found / (self.comm.size * num) if name == MEAN else found

    def close(self) -> None:
        """Closes the connection of the workers; at the end of the program this happens by itself.

        It may be called twice. Collective.
        """
        held = [comm for comm in (self._comm, self._world) if comm is not None]
        self._comm = self._world = None
        atexit.unregister(self.close)
        for comm in held:  # a group first, then the job: a process that leaves without a word counts as dead
            comm.close()


class MultiWorkerMirroredStrategy(Strategy):
    """All processes of the job, on all nodes, train one model: `Strategy` under the name that it has in tf.distribute.

    Example:
        import keras
        import unisono as un

        strategy = un.keras.MultiWorkerMirroredStrategy()
        with strategy.scope():
            model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(10)])
            model.compile("sgd", "mse")

    Args:
        algorithm, seed, backup, backup_every, comm, options: As for `Strategy`.
    """


class MirroredStrategy(Strategy):
    """The processes of this node train one model; with several nodes each node trains its own.

    Only the name and the workers differ from `Strategy`. With one node it is the same.

    Example:
        import unisono as un

        strategy = un.keras.MirroredStrategy()
        strategy.num_replicas_in_sync  # -> 1

    Args:
        algorithm, seed, backup, backup_every, comm, options: As for `Strategy`.
    """

    def _select_workers(self, world: Communicator) -> Communicator:
        """Returns the communicator of the processes on this machine. Collective."""
        nodes = world.allgather_object(describe_process(current_topology()).node)
        found = world.split(nodes.index(nodes[world.rank]))
        assert found is not None
        return found


def hint_for_single_worker(at: Topology) -> str:
    """Pure: a hint for a script that runs as one worker where more could run; empty if no more can."""
    if at.world_size > 1:
        return ""
    if at.note:
        return f"this script runs as one worker: {at.note}; start it with `srun python SCRIPT`, or `unisono run -n N python SCRIPT`"
    if len(at.gpus) > 1:
        num = len(at.gpus)
        return f"this script runs as one worker on one of {num} GPUs; start it with `unisono run -n {num} python SCRIPT` to use all"
    return ""


class ParameterServerStrategy(Strategy):
    """The first process holds the weights and serves them; the others train and do not wait for each other.

    Asynchronous training, with the algorithm Downpour or another that has a server. `fit` needs at least two processes. It
    refuses arguments for workers in step: `callbacks`, `steps_per_epoch`, `initial_epoch`, `validation_freq`,
    `validation_batch_size`, `shuffle=False`, and streams of data.

    Example:
        import unisono as un

        strategy = un.keras.ParameterServerStrategy("easgd")
        strategy.num_replicas_in_sync  # -> 1

    Args:
        algorithm: "downpour", "easgd" or "gem".
        options: The options of the algorithm, and what `Strategy` takes by name: `seed`, `comm`.
    """

    def __init__(self, algorithm: str = "downpour", **options: Any) -> None:
        super().__init__(algorithm, **options)

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of workers that learn in step: 1, as each learns by itself."""
        return 1


class CentralStorageStrategy:
    """Refused with `UsageError`, which names what to use instead: `MirroredStrategy` or `ParameterServerStrategy`.

    In tf.distribute it keeps the weights on one CPU for several GPUs; every step would wait for that CPU.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        raise UsageError(
            "CentralStorageStrategy is not offered: it keeps the weights on one CPU, and every step would wait for that CPU; use "
            "un.keras.MirroredStrategy, or un.keras.ParameterServerStrategy for workers that do not wait for each other"
        )


class TPUStrategy:
    """Refused with `UsageError`: there is no engine for TPUs. Use `MultiWorkerMirroredStrategy` on CPUs or GPUs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        raise UsageError(
            "TPUStrategy is not offered: there is no engine for TPUs; use un.keras.MultiWorkerMirroredStrategy on CPUs or GPUs"
        )
