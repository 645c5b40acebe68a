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
    """Trains models on all processes of the job together. Its first use is collective: the processes connect then."""

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
        """`algorithm` with its `options` as in `unisono train`; `backup` is a folder from which a `fit` that was killed resumes,
        saved `backup_every` 500steps, 2epochs, 30s, 10m or 1h."""
        self.algorithm = algorithm
        self.options = options
        self.seed = seed
        self.backup = backup
        self.backup_every = backup_every
        self.num_fits = 0
        self._comm = comm

    @property
    def comm(self) -> Communicator:
        """Collective at its first use: the communicator of all workers."""
        if self._comm is None:
            self._comm = self._select_workers(connect())
            atexit.register(self.close)
            if self._comm.size == 1 and (note := hint_for_single_worker(current_topology())):
                print(f"unisono: {note}", file=sys.stderr, flush=True)
        return self._comm

    def _select_workers(self, world: Communicator) -> Communicator:
        return world

    def count_fit(self) -> None:
        """Local: counts a fit; the fits of a script are distinguished by their numbers."""
        self.num_fits += 1

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of workers."""
        return self.comm.size

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files."""
        return self.comm.rank == 0

    @contextmanager
    def scope(self) -> Iterator[Strategy]:
        """Context manager: Keras models that are made inside are shared by all workers: their `fit`, `evaluate` and `predict` are
        replaced."""
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
        """Local: calls a function of your own training loop, on every worker with its part."""
        return function(*args, **(kwargs or {}))

    def reduce(self, op: Any, value: Any, axis: int | None = None) -> Any:
        """Collective, blocking: SUM, MEAN, MAX or MIN over all workers of any nesting of arrays, as NumPy has them; with `axis`
        over that axis too. For a mean over samples reduce sums and counts, as workers may have different numbers of them."""
        name = str(getattr(op, "value", op)).upper()
        if name not in OPS:
            raise UsageError(f"op must be one of {', '.join(OPS)}; received {op!r} (strategy.reduce)")
        return map_tree(lambda one: self._reduce_array(name, np.asarray(one), axis), value)

    def _reduce_array(self, name: str, array: Any, axis: int | None) -> Any:
        num = 1 if axis is None else array.shape[axis]
        if axis is not None:
            array = {"MAX": np.max, "MIN": np.min}.get(name, np.sum)(array, axis=axis)
        buffer = torch.from_numpy(np.array(array, ndmin=1)).to(self.comm.device)
        self.comm.allreduce(buffer, OPS[name])
        found = buffer.cpu().numpy().reshape(np.shape(array))
        return found / (self.comm.size * num) if name == MEAN else found

    def close(self) -> None:
        """Collective: closes the connection of the workers; called at the end of the program. Idempotent."""
        comm, self._comm = self._comm, None
        atexit.unregister(self.close)
        if comm is not None:
            comm.close()


class MultiWorkerMirroredStrategy(Strategy):
    """All workers of the job, on all nodes, under the name of tf.distribute."""


class MirroredStrategy(Strategy):
    """The workers of this node only; every node trains a model of its own."""

    def _select_workers(self, world: Communicator) -> Communicator:
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
    """The first process serves, the others work and do not wait for each other: asynchronous training (Downpour) on our exchange,
    or with another `algorithm` that has a server: easgd, gem."""

    def __init__(self, algorithm: str = "downpour", **options: Any) -> None:
        super().__init__(algorithm, **options)

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of workers that step together: 1."""
        return 1


class CentralStorageStrategy:
    """Not supported: making one raises an error that names alternatives."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        raise UsageError(
            "CentralStorageStrategy keeps the weights on one CPU for several GPUs, which every step would wait for; "
            "use un.keras.MirroredStrategy, or ParameterServerStrategy for workers that do not wait"
        )


class TPUStrategy:
    """Not supported: making one raises an error that names alternatives."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        raise UsageError("TPUStrategy: there is no engine for TPUs; use un.keras.MultiWorkerMirroredStrategy on CPUs or GPUs")
