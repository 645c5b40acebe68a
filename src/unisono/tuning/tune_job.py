"""One job of a study, from its options to its results: the process that coordinates, and the processes that only supervise
workers."""

from __future__ import annotations

import selectors
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from unisono.cluster.gpus import assign_gpus, num_found
from unisono.cluster.machine import affinity
from unisono.cluster.machine.worker_threads import threads_from_environment
from unisono.cluster.resolve import NO_OVERRIDES, current_topology, environment
from unisono.cluster.topology import Topology
from unisono.errors import STOPPED_CODE, CannotWrite, TrainingFailed, UsageError
from unisono.observe.bar import Bar
from unisono.stopping.deadline import TIME_LIMIT, deadline_of_this_process
from unisono.stopping.stop_request import StopRequest, raise_stop
from unisono.task.averages import KEY, recorded_averages
from unisono.tuning.report.document import write_report
from unisono.tuning.search.prefetch import make_proposals
from unisono.tuning.search.search import Search
from unisono.tuning.search.space import space_from_dict
from unisono.tuning.search_progress import DRAW_EVERY_S, SearchProgress, describe_counts
from unisono.tuning.study.kept_models import KeptModels
from unisono.tuning.study.result import describe_best, load_study, write_best
from unisono.tuning.study.store import READ_EVERY_S, Store, machine, new_job
from unisono.tuning.study.study_file import ABOUT, make_study, read_study, space_of, weights_of
from unisono.tuning.study.study_options import NUM_TRIALS, TuneConfig, choose_num_trials, choose_search, description_of
from unisono.tuning.study.trial_plan import Objective, Plan, objectives_of
from unisono.tuning.workers.all_workers import LOST, AllWorkers, receive_messages, refuse_strangers, supervise
from unisono.tuning.workers.block_layout import Layout, layout_of
from unisono.tuning.workers.coordinator import Coordinator
from unisono.tuning.workers.part_command import part_command
from unisono.tuning.workers.worker_slots import WorkerSlots

FIND_COORDINATOR_S = 600.0
"""How long a supervisor looks for the coordinator."""
SWITCH_S = 0.0005
"""How long the thread that makes proposals may keep the one that answers blocks waiting."""
SAVE_GUESS_S = 15.0
TICK_S = 0.2


def run_tune_job(config: TuneConfig, num_ranks: int | None, columns: int | None) -> int:
    """Runs one job of a study and returns its exit code. Local, or collective inside a job of several processes; blocking."""
    at = current_topology()
    is_alone = at.launcher == "local"
    if num_ranks is not None and not is_alone and num_ranks != at.world_size:
        raise UsageError(f"-n {num_ranks} contradicts the launcher, which started {at.world_size} processes; leave out -n")
    num_trials = config.trials or (None if config.joins or (Path(config.out) / ABOUT).exists() else NUM_TRIALS)
    layout = layout_of(
        (1 if num_ranks is None else num_ranks) if is_alone else at.world_size, config.workers, config.parallel_folds, num_trials
    )
    if not is_alone and at.address is None:
        from unisono.comm.engines.mpi import complete_topology

        at = complete_topology(at)
    if not is_alone and at.world_size > 1:
        refuse_strangers(at)
    with selectors.DefaultSelector() as selector:
        if at.global_rank:
            place = _place(at, at.local_rank, at.local_size, config.threads)
            gpus = {at.global_rank: place["our_gpus"]}
            slots = WorkerSlots(_work_spec(config), {at.global_rank: None}, selector, gpus, describes_task=False)
            return supervise(slots, at.global_rank, place, at, selector, FIND_COORDINATOR_S)
        bar = None if config.quiet else Bar(sys.stdout, columns, every_s=DRAW_EVERY_S)
        return _CoordinatorProcess(config, layout, at, is_alone, bar, selector).run()


def _place(at: Topology, local_rank: int, local_size: int, threads: int | None) -> dict[str, Any]:
    """The node, GPUs and threads of one rank. Local."""
    seen, ours = assign_gpus(environment(), local_rank, local_size, num_found(), NO_OVERRIDES)
    node = f"node {at.node_rank}" if at.node_rank is not None else at.node_name or machine()
    return {"node": node, "gpus": seen, "our_gpus": ours, "threads": threads or threads_from_environment()}


