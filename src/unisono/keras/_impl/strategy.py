"""Strategies: which processes train together, and which models they share: those that are made inside `scope`."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from unisono.cluster.resolve import current_topology
from unisono.cluster.topology import Topology
from unisono.comm.base import Communicator
from unisono.comm.choose import describe_process
from unisono.comm.connect import connect
from unisono.data.tree import map_tree
from unisono.errors import UsageError
from unisono.keras._impl.names_of_tensorflow import missing_name
from unisono.keras._impl.own_numbers import metrics_of_all, numbers_of_all
from unisono.keras._impl.own_updates import guarded_optimizers, summed_updates
from unisono.keras._impl.reduction import OPS, reduce_array
from unisono.keras._impl.seeding import Seed, draw, seed_all, share_seed
from unisono.keras._impl.shared_model import SharedModel
from unisono.model.keras.backends import prepare_backend

RUN = "run"
"""What a strategy is doing while a function of the user makes updates."""


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
        seed: The seed of the first weights and of all orders, the same on all workers. Left out, `scope` takes it from the first
            worker's generator, so keras.utils.set_random_seed decides it, and a script without it gets other weights each time.
        backup: A folder for checkpoints, from which a `fit` that was killed resumes when the script is started again.
        backup_every: How often a checkpoint is saved: "500steps", "2epochs", "30s", "10m" or "1h".
        comm: The communicator to use; left out, that of all processes of the job.
        options: The options of the algorithm, by name.
    """

    def __init__(
        self,
        algorithm: str = "allreduce",
        *,
        seed: int | None = None,
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
        self.seed_in_use = Seed(0, None)
        """That of the newest `scope`."""
        self._doing = ""
        self._compared = WeakSet[Any]()
        """Optimisers of own loops whose variables were equal on all workers before the first update."""
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

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(missing_name(type(self).__name__, name))

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

        It also sets the seeds of Python, NumPy, torch and TensorFlow, so that all workers make the same first weights. Optimisers
        that are made inside it make updates in `fit` and in `run` only. Collective, blocking at the first use of the strategy.
        """
        import keras

        prepare_backend()
        drawn = draw()  # before the processes meet, for which random numbers may be drawn too
        self.seed_in_use = share_seed(self.comm, self.seed, drawn)
        seed_all(self.seed_in_use.value)
        before = keras.Model.__new__

        def make_shared(cls: type, *args: Any, **kwargs: Any) -> Any:
            model = before(cls, *args, **kwargs)
            if "fit" not in vars(model):  # a functional model comes through here twice
                SharedModel(self, model).replace_methods()
            return model

        keras.Model.__new__ = make_shared
        try:
            with guarded_optimizers(self._refuse_own_update), metrics_of_all(self.comm, lambda: self._doing == RUN):
                yield self
        finally:
            keras.Model.__new__ = before

    @contextmanager
    def during(self, doing: str) -> Iterator[None]:
        """Returns a context manager in which optimisers may make updates; `fit` and `run` use it. Local.

        Args:
            doing: What makes the updates: "fit" or "run".
        """
        before, self._doing = self._doing, doing
        try:
            yield
        finally:
            self._doing = before

    def _refuse_own_update(self) -> None:
        """Local: refuses an update of an optimiser outside of `fit` and `run`, with several workers."""
        if not self._doing and self._comm is not None and self._comm.size > 1:
            raise UsageError(
                "an optimizer made in strategy.scope() was applied outside of strategy.run, so each worker would train a model of "
                "its own; call strategy.run(step, args=...), in which the gradients of all workers are summed"
            )

    def run(self, function: Callable[..., Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Calls a function that makes a training step, for loops of your own: every worker calls it with its own part of the data.

        In it `apply_gradients` and `apply` of Keras optimisers sum the gradients of all workers, as in tf.distribute, so that all
        keep the same weights: divide the loss by the number of samples of all workers together. The workers make the same number
        of updates. What the function returns is that of this worker; `reduce` combines it, after `run`.

        Refused are weights that differ between the workers before the first update, algorithms other than "allreduce",
        `LossScaleOptimizer`, losses of Keras that are means, and on JAX an update inside `jax.jit`. Optimisers of torch are not
        summed: see `un.DistributedOptimizer`. A metric that was made in `scope` and updated here gives the result of all workers
        outside, where it is collective. Collective where the function makes an update.

        Example:
            import keras
            import unisono as un

            strategy = un.keras.Strategy()
            with strategy.scope():
                weight = keras.Variable([2.0])
                optimizer = keras.optimizers.SGD(0.5)

            def step(gradient):
                optimizer.apply_gradients([(gradient, weight)])

            strategy.run(step, args=(keras.ops.ones(1),))
            float(keras.ops.convert_to_numpy(weight)[0])  # -> 1.5

        Args:
            function: What is called.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
        """
        if self._doing == RUN:
            return function(*args, **(kwargs or {}))
        with self.during(RUN):
            if self.comm.size == 1:
                return function(*args, **(kwargs or {}))
            with summed_updates(self.comm, self._compared, self.algorithm), numbers_of_all(self.comm):
                return function(*args, **(kwargs or {}))

    def reduce(self, op: Any, value: Any, axis: int | None = None) -> Any:
        """Combines a value of all workers and returns it as NumPy arrays, the same on all of them.

        With an axis, workers may have different numbers of samples along it: a mean is that over all samples. Without one, every
        worker counts the same, so reduce sums and counts rather than means of means. Inside `run` it is refused, as updates are
        summed there already. Collective, blocking.

        Example:
            import unisono as un

            strategy = un.keras.Strategy()
            total = strategy.reduce("SUM", {"loss": 6.0, "samples": 3})
            float(total["loss"] / total["samples"])  # -> 2.0

        Args:
            op: "SUM", "MEAN", "MAX" or "MIN", or the members of these names of tf.distribute.ReduceOp.
            value: A number or an array, or dicts and tuples of these; shapes must be the same on all workers, but for `axis`.
            axis: An axis that is combined as well, such as 0 for the samples; left out, only the workers are.
        """
        name = str(getattr(op, "value", op)).upper()
        if name not in OPS:
            raise UsageError(f"op must be one of {', '.join(OPS)}; received {op!r} (strategy.reduce)")
        if self._doing == RUN:
            raise UsageError(
                "strategy.reduce was called inside strategy.run, where optimizers already sum the gradients of all workers; return "
                "the value, and reduce what strategy.run returns"
            )
        return map_tree(lambda one: reduce_array(self.comm, name, one, axis), value)

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
