"""A training through a server: the server's loop on one rank, a worker's on each of the others; or all of them in one process."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from torch import Tensor, nn

from unisono.algorithms.server.call_record import FILE, CallRecorder, ReplayServer, after, callers_in
from unisono.algorithms.server.ledger import Ledger
from unisono.algorithms.server.protocol import most_numbers
from unisono.algorithms.server.replica import Replica
from unisono.algorithms.server.server_algorithm import ServerAlgorithm, ServerModel
from unisono.algorithms.server.service import MakeBuffer, Service
from unisono.algorithms.server.simulated import SimulatedServer
from unisono.algorithms.server.waits import Waits
from unisono.comm.base import Communicator
from unisono.comm.exchange.base import Server
from unisono.comm.single_process import single_process_communicator
from unisono.errors import TrainingFailed
from unisono.model.base import EVALUATING, StreamKey
from unisono.model.torch.adapter import TorchAdapter
from unisono.task.train_config import TrainConfig
from unisono.training.epoch_sums import EpochSums
from unisono.training.evaluation import EvaluationPlan, Shards, evaluate
from unisono.training.progress import Progress
from unisono.training.server.background_evaluation import BackgroundEvaluation
from unisono.training.server.ends import Ends, open_ends
from unisono.training.server.server_parts import WorkerMaker, like, replica_of
from unisono.training.server.servers import Follower, LeadingService, buffer_of_follower
from unisono.training.server.serving import EndedEpoch, Serving
from unisono.training.server.worker_connection import WorkerConnection
from unisono.training.trainer_base import TrainerBase, shown_lr

CONNECTION_FILE = "exchange.json"
"""File in the run directory with the server's address and keys, readable by the user only (comm/exchange/zmq_keys.py)."""
OTHER_WORKERS = "it was resumed with other workers"
STATE_FACTOR, STATE_BYTES = 8, 64 * 2**20
"""Limit of a worker's state: so many times the size of its weights, and so many bytes more."""


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """What the first server needs besides the task."""

    call_record: Path | None = None
    """The file in which it records the order of calls."""
    silence_s: float = 10.0
    host: str = "127.0.0.1"
    """The address at which workers that join reach it."""

    @classmethod
    def of(cls, config: TrainConfig, directory: Path | None) -> ServerSettings:
        """Pure: the settings of the first server, which records calls in `directory`; the defaults on ranks without one."""
        if directory is None:
            return cls()
        host = config.host if config.comes_and_goes and config.host else cls.host
        return cls(call_record=directory / FILE, silence_s=config.silence_s, host=host)


class Resumed(NamedTuple):
    """What a server resumes of an earlier attempt."""

    num_lines: int = 0
    """Number of lines of the record of calls that belong to it."""
    replay_break: str = ""
    """Why the run cannot be repeated from there on; empty if it can."""
    pending: EpochSums | None = None
    """Sums of an epoch whose evaluation was cut short."""