@dataclass
class _CoordinatorProcess:
    """The process of rank 0, which coordinates the job."""

    config: TuneConfig
    layout: Layout
    at: Topology
    is_alone: bool
    bar: Bar | None
    """None to say nothing."""
    selector: selectors.BaseSelector
    code: int = 0
    """The exit code of all processes."""

    def run(self) -> int:
        """Starts the workers, loads the task and runs the search; returns the exit code."""
        if self.config.joins:
            read_study(Path(self.config.out))
        own = self._own_ranks()
        with ExitStack() as held, StopRequest() as stop:
            if self.bar is not None:
                held.callback(self.bar.close)
            held.callback(sys.setswitchinterval, sys.getswitchinterval())
            sys.setswitchinterval(SWITCH_S)
            cpus = {rank: mine for rank, (mine, _) in own.items()}
            gpus = {rank: place["our_gpus"] for rank, (_, place) in own.items()}
            slots = WorkerSlots(_work_spec(self.config), cpus, self.selector, gpus)
            address = "127.0.0.1" if self.is_alone or self.at.one_node or self.at.address is None else self.at.address
            workers = AllWorkers(slots, {rank: place for rank, (_, place) in own.items()}, self.selector, self.at, address)
            held.push(
                lambda kind, *_: workers.close(_exit_code_of(kind) or self.code)
            )  # the other ranks end likewise, and without a word
            if not self.is_alone and self.at.world_size > 1:
                workers.listen()
            slots.start_fork_server()
            early = []  # what supervisors say before we know the task ourselves
            with self._temporary_line("loading the task and its data ..."):
                while not slots.is_loaded and not stop.requested():
                    early += [one for one in receive_messages(self.selector, TICK_S) if one[0] >= 0]
            self.code = self._search(slots, workers, own, early, stop, held) if slots.is_loaded else STOPPED_CODE
            if self.config.called_unix_s is not None:
                raise_stop(stop.reason())
            return self.code

    def _search(
        self, slots: WorkerSlots, workers: AllWorkers, own: Mapping[int, Any], early: list[Any], stop: StopRequest, held: ExitStack
    ) -> int:
        """Makes or joins the study, and runs its trials until the end or a stop; returns the exit code."""
        config, folder = self.config, Path(self.config.out)
        about = {**slots.about, "weights": weights_of(folder, slots.about), "space": space_of(folder, slots.about)}
        objectives = objectives_of(config.metrics, about)
        space = None if about["space"] is None else space_from_dict(about["space"])
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
            about["samples"],
        )
        directions = [one.higher_is_better for one in objectives]
        name = choose_search(config, space, config.trials or NUM_TRIALS, self.layout.num_blocks)
        # Refuses what cannot be, before anything is made; the one that is used needs to know the first trial.
        Search(space, name, directions, config.seed, config.prune, plan.num_steps)
        known = make_study(folder, description_of(config, about, objectives, space), config.accept_changes)
        if space is not None:  # an older study keeps what its metrics mean
            plan = replace(plan, options={**plan.options, KEY: dict(recorded_averages(known))})
        self._say(str(self.layout))
        for text in about["warnings"]:
            self._say(f"warning: {text}")
        for one in known.get("accepted", ()):
            if (one["sources"], one.get("captured")) == (about["sources"], about.get("captured")):
                what = "files of the task have" if space is not None else "the objective has"
                self._say(f"warning: {what} changed since the study was made: {'; '.join(one['changes'])}")
        num_trials, said = choose_num_trials(config, space, load_study(folder)[1].num_wanted(known["trials"]))
        for text in said:
            self._say(text)
        store = Store(folder, known, num_trials, new_job(), read_every_s=READ_EVERY_S)
        store.refresh()
        name = choose_search(config, space, num_trials, self.layout.num_blocks)
        if name != config.search:
            self._say(f"search: {name}, chosen automatically (--search chooses another)")
        store.record_join(
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
        pending = store.claim_next()
        search = Search(
            space,
            name,
            directions,
            config.seed if pending is None else (config.seed + 1_000_003 * pending.number + 7919 * pending.attempt) % 2**32,
            config.prune,
            plan.num_steps,
            num_trials,
            name != config.search,
            (about["first"] or None) if pending is not None and pending.number == 0 and pending.values is None else None,
            is_sequential=self.layout.num_blocks == 1,
        )
        progress = SearchProgress(self.bar, store.study, objectives, num_trials)
        progress.skip_ended(list(store.study.trials.values()))
        models = KeptModels(folder, directions, progress)
        observer = progress if space is None else models  # an objective leaves no models, and may take no time at all
        for trial in store.study.trials.values():
            search.add_known_trial(trial)
            observer.trial_ended(trial)
        if store.study.trials:
            self._say(f"resumed {folder}: {describe_counts(store.study)}")
        for text in store.losses:
            self._say(f"warning: {text}")
        wake, woken = socket.socketpair()
        held.callback(wake.close)
        held.callback(woken.close)
        for one in (wake, woken):
            one.setblocking(False)
        self.selector.register(woken, selectors.EVENT_READ, lambda: _read_wakeups(woken))
        proposals = make_proposals(search, self.layout.num_blocks, lambda: _wake(wake))
        held.callback(proposals.close)
        coordinator = Coordinator(plan, self.layout, workers, store, search, proposals, observer, partial(part_command, plan))
        if pending is not None:  # which no other job has, so that none draws the same points
            coordinator.trial_queue.put_back(pending)
        reason = "failed"
        try:
            if num_trials and store.num_open():
                for rank in own:
                    slots.start(rank)
                for rank, message in early:
                    if message["is"] == LOST:
                        coordinator.on_ranks_lost([rank])
                    else:
                        coordinator.on_message(rank, message)
                self._loop(coordinator, workers, store, progress, models, stop)
            reason = coordinator.stop_reason or "done"
        finally:
            store.record_leave(reason)
        if coordinator.fatal_reason is not None:
            raise CannotWrite(f"{coordinator.fatal_reason}; finished trials are in {folder}: run the same command to resume")
        models.remove_weights()
        return self._finish(store, objectives, plan, stop)

    def _loop(
        self,
        coordinator: Coordinator,
        workers: AllWorkers,
        store: Store,
        progress: SearchProgress,
        models: KeptModels,
        stop: StopRequest,
    ) -> None:
        """Passes messages to the coordinator until all trials have ended, or a stop has been carried out."""
        deadline = deadline_of_this_process(self.config.time_limit_s, self.config.called_unix_s)
        deadline.estimate_save(min(SAVE_GUESS_S, 0.05 * (self.config.time_limit_s or 1e9)))
        for text in (deadline.note, deadline.describe()):
            if text:
                self._say(text)
        while store.num_open() and not (coordinator.is_stopping and coordinator.is_idle):
            for rank, message in receive_messages(self.selector, coordinator.max_wait_s(TICK_S)):
                if message["is"] == LOST:
                    coordinator.on_ranks_lost([rank])
                elif rank >= 0:
                    coordinator.on_message(rank, message)
            if deadline.stop_requested(stop) and not coordinator.is_stopping:
                progress.say(f"stopping ({stop.reason()}); running trials are saved and go back to the queue")
                coordinator.stop(stop.reason() or "stop requested")
            coordinator.tick()
            workers.flush()
            if late := workers.late_ranks_text():
                progress.say(late)
            models.remove_weights()
            progress.draw(coordinator.num_running)
            if not coordinator.formation.blocks:
                raise TrainingFailed(f"all blocks are lost; finished trials are in {store.folder}: run the same command to resume")

    def _finish(self, store: Store, objectives: Sequence[Objective], plan: Plan, stop: StopRequest) -> int:
        """Writes the report and the best settings, and prints the outcome; returns the exit code. Refuses if no trial has a
        value."""
        folder = store.folder
        store.refresh()
        about = read_study(folder)
        write_report(store.study, about, folder / "report.html")
        best = store.study.best(objectives[0].higher_is_better)
        if best is not None:
            write_best(folder, best, about, objectives)
        is_over = not store.num_open()
        self._say(f"{'done' if is_over else 'stopped'}: {describe_counts(store.study)}; report in {folder / 'report.html'}")
        for text in store.losses:
            self._say(f"warning: {text}")
        if (wanted := store.study.num_wanted(about["trials"])) > store.num_trials:
            self._say(f"this job did up to {store.num_trials} of {wanted} trials; for the others: unisono tune --join {folder}")
        if best is not None:
            self._say(describe_best(folder, best, about, objectives, plan.num_parts))
        if not is_over:
            self._say("run the same command to resume")
            if best is None or stop.reason() != TIME_LIMIT or self.config.called_unix_s is None:
                return STOPPED_CODE
        if best is None:
            raise TrainingFailed(f"no trial of {folder} gave a value; the reasons are in {folder / 'report.html'}")
        return 0

    def _own_ranks(self) -> dict[int, tuple[Sequence[int] | None, dict[str, Any]]]:
        """The ranks whose workers are children of this process, with their CPUs and places: all ranks without a launcher, else rank
        0 unless it only coordinates."""
        if not self.is_alone:
            mine = _place(self.at, self.at.local_rank, self.at.local_size, self.config.threads)
            return {} if self.layout.first else {0: (None, mine)}
        count = self.layout.num_ranks - self.layout.first
        threads = self.config.threads or threads_from_environment() or affinity.threads_per_worker(count)
        found: dict[int, tuple[Sequence[int] | None, dict[str, Any]]] = {}
        for index in range(count):
            cpus = affinity.cpu_share(index, count) if threads == affinity.threads_per_worker(count) and count > 1 else None
            place = _place(self.at, index, count, threads)
            found[self.layout.first + index] = (None if cpus is None else sorted(cpus), place)
        return found

    @contextmanager
    def _temporary_line(self, text: str) -> Iterator[None]:
        """Shows a line on a terminal until the block ends."""
        if self.bar is not None:
            self.bar.draw(text, None)
        try:
            yield
        finally:
            if self.bar is not None:
                self.bar.close()

    def _say(self, text: str) -> None:
        """Prints a line, unless this process is silent."""
        if self.bar is not None:
            self.bar.say(text)


def _work_spec(config: TuneConfig) -> dict[str, Any]:
    """Returns the description of the work that every worker gets. Pure."""
    return {**config.work_spec, "workers": config.workers}


def _exit_code_of(error: type[BaseException] | None) -> int:
    """Returns the exit code that stands for an exception. Pure."""
    return 0 if error is None else 2 if issubclass(error, UsageError) else 1


def _wake(sock: socket.socket) -> None:
    """Wakes the loop that waits for this socket; never blocks or fails."""
    try:
        sock.send(b"1")
    except OSError:
        return  # it is full of the same news, or the loop is over


def _read_wakeups(sock: socket.socket) -> Any:
    """Empties the socket that `_wake` writes to; yields no messages."""
    sock.recv(4096)
    yield from ()
