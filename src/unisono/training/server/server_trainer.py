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

from unisono.algorithms.server.call_record import FILE, Arrivals, InOrder, after, callers_in
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
from unisono.training.evaluation import EvaluationPlan, evaluate
from unisono.training.progress import Progress
from unisono.training.server.background_evaluation import BackgroundEvaluation
from unisono.training.server.calling import Calling
from unisono.training.server.ends import Ends, open_ends
from unisono.training.server.server_parts import WorkerMaker, like, replica_of
from unisono.training.server.servers import Follower, LeadingService, buffer_of_follower
from unisono.training.server.serving import EndedEpoch, Serving
from unisono.training.trainer_base import TrainerBase, shown_lr

CONNECTION_FILE = "exchange.json"
"""In the run directory: where the server is and what opens it, for the user alone (comm/exchange/zmq_keys.py)."""
OTHER_WORKERS = "it went on with other workers"
STATE_FACTOR, STATE_BYTES = 8, 64 * 2**20
"""A worker's state may be so many times as large as its weights, and so many bytes more."""


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """What the first server needs besides the task."""

    arrivals: Path | None = None
    """Where it writes down the order of calls."""
    silence_s: float = 10.0
    host: str = "127.0.0.1"
    """The address at which workers that come and go reach it."""

    @classmethod
    def of(cls, config: TrainConfig, directory: Path | None) -> ServerSettings:
        """Pure: of a run in this directory."""
        if directory is None:
            return cls()
        host = config.host if config.comes_and_goes and config.host else cls.host
        return cls(arrivals=directory / FILE, silence_s=config.silence_s, host=host)


class Resumed(NamedTuple):
    """What a server takes up of an earlier attempt."""

    num_lines: int = 0
    """Of the record of calls that belong to it."""
    anew: str = ""
    """Why it cannot be repeated from there on."""
    pending: EpochSums | None = None
    """Of an epoch whose evaluation was cut short."""


