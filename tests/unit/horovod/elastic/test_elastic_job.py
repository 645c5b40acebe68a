"""The driver of an elastic job, event by event: processes and their words in any order, and hours in no time."""

from __future__ import annotations

import selectors
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from unisono.errors import UsageError
from unisono.horovod._impl.elastic import elastic_job as job_module
from unisono.horovod._impl.elastic.elastic_job import ElasticJob
from unisono.horovod._impl.elastic.elastic_plan import ElasticPlan, used_slots
from unisono.horovod._impl.elastic.elastic_worker import Worker
from unisono.horovod._impl.elastic.host_discovery import Change
from unisono.horovod._impl.elastic.worker_environment import WORKER
from unisono.launch.rank_process import RankProcess

KILL = 137


@dataclass
class FakeProcess:
    rank: int
    code: int | None = None
    killed_by: int | None = None
    finished: bool = False
    running: bool = False
    told: list[int] = field(default_factory=list)

    def send_to_group(self, signum: int) -> bool:
        self.told.append(signum)
        return True

    def describe_exit(self) -> str:
        return f"rank {self.rank} exited with code {self.code}"

    def send(self, signum: int) -> None:
        pass


@dataclass
class Play:
    """One job. A turn of the driver follows whatever happens."""

    plan: ElasticPlan
    selector: selectors.BaseSelector
    now: float = 0.0
    said: list[str] = field(default_factory=list)
    can_start: bool = True
    job: ElasticJob = field(init=False)

    def begin(self) -> None:
        nothing = cast(Any, SimpleNamespace())
        console = cast(Any, SimpleNamespace(say=self.said.append))
        self.job = ElasticJob(self.plan, self.selector, nothing, nothing, console, self, "secret")
        self.turn()

    def start(self, host: str, slot: int, env: Mapping[str, str]) -> RankProcess:  # noqa: ARG002
        if not self.can_start:
            raise UsageError("worker cannot be started: Cannot allocate memory")
        return cast(RankProcess, FakeProcess(int(env[WORKER])))

    @property
    def workers(self) -> dict[int, Worker]:
        return self.job._workers

    def turn(self) -> None:
        self.job._after_events()

    def wait(self, seconds: float, step_s: float = 1.0) -> None:
        end = self.now + seconds
        while self.now < end and not self.is_over():
            self.now += step_s
            self.turn()

    def tell(self, number: int, what: str, *more: str) -> None:
        generation = self.workers[number].generation
        self.job._on_worker_message(number, ("ready",) if what == "ready" else (what, generation, *more))
        self.turn()

    def is_killed(self, number: int) -> bool:
        return cast(FakeProcess, self.workers[number].process).told == [signal.SIGKILL]

    def exit(self, number: int, code: int) -> None:
        process = self.workers[number].process
        process.code = code
        self.job._react_to_exit(process)
        self.turn()

    def work(self, *numbers: int) -> None:
        """These come, take their seats and have the state."""
        for what in ("ready", "joined", "synced"):
            for number in numbers:
                self.tell(number, what)

    def see(self, **hosts: int) -> None:
        self.job.note_hosts(Change(hosts, ""))
        self.turn()

    def is_dismissed(self, number: int) -> bool:
        return self.workers[number].dismissed

    def is_over(self) -> bool:
        return self.job._over

    @property
    def code(self) -> int:
        return self.job._code


def plan(min_num_proc: int, **hosts: int) -> ElasticPlan:
    return ElasticPlan(
        command=("train",),
        env={},
        num_proc=sum(hosts.values()),
        min_num_proc=min_num_proc,
        max_num_proc=None,
        hosts=tuple(hosts.items()),
        discovery_script=None,
        slots_per_host=None,
        elastic_timeout_s=600.0,
        reset_limit=None,
        cooldown_range=None,
    )


