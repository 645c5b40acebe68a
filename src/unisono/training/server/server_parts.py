"""Makes an algorithm with a server from a task: this rank's part of it, and its workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from unisono.algorithms.allreduce import ALGORITHM as AllReduce
from unisono.algorithms.base import GroupSettings, Settings
from unisono.algorithms.server.call_record import check_numbers
from unisono.algorithms.server.protocol import MOST_UNITS
from unisono.algorithms.server.replica import Replica, VirtualWorkerState, check_model
from unisono.algorithms.server.server_algorithm import ServerAlgorithm
from unisono.algorithms.server.server_layout import ServerLayout
from unisono.algorithms.server.slices import SliceLayout
from unisono.algorithms.server.worker import Worker
from unisono.comm.base import Communicator
from unisono.comm.single_process import single_process_communicator
from unisono.data.loader import Loader, Portion
from unisono.errors import UsageError
from unisono.events import Spans
from unisono.model.torch.adapter import TorchAdapter
from unisono.task.task import Task
from unisono.training.work_layout import AlgorithmSetup


def make_server_algorithm(
    setup: AlgorithmSetup,
    world: Communicator,
    adapter: TorchAdapter,
    task: Task,
    make_evaluator: Callable[[], TorchAdapter],
    spans: Spans | None,
) -> ServerAlgorithm:
    """Local: makes the algorithm of this rank; refuses what its rule cannot use."""
    kind, layout, replay = setup.kind, setup.roles, setup.replay
    assert issubclass(kind, ServerAlgorithm)
    assert isinstance(layout, ServerLayout)
    algorithm = kind(
        single_process_communicator(adapter.device),
        adapter,
        setup.options,
        spans,
        world=world,
        layout=layout,
        make_evaluator=make_evaluator,
        replay=replay,
    )
    algorithm.read_optimizer(task.optimizer, task.optimizer_options, task.clip_norm)
    if layout.elastic is not None and not layout.is_virtual and find_spec("zmq") is None:
        raise UsageError("--elastic needs ZeroMQ, which is not installed here; pip install 'unisono[zmq]'")
    if replay is not None and layout.elastic is None:
        check_numbers(replay, layout.num_workers)
    check_model(adapter, setup.name)
    if layout.servers > 1:
        _check_servers(algorithm, setup.name, task)
    return algorithm


def _check_servers(algorithm: ServerAlgorithm, name: str, task: Task) -> None:
    """Refuses several servers where the algorithm or clip_norm needs the whole vector, and a model that cannot be sliced."""
    num_servers = algorithm.layout.servers
    if algorithm.needs_whole or (algorithm.server_optimises and task.clip_norm is not None):
        what = f"--algorithm {name}" if algorithm.needs_whole else f"clip_norm {task.clip_norm}"
        remedy = "use one server" if algorithm.needs_whole else "use one server, or leave clip_norm out"
        raise UsageError(
            f"{what} needs the norm of the whole vector, but each of the {num_servers} servers has only a slice of it (--servers); "
            f"{remedy}"
        )
    part = algorithm.adapter.parts[""]
    SliceLayout.of(next(iter(part.values.values())), num_servers)
    if algorithm.server_optimises:
        part.check_sliceable()


def replica_of(adapter: TorchAdapter, group: Communicator, spans: Spans | None = None) -> Replica:
    """Makes the replica of a worker. Collective over the group of processes that act as that worker."""
    inside = AllReduce(group, adapter, AllReduce.Options(), spans)
    inside.start()
    return Replica(adapter, inside)


def like(replica: Replica) -> Tensor:
    """Local: an empty vector like those that travel: weights, then running statistics."""
    num = replica.values.numel() + replica.statistics.numel()
    return torch.empty(num, dtype=replica.values.dtype, device=replica.values.device)


@dataclass(frozen=True)
class WorkerMaker:
    """Makes the workers of this process."""

    algorithm: ServerAlgorithm
    replica: Replica
    loader: Loader
    settings: Callable[[int], Settings]
    seed: int

    def make(
        self,
        out: Tensor,
        shard: int = 0,
        stop_requested: Callable[[], bool] = bool,
        virtual_state: VirtualWorkerState | None = None,
    ) -> Worker:
        """Local: makes a worker that forms in `out` what it sends; a virtual one has a `virtual_state`."""
        units = self.loader.plan.steps_per_epoch
        return Worker(
            rule=self.algorithm,
            replica=self.replica,
            read=self._read_portion,
            settings=self._settings_of_step,
            seed=self.seed,
            shard=shard,
            out=out,
            stop_requested=stop_requested,
            virtual_state=virtual_state,
            most_units=min(MOST_UNITS, max(1, units // self.algorithm.num_workers)),
        )

    def _read_portion(self, unit: int) -> Portion:
        """Returns the samples of this unit: one step of one epoch, the units of all epochs being numbered on."""
        return self.loader.portion(*divmod(unit, self.loader.plan.steps_per_epoch))

    def _settings_of_step(self, step: int) -> GroupSettings:
        return self.settings(step)[""]
