"""An elastic job over all generations: which workers are alive and ready, when a new generation begins and when the job ends."""

from __future__ import annotations

import random
import secrets
import selectors
import signal
from time import monotonic, time
from typing import Any

from unisono.errors import UsageError
from unisono.horovod._impl.elastic.blacklist import Blacklist
from unisono.horovod._impl.elastic.driver_service import Service
from unisono.horovod._impl.elastic.elastic_plan import ElasticPlan, used_slots
from unisono.horovod._impl.elastic.elastic_worker import (
    MISTAKE,
    MOST_FALSE_STARTS,
    MOST_FUTILE,
    MOST_WITH_STRANGERS,
    STOP_S,
    TICK_S,
    TOGETHER_S,
    Generation,
    Worker,
    WorkerTable,
    worker_count,
)
from unisono.horovod._impl.elastic.first_generation import FirstStart
from unisono.horovod._impl.elastic.host_discovery import Change, difference
from unisono.horovod._impl.elastic.rank_assignment import Candidate, assign_ranks
from unisono.horovod._impl.elastic.stragglers import STALLED, straggler_limit_s, stuck_members, stuck_message
from unisono.horovod._impl.elastic.waiting_limits import WaitingLimits
from unisono.horovod._impl.elastic.worker_environment import ADDED, REMOVED, DriverAddress, worker_environment
from unisono.horovod._impl.elastic.worker_hosts import Hosts, own_name
from unisono.horovod._impl.launching.host_slots import is_here
from unisono.launch.orphans import OrphanGuard
from unisono.launch.output import LauncherOutput
from unisono.launch.rank_process import RankProcess
from unisono.launch.signals import SignalInbox
from unisono.launch.world import STOP_SIGNALS, World


