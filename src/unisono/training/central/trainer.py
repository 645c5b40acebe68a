"""A training through a centre: the server's loop on one rank, a worker's on each of the others; or all of them in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from unisono.comm.exchange_messages import open_exchange
from unisono.comm.single import alone
from unisono.data.loader import Loader, Portion
from unisono.events import Spans
from unisono.model.base import LOOKING, StreamKey
from unisono.model.torch import TorchAdapter
from unisono.training.central.algorithm import Central
from unisono.training.central.arrivals import Arrivals, InOrder, after
from unisono.training.central.calling import Calling
from unisono.training.central.ledger import Ledger
from unisono.training.central.looks import Looks
from unisono.training.central.protocol import MOST_UNITS, most_numbers
from unisono.training.central.replica import Replica
from unisono.training.central.service import Service
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
            group, callers = self._groups(held)
            replica = replica_of(self.adapter, group, self.spans)
            numbers = most_numbers(replica.num_sums, replica.num_tensors)
            if division.is_virtual or division.elastic is not None:
                server: Server = self._virtual(replica) if division.is_virtual else self._door(replica)
                held.callback(server.close)
                self._serve(server, replica)
            else:
                ends = None if callers is None else open_exchange(callers, (0,), numbers, like(replica).nbytes)
                for end in [] if ends is None else ends if isinstance(ends, list) else [ends]:
                    held.callback(end.close)
                if isinstance(ends, Server):
                    self._serve(ends, replica)
                else:
                    calling = Calling(group, ends[0] if ends else None, like(replica), numbers, spans=self.spans)
                    calling.drive(self._worker(replica, division.place(world.rank), calling.out()).run())
        self.progress = Progress(**world.broadcast_object(asdict(self.progress)))
        through.settle()
        return self.progress

    def _groups(self, held: ExitStack) -> tuple[Communicator, Communicator | None]:
        """Collective: those that act as one worker with this rank, and the server with the first of each group."""
        division, world = self.algorithm.division, self.algorithm.world
        if division.size == 1:
            return alone(self.adapter.device), None
        group = world.split(-1 if world.rank == 0 else division.worker(world.rank))
        assert group is not None
        held.callback(group.close)
        callers = world.split(0 if world.rank == 0 or division.place(world.rank) == 0 else None)
        if callers is not None:
            held.callback(callers.close)
        return group, callers

    # ---- worker ----------------------------------------------------------------------------------------------------

    def _worker(self, replica: Replica, shard: int, out: Tensor) -> Worker:
        rule, num_workers = self.algorithm.rule, self.algorithm.division.num_workers
        return worker_of(rule, replica, self.loader, self.settings, self.seed, shard, out, self.told_to_stop, num_workers)

    # ---- server ----------------------------------------------------------------------------------------------------

    def _virtual(self, replica: Replica) -> SimulatedServer:
        work = {}
        for number in range(self.algorithm.division.num_workers):
            worker = self._worker(replica, 0, like(replica))
            worker.told_to_stop = bool  # the server hears of it
            worker.home = replica.home()
            work[number] = worker.run()
        return SimulatedServer(self.algorithm.clock, self.seed, work)

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

    def _serve(self, server: Server, replica: Replica) -> None:
        through, plan = self.algorithm, self.loader.plan
        ledger = Ledger(plan.steps_per_epoch, self.goals.num_epochs, through.rule.waits_for_all)
        if self.restored is not None:
            self.restored.after_start(through.comm, self.adapter, through)
        centre, statistics = self._centre(replica)
        service = Service(
            through.rule,
            centre,
            statistics,
            ledger,
            lambda step: lr_of(self.settings(step)),
            replica.num_sums,
            server.room,
            expected=through.division.num_workers,
            certain=0 if through.division.elastic is not None else through.division.num_workers,
        )
        through.service = service
        sums, waits, num_lines, anew = EpochSums(self.in_training), Waits(), 0, ""
        if self.restored is not None:
            num_lines, anew = self._take_up(self.restored.trainer, service, sums, waits)
            self.restored = None
        if through.replay is not None:
            server = InOrder(server, after(through.replay, num_lines), service.is_of_consequence)
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
        self.unfinished = {} if self.progress.step_in_epoch == 0 else serving.sums.values()

    def _centre(self, replica: Replica) -> tuple[Centre, Tensor]:
        """The centre and its statistics: the model of the server, or, where virtual workers use that too, a home beside theirs."""

        def optimise(gradient: Tensor, uses: Any) -> None:
            replica.gradient.copy_(gradient)
            self.adapter.apply_gradients(self.settings(centre.step)[""], 1.0, uses)

        if not self.algorithm.division.is_virtual:
            centre = Centre(replica.values, optimise)
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
        held, num_lines = self.algorithm.held, int(left["num_lines"])
        assert held is not None
        if left["plan"] != self._plan:
            service.ledger.num_done = service.ledger.next_unit = self.progress.step = self.progress.epoch * self._units
            return num_lines, "it went on with other batches"
        sums.restore(left["sums"])
        waits.restore(left["waits"])
        if left["pending"] is not None:
            self.pending = EpochSums(self.in_training)
            self.pending.restore(left["pending"])
        division = self.algorithm.division
        if not service.restore(held, range(division.num_workers) if division.elastic is None else ()):
            self.tell(
                "warning: the workers are others than before; they begin with the centre, and what those had is dealt out again"
            )
            return num_lines, "it went on with other workers"
        ledger = service.ledger
        has_ended = not (ledger.leases or ledger.returned or ledger.is_over)
        return num_lines, "it went on after its end, with more epochs" if has_ended else ""

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
