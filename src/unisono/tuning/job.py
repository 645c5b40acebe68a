"""One job of a study, from its options to its results: the process that coordinates, and those that only supervise."""

from __future__ import annotations

import selectors
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unisono.cluster import affinity
from unisono.cluster.deadline import of_this_process
from unisono.cluster.gpus import divide, num_found
from unisono.cluster.resolve import NO_OVERRIDES, environment, here
from unisono.cluster.stop_request import StopRequest
from unisono.cluster.threads import threads_told
from unisono.cluster.topology import Topology
from unisono.errors import CannotWrite, TrainingFailed, UsageError
from unisono.tuning.ahead import Ahead, NothingAhead
from unisono.tuning.config import NUM_TRIALS, TuneConfig, description_of, search_of, trials_of
from unisono.tuning.coordinator import Coordinator
from unisono.tuning.crew import LOST, Workers, ranks_heard, supervise
from unisono.tuning.layout import Layout, layout_of
from unisono.tuning.models import KeptModels
from unisono.tuning.plan import Objective, Part, Plan, objectives_of
from unisono.tuning.progress import Progress, counts
from unisono.tuning.report.document import write_report
from unisono.tuning.result import describe_best, read, write_best
from unisono.tuning.search import Search
from unisono.tuning.seats import Seats
from unisono.tuning.space import space_from
from unisono.tuning.store import LOOK_EVERY_S, Due, Store, machine, new_job
from unisono.tuning.study_file import ABOUT, make_study, read_study

STOPPED_CODE = 75
MEET_S = 600.0
"""How long a supervisor looks for the coordinator."""
SWITCH_S = 0.0005
"""How long the thread that makes proposals may keep the one that answers blocks waiting."""
SAVE_GUESS_S = 15.0
TICK_S = 0.2
ERASE = "\r\x1b[K"


def work_at(config: TuneConfig, num_ranks: int | None, columns: int | None) -> int:
    """Local, or collective inside a job of several processes; blocking: give the exit code."""
    at = here()
    is_alone = at.launcher == "local"
    if num_ranks is not None and not is_alone and num_ranks != at.world_size:
        raise UsageError(f"{num_ranks} ranks were asked for (-n), but {at.world_size} were started; leave it out")
    num_trials = config.trials or (None if config.joins or (Path(config.out) / ABOUT).exists() else NUM_TRIALS)
    layout = layout_of(
        (1 if num_ranks is None else num_ranks) if is_alone else at.world_size, config.workers, config.parallel_folds, num_trials
    )
    if not is_alone and at.address is None:
        from unisono.comm.mpi import completed

        at = completed(at)
    with selectors.DefaultSelector() as selector:
        if at.global_rank:
            place = _place(at, at.local_rank, at.local_size, config.threads)
            gpus = {at.global_rank: place["our_gpus"]}
            seats = Seats(_order_of_all(config), {at.global_rank: None}, selector, gpus, tells=False)
            return supervise(seats, at.global_rank, place, at, selector, MEET_S)
        return _Coordinating(config, layout, at, is_alone, columns, selector).run()


def _place(at: Topology, local_rank: int, local_size: int, threads: int | None) -> dict[str, Any]:
    """Local: what a block must know of one of its ranks."""
    seen, ours = divide(environment(), local_rank, local_size, num_found(), NO_OVERRIDES)
    node = f"node {at.node_rank}" if at.node_rank is not None else at.node_name or machine()
    return {"node": node, "gpus": seen, "our_gpus": ours, "threads": threads or threads_told()}