class ElasticJob(World):
    """The state machine of an elastic job. `run` blocks until the job is over. All state changes in its thread."""

    def __init__(
        self,
        plan: ElasticPlan,
        selector: selectors.BaseSelector,
        inbox: SignalInbox,
        orphan_guard: OrphanGuard,
        console: LauncherOutput,
        hosts: Hosts,
        secret: str,
    ) -> None:
        self._processes: list[RankProcess] = []
        super().__init__(self._processes, selector, inbox, orphan_guard, console, "continue", self._refuse_revival)
        self._plan = plan
        self._hosts = hosts
        self._secret = secret
        self._service = Service(selector, secret, plan.num_proc, self._on_worker_message)
        self._blacklist = Blacklist(plan.cooldown_range, random.random)
        self._available: dict[str, int] = {} if plan.discovery_script else dict(plan.hosts)
        self._was_told_hosts = False
        self._is_blind = False
        """Whether the discovery script fails."""
        self._workers = WorkerTable()
        """The workers that are alive."""
        self._num_started = 0
        self._now = Generation()
        self._num_generations = 0
        self._num_false_starts = 0
        self._num_futile = 0
        """Generations since the last commit that failed although no worker died."""
        self._last_reason = ""
        """The reason of the end of a generation that was printed last."""
        self._state_exists = False
        self._has_committed = False
        self._finishing = False
        """Whether a worker has come to the end of the program."""
        self._over = False
        self._limits = WaitingLimits(plan.min_num_proc, plan.elastic_timeout_s, plan.start_timeout_s, waits_since=monotonic())
        self._announced_at = 0.0
        self._invited: set[int] = set()
        """The newcomers that were announced to the present generation."""
        self._after(0.0, self._wake_at_intervals)

    # ---- what comes from outside -------------------------------------------------------------------------------------

    def note_hosts(self, change: Change) -> None:
        """Takes a new answer of the discovery script. Raises `UsageError` if the script has never answered. Local."""
        if change.hosts is None:
            if not self._was_told_hosts:
                raise UsageError(
                    f"the first call of the host discovery script failed (--host-discovery-script): {change.problem}; run the "
                    "script by hand and correct it"
                )
            self._is_blind = True
            self._console.say(f"the host discovery script failed: {change.problem}; the hosts stay as they were")
            return
        if self._is_blind:
            self._is_blind = False
            self._console.say("the host discovery script works again")
        before, self._available = self._available, dict(change.hosts)
        is_first, self._was_told_hosts = not self._was_told_hosts, True
        if not is_first and (words := difference(before, self._available)):
            self._console.say(f"the slots of the hosts have changed: {words}")
        for worker in self._workers.values():
            worker.leaving = worker.slot >= self._available.get(worker.host, 0)
        for worker in self._workers.surplus(self._plan.most):  # somebody came in their place while their host was gone
            worker.leaving = True
        if any(worker.leaving for worker in self._workers.members_of(self._now)):
            self._announce_hosts(REMOVED)

    def kill(self) -> None:
        """Kills all workers, and starts no others. Local, not blocking."""
        self._over = True
        super().kill()

    def close(self) -> None:
        """Closes all connections. Local."""
        self._service.close()

    def _on_worker_message(self, number: int, message: Any) -> None:
        """Takes in what a worker reports: ready, joined, synced, committed, finished or failed; others are ignored."""
        worker = self._workers.get(number)
        if worker is None:
            return
        match message:
            case ("ready",):
                worker.ready = True
                worker.finished = False
                worker.ready_at = monotonic()
                if worker.generation == self._now.number:
                    self._cancel_generation()
            case ("joined", int(generation)) if generation == self._now.number:
                self._now.joined.add(number)
                worker.has_joined = True
                if len(self._now.joined) == len(self._now.members):
                    self._num_false_starts = 0
            case ("synced", int(generation)):
                worker.has_state = self._state_exists = True
                worker.finished = False  # a program may train twice
                if generation == self._now.number:  # it may not have listened before
                    self._invited = set()
                    if any(one.leaving for one in self._workers.members_of(self._now)):
                        self._announce_hosts(REMOVED)
            case ("committed", int(generation)) if generation == self._now.number:
                self._now.committed = self._has_committed = True
                self._num_futile = 0
                self._limits.on_commit()
                for one in self._workers.members_of(self._now):
                    self._blacklist.on_commit(one.host, one.number)
            case ("finished", int()):
                worker.finished = True
            case ("failed", int(generation), str(reason)) if generation == self._now.number:
                self._now.why = self._now.why or reason
                self._now.stalled |= STALLED in reason

    # ---- the world's turns -------------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        return (self._over or self._stopped) and super()._is_over()

    def _forward(self, signum: signal.Signals) -> None:
        super()._forward(signum)
        if signum in STOP_SIGNALS:
            self._code = self._code or 128 + signum
            self._after(STOP_S, self._terminate)

    def _react_to_exit(self, rank: RankProcess) -> None:
        worker = self._workers.pop(rank.rank, None)
        if worker is None:
            return
        self._service.forget(worker.number)
        was_member = worker.generation == self._now.number >= 0 and not worker.dismissed
        if self._over or self._stopped:
            return
        assert rank.code is not None
        leaves = worker.dismissed or worker.leaving
        # A newcomer that ends before it has met the others knows nothing of their end.
        is_early = self._num_generations > 0 and worker.generation < 0
        if not rank.code and (leaves or self._finishing or not is_early):
            self._finishing |= worker.finished or not leaves
            return
        # A member that fails after another one was lost fails because of that, unless it was killed itself.
        caused = was_member and self._now.lost is not None and rank.killed_by is None
        in_vain = was_member and self._now.lost is None and not self._now.committed
        if was_member:
            self._now.lost = self._now.lost or worker
            self._cancel_generation()
        if worker.leaving:
            self._console.say(f"{worker}, whose slot was removed, {worker.exit_text}")
            return
        self._limits.on_worker_lost(worker.generation >= 0, in_vain, monotonic())
        if self._finishing:
            if was_member or not self._num_generations:
                self._code = self._code or rank.code
            self._console.say(f"{worker} {worker.exit_text} after other workers had finished")
            return
        if rank.code == MISTAKE and not self._state_exists:
            self._end_job(f"{worker} {worker.exit_text}, which means a usage error, so a new worker would fail too", MISTAKE)
            return
        # Shells, ssh and srun tell of a signal by a code.
        killed = rank.code in (128 + signal.SIGKILL, 128 + signal.SIGTERM)
        verdict = None if caused else self._blacklist.on_failure(worker.host, self._num_started - 1, killed, monotonic())
        left = self._workers.after_loss(self._now, self._plan.min_num_proc, self._state_exists, self._has_committed)
        self._console.say(f"{worker} {worker.exit_text}{'' if rank.code else ' before it met the others'}; {left}")
        if verdict is not None:
            self._console.say(verdict)

    def _after_events(self) -> None:
        if self._over or self._stopped:
            return
        self._dismiss()
        if self._finishing and not (self._workers.members_of(self._now) if self._num_generations else self._workers):
            self._over = True
            for worker in self._workers.values():  # started in vain
                worker.process.send(signal.SIGTERM)
                self._after(STOP_S, self.kill)
            return
        self._start_workers()
        if not self._over:
            self._begin_generation_when_ready()
            self._invite()
        if not self._over:
            self._end_if_impossible()

    def _dismiss(self) -> None:
        """Dismisses workers that wait for a rank and will not get one."""
        for worker in self._workers.values():
            is_new = worker.generation != self._now.number
            # While others end, one that has the state is needed no more, and one that never got it has nothing to do.
            is_idle = self._finishing and (
                (is_new and self._workers.members_of(self._now)) or (self._state_exists and not self._workers.state_holders())
            )
            goes = worker.leaving and (self._finishing or not self._workers.is_needed(worker))
            if worker.ready and not worker.dismissed and (goes or is_idle):
                worker.dismissed = True
                self._service.send(worker.number, "leave", "its host goes" if worker.leaving else "the job is over")

    def _start_workers(self) -> None:
        """Starts workers on free slots."""
        if self._finishing:
            return
        taken = {(worker.host, worker.slot) for worker in self._workers.values()}
        now = monotonic()
        most = self._plan.most
        for host, slots in self._available.items():
            if not self._blacklist.allows(host, now):
                continue
            for slot in range(slots):
                if most is not None and len(self._workers.staying()) >= most:
                    return
                if (host, slot) not in taken and not self._start(host, slot):
                    break

    def _start(self, host: str, slot: int) -> bool:
        """Starts a worker and returns whether that was possible. After the first generation a failure does not end the others."""
        number, self._num_started = self._num_started, self._num_started + 1
        driver = DriverAddress(own_name([host], self._plan.env), self._service.port(not is_here(host)), self._secret, number)
        env = worker_environment(
            self._plan.env, driver, host, slot, self._plan.num_proc, used_slots(self._available, self._plan.most)
        )
        try:
            process = self._hosts.start(host, slot, env)
        except UsageError as error:
            if not self._num_generations:
                raise
            self._console.say(f"{error}; {self._blacklist.suspend(host, monotonic())}")
            return False
        self._processes[:] = [one for one in self._processes if not one.finished]
        self._processes.append(process)
        self._workers[number] = Worker(number, host, slot, process)
        if self._num_generations:
            self._console.say(f"worker {number} is started on {host}:{slot}")
        return True

    def _begin_generation_when_ready(self) -> None:
        """Begins a generation if all that must take part have come."""
        if any(not worker.ready for worker in self._workers.members_of(self._now)):
            self._end_stuck()
            return
        ready = self._workers.ready()
        least = 1 if self._finishing else self._plan.min_num_proc
        self._limits.start_waiting(monotonic())
        staying = [worker for worker in ready if self._finishing or not worker.leaving]
        if len(staying) < least or (not self._num_generations and self._waits_for_more(staying)):
            return
        if self._state_exists and not any(worker.has_state for worker in ready):
            return
        if self._plan.reset_limit is not None and self._num_generations > self._plan.reset_limit:
            self._end_job(f"the job was reset {self._plan.reset_limit} times, the limit set by --reset-limit")
            return
        if self._now.is_whole and self._now.why and not self._now.committed:
            self._num_futile += 1
            if self._num_futile >= MOST_FUTILE:
                self._end_job(
                    f"{MOST_FUTILE} generations failed without a commit although no worker died, so another would fail too: "
                    f"{self._now.why}"
                )
                return
        if not self._now.is_whole and self._now.lost is None:
            self._num_false_starts += 1
            if self._num_false_starts >= MOST_FALSE_STARTS:
                self._end_job(f"the workers could not connect to each other {MOST_FALSE_STARTS} times in a row: {self._now.why}")
                return
            if self._num_false_starts >= MOST_WITH_STRANGERS:
                ready = self._without_strangers(ready, least)
        self._begin_generation(ready)

    def _waits_for_more(self, ready: list[Worker]) -> bool:
        """Whether the first generation waits for more workers; says so if it begins with fewer than were asked for."""
        free = self._workers.hosts_with_room(self._available)
        # With fixed hosts a slot is free only as long as its host rests.
        may_come = self._plan.discovery_script is not None or (bool(free) and not self._blacklist.is_hopeless(free))
        start = FirstStart(self._plan.num_proc, ready, self._workers.starting(), may_come and not self._finishing)
        now = monotonic()
        if start.should_wait(self._limits.waited_s(now), self._limits.start_s, self._limits.slots_s, now):
            return True
        if not self._finishing and (text := start.missing_text()):
            self._console.say(text)
        return False

    def _end_stuck(self) -> None:
        """Kills members that do not come back while others wait; they count as lost."""
        limit_s = straggler_limit_s(self._now.stalled, self._plan.elastic_timeout_s)
        for worker in stuck_members(self._workers.members_of(self._now), limit_s, monotonic()):
            worker.given_up = True
            self._console.say(stuck_message(worker, limit_s, self._now.stalled))
            worker.process.send_to_group(signal.SIGKILL)

    def _without_strangers(self, ready: list[Worker], least: int) -> list[Worker]:
        """Dismisses workers that have met no others, if the rest are enough: the network may separate them. Returns the rest."""
        known = [worker for worker in ready if worker.has_joined]
        enough = len(known) >= least and any(worker.has_state for worker in known)
        for worker in ready if enough else ():
            if not worker.has_joined:
                worker.dismissed = True
                self._service.send(worker.number, "leave", "the other workers cannot connect to it")
                self._console.say(f"{worker} could not connect to the other workers, which continue without it: {self._now.why}")
                verdict = self._blacklist.on_failure(worker.host, self._num_started - 1, False, monotonic())
                if verdict is not None:
                    self._console.say(verdict)
        return known if enough else ready

    def _invite(self) -> None:
        """Tells the present generation that others are ready to join. Workers that come at about the same time join together."""
        new = self._workers.newcomers(self._now)
        limit = self._plan.reset_limit
        if (
            not new
            or {one.number for one in new} <= self._invited
            or not any(not one.ready for one in self._workers.members_of(self._now))
        ):
            return
        starting = any(one.generation < 0 and not one.ready for one in self._workers.values())
        if starting and monotonic() - min(one.ready_at for one in new) < TOGETHER_S:
            return
        if limit is None or self._num_generations <= limit:  # to join is no reason to end a job
            self._invited = {one.number for one in new}
            self._announce_hosts(ADDED)

    def _begin_generation(self, ready: list[Worker]) -> None:
        number = self._num_generations
        self._num_generations += 1
        candidates = [Candidate(one.number, one.host, one.slot, one.has_state, one.since) for one in ready]
        assignments = assign_ranks(candidates, number, "", secrets.token_hex(16))
        first = next(one for one in ready if assignments[one.number].rank == 0)
        address = own_name([one.host for one in ready], self._plan.env) if is_here(first.host) else first.host
        previous = self._now
        self._now = Generation(number, ready)
        self._limits.on_generation_begin()
        self._invited = set()
        for worker in ready:
            worker.ready = False
            worker.generation = number
            worker.since = min(worker.since, number)
            self._service.send(worker.number, "seat", {**assignments[worker.number].plain(), "address": address})
        new = [one for one in ready if one.since == number]
        if number:
            came = f", {', '.join(map(str, new))} new" if new else ""
            hosts = len({one.host for one in ready})
            self._console.say(f"generation {number}: {worker_count(len(ready))} on {hosts} host{'' if hosts == 1 else 's'}{came}")
        if previous.why and previous.lost is None and number and previous.why != self._last_reason:
            self._last_reason = previous.why
            self._console.say(f"generation {previous.number} ended: {previous.why}")

    # ---- the end -----------------------------------------------------------------------------------------------------

    def _end_if_impossible(self) -> None:
        """Ends a job that cannot continue."""
        if self._finishing:
            return
        # A member that is still at work may have the state, with its report on the way.
        asked = all(worker.ready for worker in self._workers.members_of(self._now))
        if self._state_exists and asked and not self._workers.state_holders():
            self._end_job("no worker that holds the state of the job is left; start the job again")
            return
        usable = [host for host in self._available if self._blacklist.allows(host, monotonic())]
        fixed = self._plan.discovery_script is None
        if len(self._workers) < self._plan.min_num_proc and not usable and fixed and self._blacklist.is_hopeless(self._available):
            self._end_job(
                f"{worker_count(len(self._workers))} left, fewer than --min-np {self._plan.min_num_proc}, and no host may get new "
                "ones; see the output of the workers"
            )
            return
        why = self._limits.why_end(len(self._workers.present(self._now)), monotonic())
        if why is not None:
            self._end_job(why)

    def _end_job(self, why: str, code: int = 1) -> None:
        self._over = True
        self._code = self._code or code
        self._console.say(f"the job ends: {why}")
        self._terminate()

    # ---- small parts -------------------------------------------------------------------------------------------------

    def _cancel_generation(self) -> None:
        """Cancels the present generation, so that members that are about to join it do not wait for those that will not come."""
        for member in self._workers.members_of(self._now):
            self._service.send(member.number, "void", self._now.number)

    def _announce_hosts(self, change: int) -> None:
        # Always later than the one before: workers compare.
        self._announced_at = max(time(), self._announced_at + 1e-3)
        for member in self._workers.members_of(self._now):
            self._service.send(member.number, "hosts", self._announced_at, change)

    def _wake_at_intervals(self) -> None:
        """Wakes the job at intervals, for hosts that may be used again and for waits that are too long."""
        self._service.check()
        self._after(TICK_S, self._wake_at_intervals)

    @staticmethod
    def _refuse_revival() -> RankProcess:
        raise AssertionError("workers of an elastic job are not revived as ranks")