@pytest.fixture
def play(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    with selectors.DefaultSelector() as selector:
        made = Play(request.param, selector)
        monkeypatch.setattr(job_module, "monotonic", lambda: made.now)
        made.begin()
        yield made
        made.job.close()


def on(min_num_proc: int, **hosts: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("play", [plan(min_num_proc, **hosts)], indirect=True, ids=[""])


@on(1, localhost=3)
def test_a_newcomer_that_dies_while_the_others_end_costs_nothing(play: Play) -> None:
    play.work(0, 1, 2)
    play.exit(2, KILL)
    play.work(0, 1)
    play.exit(0, 0)
    play.exit(3, KILL)
    assert not play.is_over()
    play.exit(1, 0)
    assert play.is_over() and play.code == 0, play.said


@on(1, localhost=2)
def test_a_member_that_dies_while_the_others_end_counts(play: Play) -> None:
    play.work(0, 1)
    play.exit(0, 0)
    play.exit(1, KILL)
    assert play.is_over() and play.code == KILL, play.said


@on(1, localhost=1)
def test_workers_whose_host_goes_may_come_to_the_end(play: Play) -> None:
    play.work(0)
    play.see(localhost=0)
    play.tell(0, "finished")
    play.exit(0, 0)
    assert play.is_over() and play.code == 0, play.said


@on(1, localhost=1)
def test_a_worker_that_leaves_in_a_second_training_has_not_finished(play: Play) -> None:
    play.work(0)
    play.tell(0, "finished")
    play.tell(0, "synced")
    play.see(localhost=0)
    play.exit(0, 0)
    assert play.is_over() and play.code == 1, play.said


@on(1, localhost=2)
def test_a_worker_without_the_state_does_not_wait_for_it_when_the_others_have_ended(play: Play) -> None:
    play.tell(0, "ready")
    play.tell(1, "ready")
    play.tell(0, "synced")
    play.exit(0, 0)
    play.tell(1, "ready")
    assert play.is_dismissed(1)
    play.exit(1, 0)
    assert play.is_over() and play.code == 0, play.said


@on(1, localhost=2)
def test_a_worker_that_cannot_be_started_does_not_end_the_others(play: Play) -> None:
    play.work(0, 1)
    play.can_start = False
    play.exit(1, KILL)
    assert any("Cannot allocate memory; host localhost gets no new workers for" in text for text in play.said)
    assert not play.is_over() and list(play.workers) == [0]
    play.can_start = True
    play.wait(5.0)
    assert len(play.workers) == 2


@on(1, localhost=1)
def test_at_the_beginning_that_is_a_mistake(play: Play) -> None:
    play.can_start = False
    with pytest.raises(UsageError, match="Cannot allocate memory"):
        play.exit(0, KILL)


@on(1, localhost=2, walled=1)
def test_a_worker_that_cannot_reach_the_others_does_not_end_them(play: Play) -> None:
    """Worker 2 and its successors are behind a wall: whoever meets with them gives up after a while, and nobody dies."""
    play.work(0, 1, 2)
    play.exit(2, KILL)
    play.work(0, 1)
    for newest in (3, 4, 5):
        play.tell(newest, "ready")
        for _ in range(2):
            for number in (0, 1):
                play.tell(number, "ready")  # at first they were asked to let it in, then they gave up
            assert play.workers[newest].generation == play.workers[0].generation
            play.tell(newest, "ready")
        play.tell(0, "ready")
        play.tell(1, "ready")
        assert play.is_dismissed(newest) and not play.is_over(), play.said
        play.exit(newest, 0)
        play.work(0, 1)
    assert any("host walled gets no more workers" in text for text in play.said)
    assert sorted(play.workers) == [0, 1] and not play.is_over()


@on(1, localhost=1)
def test_the_state_is_handed_over_when_all_hosts_change(play: Play) -> None:
    play.work(0)
    play.see(other=1)
    play.tell(0, "ready")
    assert not play.is_dismissed(0), "nobody else has it"
    assert 1 in play.workers, "although there may be only one"
    play.tell(1, "ready")
    assert play.workers[0].generation == play.workers[1].generation == 1
    play.tell(0, "synced")
    play.tell(1, "synced")
    play.tell(0, "ready")
    assert play.is_dismissed(0)
    play.exit(0, 0)
    play.tell(1, "ready")
    assert play.workers[1].generation == 2 and not play.is_over()


@on(1, localhost=1)
def test_hosts_that_are_gone_for_a_moment(play: Play) -> None:
    play.work(0)
    play.see()
    play.tell(0, "ready")
    play.wait(10.0)
    assert not play.is_over() and not play.is_dismissed(0)
    play.see(localhost=1)
    assert play.workers[0].generation == 1 and not play.workers[0].ready


@on(1, localhost=1)
def test_hosts_that_do_not_come_back_end_the_job(play: Play) -> None:
    play.work(0)
    play.see()
    play.tell(0, "ready")
    play.wait(602.0)
    assert play.is_over() and play.code == 1 and "only 0 workers for 600 s, fewer than --min-np 1" in play.said[-1]


@on(2, localhost=1, other=1)
def test_workers_that_come_late_have_time_to_start(play: Play) -> None:
    play.work(0, 1)
    play.see(localhost=1)
    play.tell(0, "ready")
    play.tell(1, "ready")
    play.exit(1, 0)
    play.wait(590.0)
    play.see(localhost=1, other=1)
    play.wait(300.0)
    assert not play.is_over(), play.said
    play.wait(302.0)
    assert play.is_over() and "not all workers have called hvd.init() within" in play.said[-1]


@on(1, localhost=2)
def test_workers_that_are_killed_before_init_are_not_started_for_ever(play: Play) -> None:
    while not play.is_over() and play.now < 5000:
        for number in list(play.workers):
            play.exit(number, KILL)
        play.wait(1.0)
    assert play.is_over() and 600 <= play.now < 700
    assert "died before hvd.init(), and no generation began for 600 s; see the output" in play.said[-1]


@on(1, localhost=2)
def test_workers_that_are_killed_before_the_first_sync_are_not_started_for_ever(play: Play) -> None:
    while not play.is_over() and play.now < 5000:
        for number in list(play.workers):
            play.tell(number, "ready")
        for number in list(play.workers):
            play.exit(number, KILL)
        play.wait(1.0)
    assert play.is_over() and 600 <= play.now < 1000
    assert "lost a worker before their first commit; check the memory" in play.said[-1]


@on(2, localhost=2)
def test_newcomers_that_are_killed_each_time_are_not_started_for_ever(play: Play) -> None:
    play.work(0, 1)
    while not play.is_over() and play.now < 5000:
        newest = max(play.workers)
        if newest:
            play.exit(newest, KILL)
            play.tell(0, "ready")
        play.wait(1.0)
        if max(play.workers):
            play.tell(max(play.workers), "ready")
    assert play.is_over() and 600 <= play.now < 1000
    assert "lost a worker before their first commit; check the memory" in play.said[-1]


@on(1, localhost=2)
def test_a_job_that_makes_progress_continues_whatever_is_killed(play: Play) -> None:
    play.work(0, 1)
    for _ in range(300):
        newest = max(play.workers)
        if newest:
            play.exit(newest, KILL)
            play.tell(0, "ready")
            play.work(0)
        play.tell(0, "committed")
        play.wait(31.0, step_s=31.0)
        for number in sorted(play.workers, reverse=True):  # so that the newcomers are in it
            play.tell(number, "ready")
    assert not play.is_over() and play.now > 9000, play.said[-3:]


@on(2, localhost=1, other=1)
def test_workers_whose_host_goes_count_while_they_work(play: Play) -> None:
    play.work(0, 1)
    play.see(localhost=1)
    play.wait(3000.0)
    assert not play.is_over(), "it is long to the next commit"
    play.tell(0, "ready")
    play.tell(1, "ready")
    play.wait(602.0)
    assert play.is_over() and "only 1 worker for 600 s" in play.said[-1]


@on(1, localhost=2)
def test_a_program_that_never_begins_and_fails_once_has_failed(play: Play) -> None:
    play.exit(0, 0)
    play.exit(1, 3)
    assert play.is_over() and play.code == 3


@on(1, localhost=2)
def test_hosts_that_come_back_bring_no_more_workers_than_there_may_be(play: Play) -> None:
    play.work(0, 1)
    play.see(other=2)
    assert sorted(play.workers) == [0, 1, 2, 3]
    play.see(localhost=2, other=2)
    assert [number for number in play.workers if play.workers[number].leaving] == [2, 3]
    play.tell(2, "ready")
    assert play.is_dismissed(2) and not play.is_dismissed(0)


@on(1, localhost=2)
def test_many_kills_at_once_after_long_work_are_bad_luck(play: Play) -> None:
    play.work(0, 1)
    play.tell(0, "committed")
    play.wait(36000.0, step_s=600.0)
    for _ in range(25):
        play.exit(max(play.workers), KILL)
        play.tell(0, "ready")
        play.tell(0, "joined")
        while len(play.workers) == 1:
            play.wait(1.0)
        newest = max(play.workers)
        for number in (newest, 0):
            play.tell(number, "ready")
        for number in (newest, 0):
            play.tell(number, "joined")
        assert play.workers[newest].generation == play.workers[0].generation
    assert play.now < 36600
    play.wait(3000.0, step_s=100.0)
    assert not play.is_over(), "nobody dies any more"


@on(2, localhost=1, other=1, bad=1)
def test_deaths_of_long_ago_do_not_count_when_workers_come_late(play: Play) -> None:
    play.work(0, 1, 2)
    for number in (2, 3, 4):
        play.exit(number, 1)
    play.work(0, 1)
    play.wait(36000.0, step_s=600.0)
    play.see(localhost=1)
    play.tell(0, "ready")
    play.tell(1, "ready")
    play.exit(1, 0)
    play.wait(590.0)
    play.see(localhost=1, other=1)
    play.wait(500.0)
    assert not play.is_over(), play.said


# ---- mistakes and failures of the program itself ---------------------------------------------------------------------


def fail_together(play: Play, why: str) -> None:
    for number in list(play.workers):
        play.tell(number, "failed", why)
    for what in ("ready", "joined"):
        for number in list(play.workers):
            if not play.is_over():
                play.tell(number, what)


@on(1, localhost=2)
def test_a_program_that_fails_each_time_although_no_worker_dies_is_not_restarted_for_ever(play: Play) -> None:
    play.work(0, 1)
    for _ in range(50):
        if not play.is_over():
            fail_together(play, "ranks disagree on x")
    assert play.is_over() and play.code == 1
    assert play.workers[0].generation == 9
    assert (
        "10 generations failed without a commit although no worker died, so another would fail too: ranks disagree" in play.said[-1]
    )
    assert [text for text in play.said if "ended: " in text] == ["generation 0 ended: ranks disagree on x"]


@on(1, localhost=2)
def test_failures_between_commits_are_forgiven(play: Play) -> None:
    play.work(0, 1)
    for number in range(50):
        if number % 9 == 0:
            play.tell(0, "committed")
        fail_together(play, "the network was slow")
    assert not play.is_over(), play.said


@on(1, localhost=2)
def test_changes_of_hosts_without_a_commit_are_no_failures(play: Play) -> None:
    play.work(0, 1)
    for _ in range(50):
        play.work(0, 1)
    assert not play.is_over() and play.workers[0].generation == 50


@on(1, localhost=2)
def test_a_mistake_that_shows_before_the_first_sync_ends_the_job_as_one(play: Play) -> None:
    play.tell(0, "ready")
    play.tell(1, "ready")
    play.exit(0, 2)
    assert play.is_over() and play.code == 2, play.said
    assert "worker 0 (localhost:0) exited with code 2, which means a usage error" in play.said[-1]


@on(1, localhost=2)
def test_exit_code_2_of_a_new_worker_does_not_end_the_others(play: Play) -> None:
    play.work(0, 1)
    play.exit(1, KILL)
    play.work(0)
    play.exit(2, 2)
    assert not play.is_over(), play.said


@on(1, localhost=3)
def test_a_newcomer_that_ends_before_it_met_the_others_is_not_the_end_of_the_job(play: Play) -> None:
    play.work(0, 1, 2)
    play.tell(0, "committed")
    play.exit(2, KILL)
    play.exit(3, 0)
    assert "worker 3 (localhost:2) exited with code 0 before it met the others; 2 workers continue" in play.said[-2]
    assert sorted(play.workers) == [0, 1, 4], "it is replaced"
    play.work(0, 1)
    play.exit(1, KILL)
    play.work(0)
    play.tell(0, "finished")
    play.exit(0, 0)
    assert play.is_over() and play.code == 0, play.said


@on(1, localhost=2)
def test_newcomers_that_end_at_once_are_not_started_for_ever(play: Play) -> None:
    play.work(0, 1)
    play.exit(1, KILL)
    while max(play.workers) > 0 and max(play.workers) < 20:
        play.exit(max(play.workers), 0)
    assert list(play.workers) == [0] and not play.is_over()
    assert any("host localhost gets no more workers" in text for text in play.said)


@on(1, localhost=3)
def test_the_message_about_the_workers_that_are_left(play: Play) -> None:
    play.work(0, 1, 2)
    play.exit(2, KILL)
    assert "worker 2 (localhost:2) exited with code 137; 2 workers continue without a commit" in play.said
    play.work(0, 1)
    play.tell(0, "committed")
    play.exit(1, KILL)
    assert "worker 1 (localhost:1) exited with code 137; 1 worker continues from the last commit" in play.said
    play.exit(0, KILL)
    assert (
        "worker 0 (localhost:0) exited with code 137; 0 workers left with the state of the job, fewer than --min-np 1" in play.said
    )


# ---- who is stuck ----------------------------------------------------------------------------------------------------


@on(2, localhost=3)
def test_a_worker_that_is_stuck_does_not_keep_the_others_for_ever(play: Play) -> None:
    play.work(0, 1, 2)
    play.wait(5000.0, step_s=100.0)
    assert not any(map(play.is_killed, (0, 1, 2))), "they work"
    play.tell(0, "ready")
    play.wait(300.0)
    play.tell(2, "ready")
    play.wait(298.0)
    assert not play.is_killed(1)
    play.wait(10.0)
    assert play.is_killed(1) and not play.is_killed(0) and not play.is_over()
    assert "worker 1 (localhost:1) is stuck" in play.said[-1] and "600 s" in play.said[-1]
    play.exit(1, KILL)
    assert play.workers[0].generation == play.workers[2].generation == 1 and not play.is_over(), play.said


@on(1, localhost=2)
def test_after_the_stall_check_it_takes_seconds(play: Play) -> None:
    play.work(0, 1)
    play.tell(0, "failed", "x was not submitted by rank 1 within 5 s (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)")
    play.tell(0, "ready")
    play.wait(8.0)
    assert not play.is_killed(1)
    play.wait(3.0)
    assert play.is_killed(1) and "after the stall check" in play.said[-1]
    play.exit(1, KILL)
    assert play.workers[0].generation == 1


@on(1, localhost=2)
def test_a_finished_worker_is_not_stuck(play: Play) -> None:
    play.work(0, 1)
    play.tell(1, "finished")
    play.tell(0, "ready")
    play.wait(3000.0, step_s=10.0)
    assert not play.is_killed(1) and not play.is_over()


# ---- the first start -------------------------------------------------------------------------------------------------


def begins(*, min_num_proc: int, num_proc: int, **more: Any) -> pytest.MarkDecorator:
    hosts = (("localhost", num_proc),)
    made = replace(plan(1, localhost=1), min_num_proc=min_num_proc, num_proc=num_proc, hosts=hosts, **more)
    return pytest.mark.parametrize("play", [made], indirect=True, ids=[""])


@begins(min_num_proc=1, num_proc=3, start_timeout_s=9.0)
def test_the_start_timeout_ends_the_wait_for_starting_workers(play: Play) -> None:
    play.tell(0, "ready")
    play.tell(2, "ready")
    play.wait(7.0)
    assert play.workers[0].generation == -1
    play.wait(3.0)
    assert play.workers[0].generation == play.workers[2].generation == 0 and play.workers[1].generation == -1
    assert play.said == ["the job starts with 2 of 3 workers (-np); these have not called hvd.init() yet: worker 1 (localhost:1)"]
    play.tell(1, "ready")
    for number in (0, 2):
        play.tell(number, "ready")
    assert {one.generation for one in play.workers.values()} == {1}, "it joins when it is there"


@begins(min_num_proc=2, num_proc=3, start_timeout_s=9.0)
def test_fewer_than_the_least_end_at_the_start_timeout(play: Play) -> None:
    play.tell(0, "ready")
    play.wait(8.0)
    assert not play.is_over()
    play.wait(2.0)
    assert play.is_over() and "not all workers have called hvd.init() within" in play.said[-1]


@begins(min_num_proc=2, num_proc=2, start_timeout_s=9.0)
def test_later_workers_have_the_elastic_timeout(play: Play) -> None:
    play.work(0, 1)
    play.exit(1, KILL)
    play.tell(0, "ready")
    play.wait(500.0)
    assert not play.is_over(), play.said


@begins(min_num_proc=1, num_proc=3, discovery_script="find", elastic_timeout_s=60.0)
def test_as_many_as_were_asked_for_are_waited_for(play: Play) -> None:
    play.see(localhost=2)
    play.tell(0, "ready")
    play.tell(1, "ready")
    play.wait(30.0)
    assert play.workers[0].generation == -1
    play.see(localhost=2, other=1)
    play.tell(2, "ready")
    assert {one.generation for one in play.workers.values()} == {0}
    assert not any("starts with" in text for text in play.said)


@begins(min_num_proc=1, num_proc=2, max_num_proc=3, discovery_script="find", elastic_timeout_s=600.0)
def test_those_beyond_the_number_asked_for_are_not_waited_for(play: Play) -> None:
    play.see(localhost=3)
    play.tell(0, "ready")
    play.tell(1, "ready")
    play.wait(4.0)
    assert play.workers[0].generation == -1, "it may come in time"
    play.wait(2.0)
    assert play.workers[0].generation == play.workers[1].generation == 0 and play.workers[2].generation == -1
    assert not play.said


def test_slots_that_are_used() -> None:
    assert used_slots({"a": 2, "b": 3}, None) == {"a": 2, "b": 3}
    assert used_slots({"a": 2, "b": 3, "c": 1}, 3) == {"a": 2, "b": 1, "c": 0}


@begins(min_num_proc=1, num_proc=3, discovery_script="find", elastic_timeout_s=60.0)
def test_if_the_slots_do_not_come_it_begins_with_fewer_and_says_so(play: Play) -> None:
    play.see(localhost=2)
    play.tell(0, "ready")
    play.tell(1, "ready")
    play.wait(62.0)
    assert play.workers[0].generation == play.workers[1].generation == 0
    assert play.said == ["the job starts with 2 of 3 workers (-np); there are no slots for more"]


@begins(min_num_proc=1, num_proc=2)
def test_a_host_that_gets_no_more_workers_is_not_waited_for(play: Play) -> None:
    play.tell(0, "ready")
    while not any("gets no more workers" in text for text in play.said):
        play.exit(max(play.workers), 1)
    assert play.workers[0].generation == 0 and not play.is_over()


def test_more_than_the_slots_of_fixed_hosts_are_refused() -> None:
    with pytest.raises(UsageError, match=r"-np 3 needs 3 slots, but the hosts have 2 \(-H\)"):
        replace(plan(1, localhost=2), num_proc=3)


@begins(min_num_proc=1, num_proc=1, discovery_script="find")
def test_returning_hosts_are_reported(play: Play) -> None:
    play.see(localhost=1)
    play.see()
    play.see(localhost=1)
    assert [text.rpartition(": ")[2] for text in play.said] == ["localhost 1 -> 0", "localhost 0 -> 1"]


@begins(min_num_proc=1, num_proc=1, discovery_script="find")
def test_a_script_that_fails_from_the_begin_is_a_mistake(play: Play) -> None:
    with pytest.raises(
        UsageError, match=r"first call .* \(--host-discovery-script\): it exited with code 3: no such partition; run the script"
    ):
        play.job.note_hosts(Change(None, "it exited with code 3: no such partition"))


@begins(min_num_proc=1, num_proc=1, discovery_script="find")
def test_a_script_that_answers_again_is_reported(play: Play) -> None:
    play.see(localhost=1)
    play.job.note_hosts(Change(None, "it broke"))
    play.see(localhost=1)
    play.see(localhost=1)
    assert [text.partition(":")[0] for text in play.said] == [
        "the host discovery script failed",
        "the host discovery script works again",
    ]
