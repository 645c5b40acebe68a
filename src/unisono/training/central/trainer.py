"""A training through a centre: the server's loop on one rank, a worker's on each of the others; or all of them in one process."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from unisono.algorithms.allreduce import ALGORITHM as AllReduce
from unisono.algorithms.base import Settings
from unisono.algorithms.central.rule import Centre, GroupSettings, Rule
from unisono.comm.base import Communicator
from unisono.comm.exchange import Server
from unisono.comm.single import alone
from unisono.data.loader import Loader, Portion
from unisono.errors import TrainingFailed
from unisono.events import Spans
from unisono.model.base import LOOKING, StreamKey
from unisono.model.torch import TorchAdapter
from unisono.training.central.algorithm import Central
from unisono.training.central.arrivals import Arrivals, InOrder, after, callers_in
from unisono.training.central.calling import Calling
from unisono.training.central.ends import Ends, open_ends
from unisono.training.central.ledger import Ledger
from unisono.training.central.looks import Looks
from unisono.training.central.protocol import MOST_UNITS, most_numbers
from unisono.training.central.replica import Replica
from unisono.training.central.servers import Follower, LeadingService, room_of_follower
from unisono.training.central.service import Room, Service
from unisono.training.central.serving import Ended, Serving
from unisono.training.central.simulated import SimulatedServer
from unisono.training.central.waits import Waits
from unisono.training.central.worker import Worker
from unisono.training.epoch_sums import EpochSums
from unisono.training.evaluation import evaluate
from unisono.training.progress import Progress
from unisono.training.trainer import Trainer, lr_of

DOOR = "exchange.json"
"""In the run directory: where the server is and what opens it, for the user alone (comm/exchange_keys.py)."""
OTHER_WORKERS = "it went on with other workers"
STATE_ROOM, STATE_BYTES = 8, 64 * 2**20
"""A worker's state may be so many times as large as its weights, and so many bytes more."""