@dataclass(kw_only=True)
class ServerTrainer(TrainerBase):
    """One rank's part."""

    algorithm: ServerAlgorithm = field(init=False)
    server: ServerSettings = field(default_factory=ServerSettings)
    show_server: Callable[[], None] = field(default=lambda: None, init=False)
    """Local: put the server's weights into the model of this process, which virtual workers use too."""
    _service_here: Service | None = field(default=None, init=False)
    """Of the first server, once it serves."""

    def train(self) -> Progress:
        """Collective, blocking: train to the end, whatever ends it."""
        algorithm, layout, world = self.algorithm, self.algorithm.layout, self.algorithm.world
        self._began = perf_counter() - self.progress.wall_s
        algorithm.start()
        with ExitStack() as held:
            group = self._group(held)
            replica = replica_of(self.adapter, group, self.spans)
            if self.restored is not None and layout.is_server(world.rank):
                self.restored.after_start(algorithm.comm, self.adapter, algorithm)
            if layout.size > 1:
                ends = open_ends(world, layout, replica.values, like(replica), self._numbers(replica), held)
                if ends.server is not None and world.rank == 0:
                    self._serve(ends.server, replica, ends)
                elif ends.server is not None:
                    self._follow(ends.server, replica, ends)
                else:
                    calling = Calling(group, ends.caller, like(replica), self._numbers(replica), spans=self.spans)
                    worker = self._workers(replica).make(calling.out(), layout.shard(world.rank), self.stop_requested)
                    calling.drive(worker.run())
            else:
                server: Server = self._virtual(replica) if layout.is_virtual else self._open_door(replica)
                held.callback(server.close)
                self._serve(server, replica)
        limit_s = None if self.hooks.should_continue is None else math.inf  # the server may wait for it
        self.progress = Progress(**world.broadcast_object(asdict(self.progress), timeout_s=limit_s))
        algorithm.synchronise()
        return self.progress

    def _group(self, held: ExitStack) -> Communicator:
        """Collective: those that act as one worker with this rank; a server is alone."""
        layout, world = self.algorithm.layout, self.algorithm.world
        if layout.size == 1:
            return single_process_communicator(self.adapter.device)
        group = world.split(-1 - world.rank if layout.is_server(world.rank) else layout.worker(world.rank))
        assert group is not None
        held.callback(group.close)
        return group

    def _numbers(self, replica: Replica) -> int:
        return most_numbers(replica.num_sums, replica.num_tensors)

    # ---- workers ---------------------------------------------------------------------------------------------------

    def _workers(self, replica: Replica) -> WorkerMaker:
        return WorkerMaker(self.algorithm, replica, self.loader, self.settings, self.seed)

    def _virtual(self, replica: Replica) -> SimulatedServer:
        workers = self._workers(replica)
        # A request to stop reaches the server, which is here too.
        work = {number: workers.make(like(replica), home=replica.home()).run() for number in self._virtual_workers()}
        return SimulatedServer(self.algorithm.layout.clock, self.seed, work)

    def _virtual_workers(self) -> Collection[int]:
        """Local: all; where a run of workers that came and went is repeated, those that are there and those that will yet come."""
        algorithm = self.algorithm
        if algorithm.layout.elastic is None:
            return range(algorithm.num_workers)
        assert algorithm.replay is not None
        num_lines = 0 if self.restored is None else int(self.restored.trainer["num_lines"])
        return callers_in(after(algorithm.replay, num_lines)) | self._known()

    def _known(self) -> set[int]:
        saved = self.algorithm.saved_service
        return set() if saved is None else {int(number) for number in saved["members"]}

    # ---- server ----------------------------------------------------------------------------------------------------

    def _open_door(self, replica: Replica) -> Server:
        """Local: for workers that come and go."""
        from unisono.comm.exchange.zmq_server import ZmqServer

        settings, arrivals = self.server, self.server.arrivals
        assert arrivals is not None
        number = 0 if self.restored is None else int(self.restored.trainer["next_number"])
        server = ZmqServer(
            arrivals.parent / CONNECTION_FILE,
            max_vector_bytes=STATE_FACTOR * like(replica).nbytes + STATE_BYTES,
            host=settings.host,
            first_number=number,
            silence_s=settings.silence_s,
            say=self.tell,
        )
        self.tell(f"waiting for workers at {server.open()}: unisono join {arrivals.parent}")
        return server

    def _follow(self, server: Server, replica: Replica, ends: Ends) -> None:
        """Be another server than the first."""
        service = self._service(buffer_of_follower(server), replica, ends)
        if self.restored is not None:
            self._resume_service(self.restored.trainer, service, ends)
            self.restored = None
        Follower(server, service, replica.part, self.stop_requested, self.spans).run()

    def _service(self, make_buffer: MakeBuffer, replica: Replica, ends: Ends | None) -> Service:
        algorithm, plan = self.algorithm, self.loader.plan
        layout, rank = algorithm.layout, algorithm.world.rank
        if layout.servers > 1 and algorithm.server_optimises:
            assert ends is not None
            replica.part.restrict_to_slice(ends.cut.where(rank))
        model, statistics = self._server_model(replica, None if ends is None else ends.cut.where(rank))

        def lr(step: int) -> float:
            return shown_lr(self.settings(step))

        make: Callable[..., Service] = Service
        if ends is not None and ends.orders is not None:
            make = partial(LeadingService, orders=ends.orders, cut=ends.cut, part=replica.part)
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
        algorithm = self.algorithm
        service = self._service(server.buffer, replica, ends)
        algorithm.serve_with(service)
        self._service_here = service
        if not algorithm.layout.is_virtual:
            self.show_server = service.show
        sums, waits, resumed = EpochSums(self.train_metrics), Waits(), Resumed()
        if self.restored is not None:
            resumed = self._resume(service, sums, waits, ends)
            self.restored = None
        if algorithm.replay is not None:
            lines = after(algorithm.replay, resumed.num_lines)
            server = InOrder(server, lines, service.is_of_consequence, lambda: not service.awaits_workers)
        in_background = not algorithm.layout.is_virtual and algorithm.replay is None
        evaluation: BackgroundEvaluation[EndedEpoch] = BackgroundEvaluation(
            algorithm.make_evaluator(), self._evaluate, in_background
        )
        with ExitStack() as held:
            held.callback(evaluation.close)
            arrivals = None
            if self.server.arrivals is not None:
                arrivals = Arrivals(self.server.arrivals, resumed.num_lines, resumed.anew)
            if arrivals is not None:
                held.callback(arrivals.close)
            serving = Serving(
                trainer=self,
                server=server,
                service=service,
                evaluation=evaluation,
                arrivals=arrivals,
                sums=sums,
                waits=waits,
                pending=resumed.pending,
            )
            serving.run()
        self.show_server()
        service.close()
        self.unfinished = {} if self.progress.step_in_epoch == 0 else serving.sums.values()

    def _server_model(self, replica: Replica, where: slice | None) -> tuple[ServerModel, Tensor]:
        """The server's weights and its statistics: the model of this process, or a slice of it; where virtual workers use the model
        too, a home beside theirs."""
        stretch = slice(None) if where is None else where

        def optimise(gradient: Tensor, uses: Any) -> None:
            assert self.algorithm.server_optimises
            replica.gradient[stretch].copy_(gradient)
            is_finite = self.adapter.apply_gradients(self.settings(model.step)[""], 1.0, uses)
            if not is_finite and self.algorithm.layout.servers > 1:
                raise TrainingFailed(
                    "a sum of gradients is not finite at one server of several, which alone cannot leave it out (--servers); lower "
                    "the learning rate, or use one server"
                )

        if not self.algorithm.layout.is_virtual:
            model = ServerModel(replica.values[stretch], optimise)
            return model, replica.statistics
        home = replica.home()

        def optimise_at_home(gradient: Tensor, uses: Any) -> None:
            replica.move_in(home)
            optimise(gradient, uses)
            replica.move_out(home)

        self.show_server = lambda: replica.move_in(home)
        model = ServerModel(home.values, optimise_at_home)
        return model, home.statistics

    def _resume(self, service: Service, sums: EpochSums, waits: Waits, ends: Ends | None) -> Resumed:
        """Local: what an earlier attempt left, into these."""
        assert self.restored is not None
        left, pending = self.restored.trainer, None
        if left["plan"] == self._plan:
            sums.restore(left["sums"])
            waits.restore(left["waits"])
            if left["pending"] is not None:
                pending = EpochSums(self.train_metrics)
                pending.restore(left["pending"])
        anew = self._resume_service(left, service, ends)
        if anew == OTHER_WORKERS:
            self.tell(
                "warning: the workers are others than before; they begin with the server's weights, and what those had is dealt "
                "out again"
            )
        return Resumed(int(left["num_lines"]), anew, pending)

    def _resume_service(self, left: Mapping[str, Any], service: Service, ends: Ends | None) -> str:
        """Local: every server's part of that. Gives why the run cannot be repeated from there on."""
        saved, ledger, layout = self.algorithm.saved_service, service.ledger, self.algorithm.layout
        assert saved is not None
        if left["plan"] != self._plan:
            step = self.progress.epoch * self._units
            self.progress.follow_server(step, self._units)
            ledger.skip_to(step)
            return "it went on with other batches"
        if layout.elastic is None:
            callers: Collection[int] = range(layout.num_workers)
        else:
            callers = self._known() if layout.is_virtual else ()
        came_and_went = layout.elastic is not None and not layout.is_virtual
        if layout.servers > 1:
            assert ends is not None
            saved = ends.cut.share_of_state(saved, self.algorithm.world.rank)
        if not service.restore(saved, callers) or came_and_went:
            return OTHER_WORKERS
        has_ended = not (ledger.leases or ledger.returned or ledger.is_over)
        return "it went on after its end, with more epochs" if has_ended else ""

    @property
    def _units(self) -> int:
        return self.loader.plan.steps_per_epoch

    def _evaluate(self, evaluator: TorchAdapter) -> dict[str, float] | None:
        if self.validation is None:
            return {}
        evaluator.seed(StreamKey(self.seed, (self.progress.epoch + 1) * self._units, 0, EVALUATING))
        plan = EvaluationPlan(self.parts.metrics, self.evaluation_batch, stop_requested=self.stop_requested)
        return evaluate(self.algorithm.comm, evaluator, self.validation, plan, "val_")

    def stop_requested(self) -> bool:
        """Local: also whether another server was asked to."""
        service = self._service_here
        return (service is not None and service.stop_requested) or super().stop_requested()

    # ---- what the serving asks for ---------------------------------------------------------------------------------

    def wall_s(self) -> float:
        """Local: since the run began, earlier attempts included."""
        return perf_counter() - self._began

    def tell(self, text: str) -> None:
        """Local: to all who watch."""
        self._say(text)

    def end_of_epoch(self, sums: EpochSums, metrics: Mapping[str, float], evaluated_model: nn.Module) -> None:
        """Local: an evaluation is over."""
        self.evaluated_model = evaluated_model
        self._finish_epoch(sums, metrics)

    def should_continue(self, metrics: Mapping[str, float]) -> bool:
        """Local: the server ends epochs alone, and then tells the workers."""
        ask = self.hooks.should_continue
        return ask is None or ask(self.progress.epoch, metrics)

    def keep(self, state: Mapping[str, Any], mid_epoch: bool, is_last: bool) -> None:
        """Local: save; all that is needed is here."""
        super()._save_checkpoint(state, mid_epoch, is_last)

    def _save_checkpoint(self, state: Mapping[str, Any], mid_epoch: bool, is_last: bool = False) -> None:  # noqa: ARG002
        """A save is due after an epoch; it begins when the workers can be asked for their states."""
        self.save_requested = True

    def take_save_request(self) -> bool:
        """Local: whether a save was requested since this was asked last."""
        requested, self.save_requested = self.save_requested, False
        return requested