@dataclass
class _Coordinating:
    """The process of rank 0."""

    config: TuneConfig
    layout: Layout
    at: Topology
    is_alone: bool
    columns: int | None
    selector: selectors.BaseSelector
    code: int = 0
    """By which all processes end."""

    def run(self) -> int:
        if self.config.joins:
            read_study(Path(self.config.out))
        own = self._own_ranks()
        with ExitStack() as held, StopRequest() as stop:
            held.callback(sys.setswitchinterval, sys.getswitchinterval())
            sys.setswitchinterval(SWITCH_S)
            cpus = {rank: mine for rank, (mine, _) in own.items()}
            gpus = {rank: place["our_gpus"] for rank, (_, place) in own.items()}
            seats = Seats(_order_of_all(self.config), cpus, self.selector, gpus)
            address = "127.0.0.1" if self.is_alone or self.at.one_node or self.at.address is None else self.at.address
            workers = Workers(seats, {rank: place for rank, (_, place) in own.items()}, self.selector, self.at, address)
            held.push(
                lambda kind, *_: workers.close(_code_of(kind) or self.code)
            )  # the other ranks end likewise, and without a word
            if not self.is_alone and self.at.world_size > 1:
                workers.listen()
            seats.begin()
            early = []  # what supervisors say before we know the task ourselves
            with self._said_for_now("loading the task and its data ..."):
                while not seats.is_loaded:
                    early += [one for one in ranks_heard(self.selector, TICK_S) if one[0] >= 0]
                    if stop.asked():
                        self.code = STOPPED_CODE
                        return self.code
            self.code = self._search(seats, workers, own, early, stop, held)
            return self.code

    def _search(
        self, seats: Seats, workers: Workers, own: Mapping[int, Any], early: list[Any], stop: StopRequest, held: ExitStack
    ) -> int:
        config, about, folder = self.config, seats.about, Path(self.config.out)
        objectives = objectives_of(config.metrics, about)
        space = None if about["space"] is None else space_from(about["space"])
        plan = Plan(
            objectives,
            config.folds,
            config.repeats,
            config.parallel_folds,
            config.workers,
            about["epochs"],
            config.prune,
            config.attempts,
            config.trial_limit_s,
            config.options,
        )
        if config.prune in ("asha", "median") and objectives[0].metric.startswith("best_"):
            raise UsageError(
                f"--prune {config.prune} compares epochs, and {objectives[0].metric} is known only at the end; use --metric "
                f"{objectives[0].metric.removeprefix('best_')}, or leave --prune out"
            )
        directions = [one.higher_is_better for one in objectives]
        name = search_of(config, space, config.trials or NUM_TRIALS, self.layout.num_blocks)
        # Refuses what cannot be, before anything is made; the one that is used needs to know the first trial.
        Search(space, name, directions, config.seed, config.prune, plan.num_steps)
        known = make_study(folder, description_of(config, about, objectives, space), config.accept_changes)
        self._say(str(self.layout))
        for text in about["warnings"]:
            self._say(f"warning: {text}")
        for one in known.get("accepted", ()):
            if one["sources"] == about["sources"]:
                self._say(f"warning: files of the task have changed since the study was made: {'; '.join(one['changes'])}")
        num_trials, said = trials_of(config, space, read(folder)[1].num_wanted(known["trials"]))
        for text in said:
            self._say(text)
        store = Store(folder, known, num_trials, new_job(), look_every_s=LOOK_EVERY_S)
        store.refresh()
        name = search_of(config, space, num_trials, self.layout.num_blocks)
        if name != config.search:
            self._say(f"searches with {name} (--search)")
        store.enter(
            {
                **asdict(self.layout),
                "num_blocks": self.layout.num_blocks,
                "block_size": self.layout.block_size,
                "command": list(config.command),
                "trials": num_trials,
                "search": name,
                "sources": about["sources"],
            }
        )
        due = store.next_due()
        search = Search(
            space,
            name,
            directions,
            config.seed if due is None else (config.seed + 1_000_003 * due.number + 7919 * due.attempt) % 2**32,
            config.prune,
            plan.num_steps,
            num_trials,
            name != config.search,
            (about["first"] or None) if due is not None and due.number == 0 and due.values is None else None,
        )
        progress = Progress(None if config.quiet else sys.stdout, self.columns, store.study, objectives, num_trials)
        progress.earlier(list(store.study.trials.values()))
        models = KeptModels(folder, directions, progress)
        watcher = progress if space is None else models  # an objective leaves no models, and may take no time at all
        for trial in store.study.trials.values():
            search.remember(trial)
            watcher.trial_ended(trial)
        if store.study.trials:
            self._say(f"goes on with {folder}: {counts(store.study)}")
        for text in store.losses:
            self._say(f"warning: {text}")
        wake, woken = socket.socketpair()
        held.callback(wake.close)
        held.callback(woken.close)
        for one in (wake, woken):
            one.setblocking(False)
        self.selector.register(woken, selectors.EVENT_READ, lambda: _emptied(woken))
        is_planned = name == "grid"
        proposals = NothingAhead() if is_planned else Ahead(search, self.layout.num_blocks, lambda: _wake(wake))
        held.callback(proposals.close)
        coordinator = Coordinator(plan, self.layout, workers, store, search, proposals, watcher, self._order_of(plan))
        if due is not None:  # which no other job has, so that none draws the same points
            coordinator.supply.add(due)
        reason = "failed"
        try:
            if num_trials and store.num_open():
                for rank in own:
                    seats.start(rank)
                for rank, letter in early:
                    if letter["is"] == LOST:
                        coordinator.lost([rank])
                    else:
                        coordinator.heard(rank, letter)
                self._loop(coordinator, workers, store, progress, models, stop)
            reason = coordinator.stop_reason or "done"
        finally:
            store.leave(reason)
        if coordinator.fault is not None:
            raise CannotWrite(f"{coordinator.fault}; what was finished is in {folder}, and the same command goes on")
        models.sweep()
        return self._finish(store, objectives, plan)

    def _loop(
        self, coordinator: Coordinator, workers: Workers, store: Store, progress: Progress, models: KeptModels, stop: StopRequest
    ) -> None:
        deadline = of_this_process(self.config.time_limit_s)
        deadline.save_will_take(min(SAVE_GUESS_S, 0.05 * (self.config.time_limit_s or 1e9)))
        for text in (deadline.note, deadline.describe()):
            if text:
                self._say(text)
        while store.num_open() and not (coordinator.is_stopping and coordinator.is_idle):
            for rank, letter in ranks_heard(self.selector, coordinator.rest_s(TICK_S)):
                if letter["is"] == LOST:
                    coordinator.lost([rank])
                elif rank >= 0:
                    coordinator.heard(rank, letter)
            if deadline.asks(stop) and not coordinator.is_stopping:
                progress.say(f"stops ({stop.why()}); what runs is saved and given back")
                coordinator.stop(stop.why() or "told to stop")
            coordinator.tick()
            workers.flush()
            if late := workers.who_is_late():
                progress.say(late)
            models.sweep()
            progress.draw(coordinator.num_running)
            if not coordinator.formation.blocks:
                raise TrainingFailed(f"all blocks are lost; what was finished is in {store.folder}, and the same command goes on")

    def _finish(self, store: Store, objectives: Sequence[Objective], plan: Plan) -> int:
        folder = store.folder
        store.refresh()
        about = read_study(folder)
        write_report(store.study, about, folder / "report.html")
        best = store.study.best(objectives[0].higher_is_better)
        if best is not None:
            write_best(folder, best, about, objectives)
        is_over = not store.num_open()
        self._say(f"{'done' if is_over else 'stopped'}: {counts(store.study)}; report in {folder / 'report.html'}")
        for text in store.losses:
            self._say(f"warning: {text}")
        if (wanted := store.study.num_wanted(about["trials"])) > store.num_trials:
            self._say(f"this job was asked for {store.num_trials} trials, and the study has {wanted}: unisono tune --join {folder}")
        if best is not None:
            self._say(describe_best(folder, best, about, objectives, plan.num_parts))
        if not is_over:
            self._say("the same command goes on")
            return STOPPED_CODE
        if best is None:
            raise TrainingFailed(f"no trial of {folder} gave a value; {folder / 'report.html'} has their reasons")
        return 0

    def _own_ranks(self) -> dict[int, tuple[Sequence[int] | None, dict[str, Any]]]:
        """The ranks whose workers are our children: alone all, else rank 0, unless it only coordinates."""
        if not self.is_alone:
            mine = _place(self.at, self.at.local_rank, self.at.local_size, self.config.threads)
            return {} if self.layout.first else {0: (None, mine)}
        count = self.layout.num_ranks - self.layout.first
        threads = self.config.threads or threads_told() or affinity.threads_per_worker(count)
        found: dict[int, tuple[Sequence[int] | None, dict[str, Any]]] = {}
        for index in range(count):
            cpus = affinity.share(index, count) if threads == affinity.threads_per_worker(count) and count > 1 else None
            place = _place(self.at, index, count, threads)
            found[self.layout.first + index] = (None if cpus is None else sorted(cpus), place)
        return found

    def _order_of(self, plan: Plan) -> Any:
        def order(due: Due, values: Mapping[str, Any], part: Part, folder: Path) -> dict[str, Any]:
            name = f"fold-{part.fold}" + (f"-start-{part.repeat}" if plan.repeats > 1 else "")
            return {
                "do": "train",
                "number": due.number,
                "values": dict(values),
                "fold": part.fold,
                "repeat": part.repeat,
                "out": str(folder / name),
                "output": str(folder / f"{name}.txt"),
                "asks": plan.prune not in ("none", "wilcoxon"),
                "options": dict(plan.options),
            }

        return order

    @contextmanager
    def _said_for_now(self, text: str) -> Iterator[None]:
        """On a terminal a line that goes again."""
        speaks = self.columns is not None and not self.config.quiet
        if speaks:
            print(text, end="", flush=True)
        try:
            yield
        finally:
            if speaks:
                print(ERASE, end="", flush=True)

    def _say(self, text: str) -> None:
        if not self.config.quiet:
            print(text, flush=True)


def _order_of_all(config: TuneConfig) -> dict[str, Any]:
    """Pure: what all workers must know."""
    return {**config.order, "workers": config.workers}


def _code_of(error: type[BaseException] | None) -> int:
    """Pure: by which code a process ends."""
    return 0 if error is None else 2 if issubclass(error, UsageError) else 1


def _wake(sock: socket.socket) -> None:
    try:
        sock.send(b"1")
    except OSError:
        return  # it is full of the same news, or the loop is over


def _emptied(sock: socket.socket) -> Any:
    sock.recv(4096)
    yield from ()