@dataclass
class CentralTrainer(Trainer):
    """One rank's part. What it shares with the trainer of algorithms in step: goals, the end of an epoch, saves, what it tells."""

    adapter: TorchAdapter
    algorithm: Central
    arrivals: Path | None = None
    """Where the server writes down the order of calls."""
    pending: EpochSums | None = None
    """Of an epoch whose evaluation was cut short."""
    save_asked: bool = False
    silence_s: float = 10.0
    host: str = "127.0.0.1"
    """The address at which workers that come and go reach the server."""
    show_centre: Callable[[], None] = field(default=lambda: None)
    """Local: make the model of this process the centre, which virtual workers use too."""

    def run(self) -> Progress:
        """Collective, blocking: train to the end, whatever ends it."""
        through, division, world = self.algorithm, self.algorithm.division, self.algorithm.world
        self.progress.monitor = self.goals.monitor
        self._began = perf_counter() - self.progress.wall_s
        through.start()
        with ExitStack() as held:
            group = self._group(held)
            replica = replica_of(self.adapter, group, self.spans)
            if self.restored is not None and division.serves(world.rank):
                self.restored.after_start(through.comm, self.adapter, through)
            if division.size > 1:
                ends = open_ends(world, division, replica.values, like(replica), self._numbers(replica), held)
                if ends.server is not None and world.rank == 0:
                    self._serve(ends.server, replica, ends)
                elif ends.server is not None:
                    self._follow(ends.server, replica, ends)
                else:
                    calling = Calling(group, ends.caller, like(replica), self._numbers(replica), spans=self.spans)
                    calling.drive(self._worker(replica, division.place(world.rank), calling.out()).run())
            else:
                server: Server = self._virtual(replica) if division.is_virtual else self._door(replica)
                held.callback(server.close)
                self._serve(server, replica)
        limit_s = None if self.goes_on is None else math.inf  # as in `Trainer._ask_goes_on`: the server may wait for an answer
        self.progress = Progress(**world.broadcast_object(asdict(self.progress), timeout_s=limit_s))
        through.settle()
        return self.progress

    def _group(self, held: ExitStack) -> Communicator:
        """Collective: those that act as one worker with this rank; a server is alone."""
        division, world = self.algorithm.division, self.algorithm.world
        if division.size == 1:
            return alone(self.adapter.device)
        group = world.split(-1 - world.rank if division.serves(world.rank) else division.worker(world.rank))
        assert group is not None
        held.callback(group.close)
        return group

    def _numbers(self, replica: Replica) -> int:
        return most_numbers(replica.num_sums, replica.num_tensors)

    # ---- worker ----------------------------------------------------------------------------------------------------

    def _worker(self, replica: Replica, shard: int, out: Tensor) -> Worker:
        rule, num_workers = self.algorithm.rule, self.algorithm.division.num_workers
        return worker_of(rule, replica, self.loader, self.settings, self.seed, shard, out, self.told_to_stop, num_workers)

    # ---- server ----------------------------------------------------------------------------------------------------

    def _virtual(self, replica: Replica) -> SimulatedServer:
        work = {}
        for number in self._virtual_workers():
            worker = self._worker(replica, 0, like(replica))
            worker.told_to_stop = bool  # the server hears of it
            worker.home = replica.home()
            work[number] = worker.run()
        return SimulatedServer(self.algorithm.clock, self.seed, work)

    def _virtual_workers(self) -> Collection[int]:
        """Local: all; where a run of workers that came and went is repeated, those that are there and those that will yet come."""
        through = self.algorithm
        if through.division.elastic is None:
            return range(through.division.num_workers)
        assert through.replay is not None
        num_lines = 0 if self.restored is None else int(self.restored.trainer["num_lines"])
        return callers_in(after(through.replay, num_lines)) | self._known()

    def _known(self) -> set[int]:
        held = self.algorithm.held
        return set() if held is None else {int(number) for number in held["members"]}

    def _door(self, replica: Replica) -> Server:
        """Local: for workers that come and go."""
        from unisono.comm.exchange_zmq import ZmqServer

        assert self.arrivals is not None
        number = 0 if self.restored is None else int(self.restored.trainer["next_number"])
        server = ZmqServer(
            self.arrivals.parent / DOOR,
            max_vector_bytes=STATE_ROOM * like(replica).nbytes + STATE_BYTES,
            host=self.host,
            first_number=number,
            silence_s=self.silence_s,
            say=self.tell,
        )
        self.tell(f"waiting for workers at {server.open()}: unisono join {self.arrivals.parent}")
        return server

    def _follow(self, server: Server, replica: Replica, ends: Ends) -> None:
        """Be another server than the first."""
        service = self._service(room_of_follower(server), replica, ends)
        if self.restored is not None:
            self._go_on(self.restored.trainer, service)
            self.restored = None
        Follower(server, service, replica.part, self.told_to_stop, self.spans).run()

    def _service(self, room: Room, replica: Replica, ends: Ends | None) -> Service:
        through, plan = self.algorithm, self.loader.plan
        division, rank = through.division, through.world.rank
        if division.servers > 1:
            assert ends is not None
            if through.rule.optimises_centre:
                replica.part.narrow(ends.cut.where(rank))
            if through.held is not None:
                through.held = ends.cut.share_of_state(through.held, rank)
        centre, statistics = self._centre(replica, None if ends is None else ends.cut.where(rank))
        ledger = Ledger(plan.steps_per_epoch, self.goals.num_epochs, through.rule.waits_for_all)
        certain = 0 if division.elastic is not None else division.num_workers

        def lr(step: int) -> float:
            return lr_of(self.settings(step))

        if ends is not None and ends.orders is not None:
            return LeadingService(
                through.rule, centre, statistics, ledger, lr, replica.num_sums, room, division.num_workers, certain,
                orders=ends.orders, cut=ends.cut, part=replica.part,
            )  # fmt: skip
        own = statistics if rank == 0 else statistics[:0]
        return Service(through.rule, centre, own, ledger, lr, replica.num_sums, room, division.num_workers, certain)

    def _serve(self, server: Server, replica: Replica, ends: Ends | None = None) -> None:
        through = self.algorithm
        service = self._service(server.room, replica, ends)
        through.service = service
        told_to_stop = self.told_to_stop
        self.told_to_stop = lambda: service.told_to_stop or told_to_stop()
        if not through.division.is_virtual:
            self.show_centre = service.show
        sums, waits, num_lines, anew = EpochSums(self.in_training), Waits(), 0, ""
        if self.restored is not None:
            num_lines, anew = self._take_up(self.restored.trainer, service, sums, waits)
            self.restored = None
        if through.replay is not None:
            lines = after(through.replay, num_lines)
            server = InOrder(server, lines, service.is_of_consequence, lambda: not service.awaits_workers)
        in_background = not through.division.is_virtual and through.replay is None
        looks: Looks[Ended] = Looks(through.make_look(), self._evaluate, in_background)
        with ExitStack() as held:
            held.callback(looks.close)
            arrivals = None if self.arrivals is None else Arrivals(self.arrivals, num_lines, anew)
            if arrivals is not None:
                held.callback(arrivals.close)
            serving = Serving(self, server, service, looks, arrivals, sums, waits)
            serving.run()
        self.show_centre()
        service.close()
        self.unfinished = {} if self.progress.step_in_epoch == 0 else serving.sums.values()

    def _centre(self, replica: Replica, where: slice | None) -> tuple[Centre, Tensor]:
        """The centre and its statistics: the model of the server, or its slice of that; where virtual workers use the model too, a
        home beside theirs."""
        stretch = slice(None) if where is None else where

        def optimise(gradient: Tensor, uses: Any) -> None:
            assert self.algorithm.rule.optimises_centre
            replica.gradient[stretch].copy_(gradient)
            is_finite = self.adapter.apply_gradients(self.settings(centre.step)[""], 1.0, uses)
            if not is_finite and self.algorithm.division.servers > 1:
                raise TrainingFailed(
                    "a sum of gradients is not finite at one server of several, which alone cannot leave it out (--servers); lower "
                    "the learning rate, or use one server"
                )

        if not self.algorithm.division.is_virtual:
            centre = Centre(replica.values[stretch], optimise)
            return centre, replica.statistics
        home = replica.home()

        def optimise_at_home(gradient: Tensor, uses: Any) -> None:
            replica.move_in(home)
            optimise(gradient, uses)
            replica.move_out(home)

        self.show_centre = lambda: replica.move_in(home)
        centre = Centre(home.values, optimise_at_home)
        return centre, home.statistics

    def _take_up(self, left: Mapping[str, Any], service: Service, sums: EpochSums, waits: Waits) -> tuple[int, str]:
        """Local: what an earlier life has left. Gives the lines of the record of calls that belong to it, and why it cannot be
        repeated from there on, if so."""
        if left["plan"] == self._plan:
            sums.restore(left["sums"])
            waits.restore(left["waits"])
            if left["pending"] is not None:
                self.pending = EpochSums(self.in_training)
                self.pending.restore(left["pending"])
        anew = self._go_on(left, service)
        if anew == OTHER_WORKERS:
            self.tell(
                "warning: the workers are others than before; they begin with the centre, and what those had is dealt out again"
            )
        return int(left["num_lines"]), anew

    def _go_on(self, left: Mapping[str, Any], service: Service) -> str:
        """Local: every server's part of that."""
        held, ledger, division = self.algorithm.held, service.ledger, self.algorithm.division
        assert held is not None
        if left["plan"] != self._plan:
            ledger.num_done = ledger.next_unit = self.progress.step = self.progress.epoch * self._units
            return "it went on with other batches"
        if division.elastic is None:
            callers: Collection[int] = range(division.num_workers)
        else:
            callers = self._known() if division.is_virtual else ()
        came_and_went = division.elastic is not None and not division.is_virtual
        if not service.restore(held, callers) or came_and_went:
            return OTHER_WORKERS
        has_ended = not (ledger.leases or ledger.returned or ledger.is_over)
        return "it went on after its end, with more epochs" if has_ended else ""

    @property
    def _units(self) -> int:
        return self.loader.plan.steps_per_epoch

    def _evaluate(self, look: TorchAdapter) -> dict[str, float] | None:
        if self.validation is None:
            return {}
        look.seed(StreamKey(self.seed, (self.progress.epoch + 1) * self._units, 0, LOOKING))
        return evaluate(
            self.algorithm.comm, look, self.validation, self.metrics, self.evaluation_batch, "val_", None, self.told_to_stop
        )

    # ---- what the serving asks for ---------------------------------------------------------------------------------

    def wall_s(self) -> float:
        """Local: since the run began, earlier lives included."""
        return perf_counter() - self._began

    def tell(self, text: str) -> None:
        """Local: to all who watch."""
        self._say(text)

    def end_of_epoch(self, sums: EpochSums, metrics: Mapping[str, float], looked_at: nn.Module) -> None:
        """Local: an evaluation is over."""
        self.looked_at = looked_at
        self._end_of_epoch(sums, metrics)

    def _ask_goes_on(self, metrics: Mapping[str, float]) -> bool:
        """Local: who serves ends epochs alone, and then tells the workers."""
        assert self.goes_on is not None
        return self.goes_on(self.progress.epoch, metrics)

    def keep(self, state: Mapping[str, Any], mid_epoch: bool, is_last: bool) -> None:
        """Local: save; all that is needed is here."""
        super()._keep(state, mid_epoch, is_last)

    def _keep(self, state: Mapping[str, Any], mid_epoch: bool, is_last: bool = False) -> None:  # noqa: ARG002
        """A save is due after an epoch; it begins when the workers can be asked for their states."""
        self.save_asked = True


def replica_of(adapter: TorchAdapter, group: Communicator, spans: Spans | None = None) -> Replica:
    """Collective over a group of processes that act as one worker."""
    inside = AllReduce(group, adapter, AllReduce.Options(), spans)
    inside.start()
    return Replica(adapter, inside)


def worker_of(
    rule: Rule,
    replica: Replica,
    loader: Loader,
    settings: Callable[[int], Settings],
    seed: int,
    shard: int,
    out: Tensor,
    told_to_stop: Callable[[], bool],
    num_workers: int = 1,
) -> Worker:
    """Local: a worker of this process."""
    units = loader.plan.steps_per_epoch
    most_units = min(MOST_UNITS, max(1, units // num_workers))

    def read(unit: int) -> Portion:
        return loader.portion(*divmod(unit, units))

    def settings_at(step: int) -> GroupSettings:
        return settings(step)[""]

    return Worker(rule, replica, read, settings_at, seed, shard, out, told_to_stop, most_units=most_units)


def like(replica: Replica) -> Tensor:
    """Local: a vector like those that travel: weights, then running statistics."""
    num = replica.values.numel() + replica.statistics.numel()
    return torch.empty(num, dtype=replica.values.dtype, device=replica.values.device)
