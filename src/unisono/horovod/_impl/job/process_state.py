"""The state of this process after `hvd.init()`: the communicator of the job, and a channel for each process set."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any
from weakref import ref

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from unisono.cluster.resolve import current_topology
from unisono.comm.base import Communicator
from unisono.comm.connect import connect
from unisono.comm.control_plane.plain import decode, encode
from unisono.errors import CommError, UsageError
from unisono.horovod._impl.elastic.driver_connection import DriverConnection
from unisono.horovod._impl.elastic.worker_environment import topology_of
from unisono.horovod._impl.engine.handles import Handles
from unisono.horovod._impl.engine.operation_entry import Entry
from unisono.horovod._impl.engine.operation_request import ALLGATHER, Request
from unisono.horovod._impl.engine.process_set_channel import FOR_EVER_S, Channel
from unisono.horovod._impl.engine.stall_watch import StallWatch
from unisono.horovod._impl.exceptions import HorovodInternalError
from unisono.horovod._impl.job.init_messages import report_settings
from unisono.horovod._impl.job.job_settings import HorovodSettings, horovod_settings
from unisono.horovod._impl.job.process_topology import ProcessTopology, process_topology, with_assignment
from unisono.horovod._impl.timeline.job_timeline import JobTimeline
from unisono.launch.excepthook import install_excepthook

GLOBAL_ID = 0
CHANGE_OF_SETS = "add_process_set or remove_process_set"
NOT_BEGUN = "Horovod has not been initialized; use hvd.init()."


class Job:
    """The communicators and channels between one `init` and its `shutdown`."""

    def __init__(self, driver_connection: DriverConnection) -> None:
        """Connects to the other processes. Collective over all processes of the job, blocking."""
        install_excepthook()
        own = horovod_settings()  # before others count on us
        assignment = driver_connection.wait_for_assignment() if driver_connection.has_driver else None
        # Tensors of GPUs pass through the host, so the engine is chosen as if there were none.
        at = replace(current_topology() if assignment is None else topology_of(assignment), own_gpus=())
        if at.engine == "nccl":
            raise UsageError(
                "hvd moves GPU tensors through the host, so it cannot use engine nccl (UNISONO_ENGINE=nccl); unset UNISONO_ENGINE"
            )
        self.timeline = JobTimeline()
        self.world: Communicator = connect(topology=at, quiet=True, attend=driver_connection.check_generation)
        try:
            # Those of rank 0 for all: ranks that fuse or remember differently would not understand each other.
            self.settings = HorovodSettings(**self.world.broadcast_object(asdict(own)))
            self.topology: ProcessTopology = with_assignment(process_topology(self.world, at), assignment)
            # From here on ranks may come as late as they like. What is split off inherits it, with all that it is made of.
            self.world.time_limit_s = FOR_EVER_S
            self.timeline.open(self.world, self.settings)
            self.ranks: dict[int, tuple[int, ...]] = {}
            self.channels: dict[int, Channel] = {}
            self.add(range(self.topology.size))
        except BaseException as error:
            self.world.abort(f"could not start: {error}")
            self.world.close()
            self.timeline.close()
            raise
        self.stall = StallWatch(self.channels, self.world.control, self.settings)

    def add(self, ranks: Sequence[int]) -> int:
        """Makes the channel of a new set and returns its number, the smallest that is free. Collective over all ranks, blocking."""
        members = tuple(ranks)
        set_id = next(number for number in range(len(self.ranks) + 1) if number not in self.ranks)
        comm = self.world.split(0 if self.topology.rank in members else None, self.topology.rank)
        if comm is not None:
            timeline = self.timeline.of_set(members, comm.engine, set_id)
            self.channels[set_id] = Channel(comm, members, self.settings, f"horovod-{set_id}", timeline)
        self.ranks[set_id] = members
        return set_id

    def end(self) -> None:
        """Ends all channels, whatever goes wrong on the way. Local, blocking for a moment."""
        with ExitStack() as ends:  # the last one first
            ends.callback(self.timeline.close)
            ends.callback(self.world.close)
            for channel in self.channels.values():
                ends.callback(channel.stop)
            ends.callback(self.stall.close)


class Process:
    """The state of this process. Methods may be called by any thread; `begin` and those that change sets are collective."""

    def __init__(self) -> None:
        self.handles = Handles()
        self.driver_connection = DriverConnection()
        """The connection to the driver of an elastic job."""
        self._lock = threading.RLock()
        self._job: Job | None = None
        self._persistent_ids: list[ref[Any]] = []
        self.are_shared = WeakTensorKeyDictionary()
        """Parameters that have, or had, an optimiser: whether it was more than one."""
        self._dynamic = False
        self._ends_at_exit = False

    @property
    def has_begun(self) -> bool:
        """Whether `begin` was called, without an `end` since. Local."""
        return self._job is not None

    def begin(self, dynamic: bool = False) -> None:
        """Connects at the first call; later calls only allow dynamic sets. Collective, blocking."""
        with self._lock:
            if self._job is None:
                self.handles.forget_all()
                self._job = self._connect()
                if not self._ends_at_exit:
                    atexit.register(self.end)
                    if not self._job.topology.rank:
                        report_settings(f"{self._job.topology}, {self._job.settings}")
                    self._ends_at_exit = True
            # Once asked for it stays, as in Horovod: elastic programs begin again by a plain `init()`.
            self._dynamic = self._dynamic or self._job.settings.dynamic_process_sets or dynamic

    def _connect(self) -> Job:
        """Connects to the other processes and returns the job. An elastic worker tries again with a new rank where that fails."""
        while True:
            try:
                job = Job(self.driver_connection)
            except CommError as error:
                if not self.driver_connection.has_driver:
                    raise
                self.driver_connection.report_failed(
                    str(error)
                )  # a worker has left meanwhile: ask for a rank among the remaining ones
            else:
                self.driver_connection.report_joined()
                return job

    def end(self) -> None:
        """Ends the communication; operations in flight fail. Idempotent. Local, blocking for a moment."""
        with self._lock:
            job, self._job = self._job, None
            if job is not None:
                job.end()

    def add_persistent_id(self, thing: object) -> None:
        """Registers the number of an object that may outlive `end`, without keeping it alive. Local."""
        with self._lock:
            self._persistent_ids = [one for one in self._persistent_ids if one() is not None]
            self._persistent_ids.append(ref(thing))

    def persistent_ids(self) -> list[Any]:
        """Returns the registered numbers whose objects still exist, the oldest first. Local."""
        with self._lock:
            return [thing for one in self._persistent_ids if (thing := one()) is not None]

    @property
    def job(self) -> Job:
        """The job of this process; `ValueError` before `init` and after `shutdown`. Local."""
        if self._job is None:
            raise ValueError(NOT_BEGUN)
        return self._job

    @property
    def topology(self) -> ProcessTopology:
        """The ranks and sizes of this process; `ValueError` before `init`. Local."""
        return self.job.topology

    @property
    def settings(self) -> HorovodSettings:
        """The settings of the job; `ValueError` before `init`. Local."""
        return self.job.settings

    def ranks_of(self, set_id: int) -> tuple[int, ...]:
        """Returns the members of a set; `ValueError` if it is not registered. Local."""
        ranks = self.job.ranks.get(set_id)
        if ranks is None:
            raise ValueError(f"process set {set_id} is not registered; it was removed, or belongs to an earlier hvd.init()")
        return ranks

    def sets(self) -> dict[int, list[int]]:
        """Returns the members of every registered set. Local."""
        return {set_id: list(ranks) for set_id, ranks in self.job.ranks.items()}

    def channel(self, set_id: int) -> Channel:
        """Returns the channel of a set that this process belongs to. Local."""
        channel = self.job.channels.get(set_id)
        if channel is None:
            ranks = list(self.ranks_of(set_id))
            raise ValueError(
                f"rank {self.topology.rank} is not in process set {set_id} (ranks {ranks}), so it cannot take part; call this only "
                "where process_set.included() is true"
            )
        return channel

    def require_dynamic(self, what: str) -> None:
        """Raises `ValueError` unless sets may change. Local."""
        if self.has_begun and not self._dynamic:
            raise ValueError(
                f'{what} needs dynamic process sets; call hvd.init(process_sets="dynamic") or set HOROVOD_DYNAMIC_PROCESS_SETS=1'
            )

    def add_set(self, ranks: Sequence[int]) -> int:
        """Adds a set and returns its number. Collective over all ranks, blocking."""
        with self._lock:
            job = self.job
            self._agree("add_process_set", list(ranks))
            wrong = [rank for rank in ranks if not 0 <= rank < job.topology.size]
            if wrong or not ranks or len(set(ranks)) < len(ranks):
                raise ValueError(
                    f"the ranks of a process set must be different and lie in 0..{job.topology.size - 1}; received {list(ranks)}"
                )
            same = [set_id for set_id, members in job.ranks.items() if members == tuple(ranks)]
            if same:
                raise ValueError(f"process set {same[0]} already has the ranks {list(ranks)}; use that one")
            try:
                return job.add(ranks)
            except CommError as error:
                raise HorovodInternalError(str(error)) from error

    def remove_set(self, set_id: int) -> None:
        """Removes a set. Collective over all ranks, blocking until all agree."""
        with self._lock:
            job = self.job
            self._agree("remove_process_set", list(self.ranks_of(set_id)))
            channel = job.channels.pop(set_id, None)
            if channel is not None:
                channel.leave()
            del job.ranks[set_id]

    def _agree(self, what: str, given: list[int]) -> None:
        """Waits until all ranks make the same call; it is an operation like any other, so that missing ranks are reported."""
        mine = torch.frombuffer(bytearray(encode([what, given])), dtype=torch.uint8)
        parts = ((mine.dtype, tuple(mine.shape)),)
        entry = Entry(Request(CHANGE_OF_SETS, ALLGATHER, parts, comes_again=False), [mine])
        self.channel(GLOBAL_ID).submit(entry)
        entry.wait()
        answers = [decode(part.numpy().tobytes()) for part in entry.outputs[0].split_with_sizes(entry.sizes[0])]
        for rank, answer in enumerate(answers):
            if answer != [what, given]:
                raise ValueError(
                    f"the ranks change process sets differently: this one called {what}({given}), rank {rank} "
                    f"{answer[0]}({answer[1]}); make the same calls in the same order on all ranks"
                )


PROCESS = Process()
"""Programs written for Horovod call plain functions, so `hvd.init()` must leave its result where `hvd.allreduce()` finds it.
Besides this only the ranks of `global_process_set` change."""