@dataclass(kw_only=True)
class ServerTrainer(TrainerBase):
    """One rank's part of a training through a server: it serves, or works, or both."""

    algorithm: ServerAlgorithm = field(init=False)
    server: ServerSettings = field(default_factory=ServerSettings)
    show_server: Callable[[], None] = field(default=lambda: None, init=False)
    """Local: copies the server's weights into the model of this process, which virtual workers use too."""
    _service_here: Service | None = field(default=None, init=False)
    """The service of the first server, once it serves."""

    def train(self) -> Progress:
        """Collective, blocking: trains to the end, whatever ends it."""
        algorithm, layout, world = self.algorithm, self.algorithm.layout, self.algorithm.world
        self._began = perf_counter() - self.progress.wall_s
        algorithm.start()
        with ExitStack() as held:
            group = self._group(held)
            replica = replica_of(self.adapter, group, self.spans)
            if self.restored is not None and layout.is_server(world.rank):
                self.restored.after_start(algorithm.comm, self.adapter, algorithm)
            if layout.size > 1:
                ends = open_ends(world, layout, replica.values, like(replica), self._most_numbers(replica), held)
                if ends.server is not None and world.rank == 0:
                    self._serve(ends.server, replica, ends)
                elif ends.server is not None:
                    self._follow(ends.server, replica, ends)
                else:
                    connection = WorkerConnection(group, ends.caller, like(replica), self._most_numbers(replica), spans=self.spans)
                    worker = self._worker_maker(replica).make(connection.out(), layout.shard(world.rank), self.stop_requested)
                    connection.drive(worker.run())
            else:
                server: Server = self._simulated_server(replica) if layout.is_virtual else self._open_to_joining_workers(replica)
                held.callback(server.close)
                self._serve(server, replica)
        limit_s = None if self.hooks.should_continue is None else math.inf  # the server may wait for it
        self.progress = Progress(**world.broadcast_object(asdict(self.progress), timeout_s=limit_s))
        algorithm.synchronise()
        return self.progress

    def _group(self, held: ExitStack) -> Communicator:
        """Collective: the group of processes that act as one worker with this rank; a server is alone."""
        layout, world = self.algorithm.layout, self.algorithm.world
        if layout.size == 1:
            return single_process_communicator(self.adapter.device)
        group = world.split(-1 - world.rank if layout.is_server(world.rank) else layout.worker(world.rank))
        assert group is not None
        held.callback(group.close)
        return group

    def _most_numbers(self, replica: Replica) -> int:
        """Returns the most numbers that one message of a worker holds beside its vector."""
        return most_numbers(replica.num_sums, replica.num_tensors)

    # ---- workers ---------------------------------------------------------------------------------------------------

    def _worker_maker(self, replica: Replica) -> WorkerMaker:
        """Returns the maker of the workers that train in this process, on this replica."""
        return WorkerMaker(self.algorithm, replica, self.loader, self.settings, self.seed)

    def _simulated_server(self, replica: Replica) -> SimulatedServer:
        """Returns a server with all its workers in this process, which take turns in simulated time."""
        workers = self._worker_maker(replica)
        # A request to stop reaches the server, which is here too.
        work = {
            number: workers.make(like(replica), virtual_state=replica.copy_worker()).run() for number in self._virtual_workers()
        }
        return SimulatedServer(self.algorithm.layout.clock, self.seed, work)

    def _virtual_workers(self) -> Collection[int]:
        """Local: the numbers of the virtual workers: all; where a run whose workers came and went is repeated, those that have
        joined and those that will."""
        algorithm = self.algorithm
        if algorithm.layout.elastic is None:
            return range(algorithm.num_workers)
        assert algorithm.replay is not None
        num_lines = 0 if self.restored is None else int(self.restored.trainer["num_lines"])
        return callers_in(after(algorithm.replay, num_lines)) | self._saved_workers()

    def _saved_workers(self) -> set[int]:
        """Returns the numbers of the workers whose states are in the checkpoint that is resumed; none without one."""
        saved = self.algorithm.saved_service
        return set() if saved is None else {int(number) for number in saved["members"]}

    def _saved_simulation(self) -> Mapping[str, Any]:
        """Returns the clock and the calls of the simulation that is resumed; empty where it was none."""
        saved = self.algorithm.saved_service
        return {} if saved is None else saved.get("simulation") or {}

    @property
    def _has_clock(self) -> bool:
        """Whether a virtual clock decides the order of calls, and not a record."""
        return self.algorithm.layout.is_virtual and self.algorithm.replay is None

    # ---- server ----------------------------------------------------------------------------------------------------

    def _open_to_joining_workers(self, replica: Replica) -> Server:
        """Local: makes the server that workers may join and leave, and opens it."""
        from unisono.comm.exchange.zmq_server import ZmqServer

        settings, call_record = self.server, self.server.call_record
        assert call_record is not None
        number = 0 if self.restored is None else int(self.restored.trainer["next_number"])
        server = ZmqServer(
            call_record.parent / CONNECTION_FILE,
            max_vector_bytes=STATE_FACTOR * like(replica).nbytes + STATE_BYTES,
            host=settings.host,
            first_number=number,
            silence_s=settings.silence_s,
            say=self.tell,
        )
        self.tell(f"waiting for workers at {server.open()}; to add one: unisono join {call_record.parent}")
        return server

    def _follow(self, server: Server, replica: Replica, ends: Ends) -> None:
        """Serves as a server other than the first."""
        service = self._make_service(buffer_of_follower(server), replica, ends)
        if self.restored is not None:
            self._resume_service(self.restored.trainer, service, ends)
            self.restored = None
        Follower(server, service, replica.part, self.stop_requested, self.spans).run()

    def _make_service(self, make_buffer: MakeBuffer, replica: Replica, ends: Ends | None) -> Service:
        """Returns the service that answers this server's calls, with its slice of the model if there are several servers."""
        algorithm, plan = self.algorithm, self.loader.plan
        layout, rank = algorithm.layout, algorithm.world.rank
        if layout.servers > 1 and algorithm.server_optimises:
            assert ends is not None
            replica.part.restrict_to_slice(ends.slices.slice_of(rank))
        model, statistics = self._server_model(replica, None if ends is None else ends.slices.slice_of(rank))

        def lr(step: int) -> float:
            return shown_lr(self.settings(step))

        make: Callable[..., Service] = Service
        if ends is not None and ends.commands is not None:
            make = partial(LeadingService, commands=ends.commands, slices=ends.slices, part=replica.part)
        return make(
            rule=algorithm,
            model=model,
            statistics=statistics if rank == 0 else statistics[:0],
            ledger=Ledger(plan.steps_per_epoch, self.goals.num_epochs, algorithm.waits_for_all),
            lr=lr,
            num_sums=replica.num_sums,
            make_buffer=make_buffer,
            expected=layout.num_workers,
            certain=0 if layout.elastic is not None else layout.num_workers,
        )

    def _serve(self, server: Server, replica: Replica, ends: Ends | None = None) -> None:
        """Serves the workers until the run has ended: updates, evaluations, checkpoints, and the record of the calls."""
        algorithm = self.algorithm
        service = self._make_service(server.buffer, replica, ends)
        algorithm.serve_with(service)
        self._service_here = service
        if not algorithm.layout.is_virtual:
            self.show_server = service.show
        sums, waits, resumed = EpochSums(self.train_metrics), Waits(), Resumed()
        if self.restored is not None:
            resumed = self._resume(service, sums, waits, ends, server)
            self.restored = None
        if isinstance(server, SimulatedServer) and self._has_clock:
            service.serve_simulation(server.state)
        if algorithm.replay is not None:
            lines = after(algorithm.replay, resumed.num_lines)
            server = ReplayServer(server, lines, service.changes_state, lambda: not service.awaits_workers)
        in_background = not algorithm.layout.is_virtual and algorithm.replay is None
        evaluation: BackgroundEvaluation[EndedEpoch] = BackgroundEvaluation(
            algorithm.make_evaluator(), self._evaluate, in_background
        )
        with ExitStack() as held:
            held.callback(evaluation.close)
            call_recorder = None
            if self.server.call_record is not None:
                call_recorder = CallRecorder(self.server.call_record, resumed.num_lines, resumed.replay_break)
            if call_recorder is not None:
                held.callback(call_recorder.close)
            serving = Serving(
                trainer=self,
                server=server,
                service=service,
                evaluation=evaluation,
                call_recorder=call_recorder,
                sums=sums,
                waits=waits,
                pending=resumed.pending,
            )
            serving.run()
        self.show_server()
        service.close()
        self.unfinished = {} if self.progress.step_in_epoch == 0 else serving.sums.values()

    def _server_model(self, replica: Replica, where: slice | None) -> tuple[ServerModel, Tensor]:
        """The server's weights and its statistics: the model of this process, or a slice of it; where virtual workers use that
        model, a state beside theirs."""
        stretch = slice(None) if where is None else where

        def optimise(gradient: Tensor, uses: Any) -> None:
            assert self.algorithm.server_optimises
            replica.gradient[stretch].copy_(gradient)
            is_finite = self.adapter.apply_gradients(self.settings(model.step)[""], 1.0, uses)
            if not is_finite and self.algorithm.layout.servers > 1:
                raise TrainingFailed(
                    "a sum of gradients is not finite at one of several servers, and a server alone cannot skip an update "
                    "(--servers); lower the learning rate, or use one server"
                )

        if not self.algorithm.layout.is_virtual:
            model = ServerModel(replica.values[stretch], optimise)
            return model, replica.statistics
        own_state = replica.copy_worker()

        def optimise_own_state(gradient: Tensor, uses: Any) -> None:
            replica.load_worker(own_state)
            optimise(gradient, uses)
            replica.store_worker(own_state)

        self.show_server = lambda: replica.load_worker(own_state)
        model = ServerModel(own_state.values, optimise_own_state)
        return model, own_state.statistics

    def _resume(self, service: Service, sums: EpochSums, waits: Waits, ends: Ends | None, server: Server) -> Resumed:
        """Local: restores what an earlier attempt left into these objects."""
        assert self.restored is not None
        left, pending = self.restored.trainer, None
        if left["plan"] == self._plan:
            sums.restore(left["sums"])
            waits.restore(left["waits"])
            if left["pending"] is not None:
                pending = EpochSums(self.train_metrics)
                pending.restore(left["pending"])
        replay_break = self._resume_service(left, service, ends)
        if isinstance(server, SimulatedServer) and self._has_clock and (simulation := self._saved_simulation()):
            server.restore(simulation, workers_rejoin=service.awaits_workers)
        if replay_break == OTHER_WORKERS:
            self.tell(
                "warning: the workers are not those of the checkpoint; they start from the server's weights, and unfinished "
                "batches are assigned again"
            )
        return Resumed(int(left["num_lines"]), replay_break, pending)

    def _resume_service(self, left: Mapping[str, Any], service: Service, ends: Ends | None) -> str:
        """Local: restores what an earlier attempt left of this server's service. Returns why the run cannot be repeated from there
        on; empty if it can."""
        saved, ledger, layout = self.algorithm.saved_service, service.ledger, self.algorithm.layout
        assert saved is not None
        if left["plan"] != self._plan:
            step = self.progress.epoch * self._units_per_epoch
            self.progress.follow_server(step, self._units_per_epoch)
            ledger.skip_to(step)
            return "it was resumed with other batches"
        if layout.elastic is None:
            has_calls = self._has_clock or not self._saved_simulation().get("calls")
            callers: Collection[int] = range(layout.num_workers) if has_calls else ()
        else:
            callers = self._saved_workers() if layout.is_virtual else ()
        came_and_went = layout.elastic is not None and not layout.is_virtual
        if layout.servers > 1:
            assert ends is not None
            saved = ends.slices.share_of_state(saved, self.algorithm.world.rank)
        if not service.restore(saved, callers) or came_and_went:
            return OTHER_WORKERS
        has_ended = not (ledger.leases or ledger.returned or ledger.is_over)
        return "it was resumed after its end, with more epochs" if has_ended else ""

    @property
    def _units_per_epoch(self) -> int:
        return self.loader.plan.steps_per_epoch

    def _evaluate(self, evaluator: TorchAdapter) -> dict[str, float] | None:
        """Returns the validation metrics of this replica; {} without validation data, None if a stop was requested meanwhile."""
        if self.validation is None:
            return {}
        evaluator.seed(StreamKey(self.seed, (self.progress.epoch + 1) * self._units_per_epoch, 0, EVALUATING))
        plan = EvaluationPlan(self.parts.metrics, self.evaluation_batch, stop_requested=self.stop_requested)
        return evaluate(self.algorithm.comm, evaluator, self.validation, plan, "val_")

    def _evaluation_shards(self) -> Shards:
        """Local: a part for each process that works, wherever they are, so that virtual workers give the same bits."""
        layout, number = self.algorithm.layout, self.algorithm.num_working
        first = self.algorithm.world.rank - layout.servers
        own = range(number) if layout.size == 1 else range(max(first, 0), first + 1)
        return Shards(number, own, self._draw_as)

    def stop_requested(self) -> bool:
        """Local: whether a stop was requested of this process or of another server."""
        service = self._service_here
        return (service is not None and service.stop_requested) or super().stop_requested()

    # ---- what `Serving` calls --------------------------------------------------------------------------------------

    def wall_s(self) -> float:
        """Local: seconds since the run began, earlier attempts included."""
        return perf_counter() - self._began

    def tell(self, text: str) -> None:
        """Local: sends a line to all observers."""
        self._say(text)

    def end_of_epoch(self, sums: EpochSums, metrics: Mapping[str, float], evaluated_model: nn.Module) -> None:
        """Local: ends an epoch whose evaluation is over."""
        self.evaluated_model = evaluated_model
        self._finish_epoch(sums, metrics)

    def should_continue(self, metrics: Mapping[str, float]) -> bool:
        """Local: whether the training continues after this epoch. The server decides alone and tells the workers."""
        ask = self.hooks.should_continue
        return ask is None or ask(self.progress.epoch, metrics)

    def keep(self, state: Mapping[str, Any], mid_epoch: bool, is_last: bool) -> None:
        """Local: saves a checkpoint; everything that it holds is on this rank."""
        super()._save_checkpoint(state, mid_epoch, is_last)

    def _save_checkpoint(self, state: Mapping[str, Any], mid_epoch: bool, is_last: bool = False) -> None:  # noqa: ARG002
        """Requests a save, which begins once the workers can be asked for their states."""
        self.save_requested = True

    def take_save_request(self) -> bool:
        """Local: whether a save was requested since the last call."""
        requested, self.save_requested = self.save_requested, False
        return requested
