"""A coordinator feeds its blocks at once, and whatever becomes of workers and letters, every trial ends once."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest

from tests.unit.tuning.workers.coordinating import ACCURACY, KILL, LINE, TERMINATE, Clock, Job
from unisono.tuning.search.space import Space
from unisono.tuning.study import store as storing
from unisono.tuning.study.study import COMPLETE, FAILED, PRUNED, WAITING
from unisono.tuning.study.trial_plan import Objective, Plan
from unisono.tuning.workers.coordinator import PEER_WAIT_S, STOP_WAIT_S
from unisono.tuning.workers.messages import DROPPED
from unisono.tuning.workers.trial_worker import DIVERGED, ERROR, MEMORY, PEER

Makes = Callable[..., Job]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Makes]:
    """A job at the study in `tmp_path`: of what plan, and with how many blocks."""
    clock, made = Clock(), list[Job]()
    monkeypatch.setattr(storing, "monotonic", clock)

    def job(num_blocks: int = 1, num_trials: int = 4, space: Space | None = LINE, **words: Any) -> Job:
        around = {key: words.pop(key) for key in ("nodes", "name", "search") if key in words}
        plan = Plan(**{"objectives": [ACCURACY], "epochs": 9, **words})
        made.append(Job(tmp_path, clock, plan, num_blocks, num_trials, space, **around))
        return made[-1]

    yield job
    for one in made:
        one.store._writer.close()


# ---- giving out ----------------------------------------------------------------------------------------------------------


def test_a_block_that_is_ready_gets_a_trial_at_once(make: Makes) -> None:
    job = make(num_blocks=3)
    job.ready()
    assert [job.command_of(rank)["number"] for rank in range(3)] == [0, 1, 2]
    assert len({job.command_of(rank)["values"]["x"] for rank in range(3)}) == 3
    assert job.coordinator.num_running == 3
    job.done(1)
    assert job.command_of(1)["number"] == 3, "in the same call"
    job.done(0, 1, 2)
    assert job.coordinator.is_idle and job.store.num_open() == 0
    assert sorted(set(job.observer.ended)) == [0, 1, 2, 3]


def test_what_is_begun_is_written_down(make: Makes) -> None:
    job = make(num_blocks=2)
    job.ready()
    trial = job.trial(1)
    assert trial.values == job.command_of(1)["values"] and trial.state == "running"
    assert [(one.number, one.block_id, one.began_s) for one in trial.attempts.values()] == [(0, "job/1", 100.0)]
    assert job.command_of(1)["folder"] == job.store.folder / "trials" / "000001"


def test_a_block_waits_for_all_its_workers(make: Makes) -> None:
    job = make(workers=2)
    job.ready(1)
    assert not job.workers.sent
    job.gone(1, status=0)
    assert job.workers.started == [1]
    job.ready(0)
    assert not job.workers.sent
    job.ready(1)
    assert job.command_of(0)["number"] == job.command_of(1)["number"] == 0


def test_a_rank_that_only_coordinates_is_in_no_block(make: Makes) -> None:
    job = make(workers=2)
    job.coordinator.on_message(99, {"is": "ready"})
    assert not job.workers.sent


def test_blocks_that_wait_for_a_proposal_are_fed_when_it_is_there(make: Makes) -> None:
    job = make(num_blocks=3)
    job.proposals.is_held_up = True
    job.ready(2, 0, 1)
    assert not job.workers.sent
    job.coordinator.tick()
    assert not job.workers.sent
    job.proposals.is_held_up = False
    job.coordinator.tick()
    assert [job.command_of(rank)["number"] for rank in (2, 0, 1)] == [0, 1, 2], "the longest waiting first"
    job.coordinator.tick()
    assert all(len(job.workers.sent[rank]) == 1 for rank in range(3))


def test_with_nothing_left_a_block_rests(make: Makes) -> None:
    job = make(num_blocks=2, num_trials=1)
    job.ready()
    assert job.workers.sent.keys() == {0}
    job.coordinator.tick()
    job.done(0)
    assert job.workers.sent.keys() == {0} and len(job.workers.sent[0]) == 1


def test_two_jobs_share_a_study(make: Makes) -> None:
    one, two = make(num_blocks=2), make(num_blocks=2, name="two")
    for job in (one, two):
        job.ready()
    assert [job.command_of(rank)["number"] for job in (one, two) for rank in (0, 1)] == [0, 1, 2, 3]
    for job in (one, two):
        job.done(0, 1)
        job.coordinator.tick()
    one.coordinator.tick()
    assert one.store.num_open() == two.store.num_open() == 0
    assert sum(trial.state.name == "COMPLETE" for trial in one.search._study.trials) == 4, "each learns what the other found"


def test_a_job_keeps_no_trials_from_others_that_could_begin_them(make: Makes) -> None:
    one = make(num_blocks=2)
    one.ready()
    one.coordinator.tick()
    two = make(num_blocks=2, name="two")
    two.ready()
    assert not two.coordinator.is_idle, "two trials are open, and nobody is at them"


def test_two_jobs_share_a_grid(make: Makes) -> None:
    jobs = make(num_blocks=2, num_trials=5, search="grid"), make(num_blocks=2, num_trials=5, search="grid", name="two")
    for job in jobs:
        job.ready()
    for job in jobs:
        job.done(0)
        job.done(1)
        job.coordinator.tick()
    for job in jobs:
        if not job.coordinator.is_idle:
            job.done(0)
        job.coordinator.tick()
    points = [(trial.values or {})["x"] for trial in jobs[0].store.study.trials.values()]
    assert sorted(points) == [-1.0, -0.5, 0.0, 0.5, 1.0]


def test_proposals_hear_how_often_results_come(make: Makes) -> None:
    job = make(num_blocks=2)
    job.ready()
    job.clock.now += 10
    job.done(0)
    assert job.proposals.renewed == [5.0]
    job.failed(1)
    assert job.proposals.renewed == [5.0, 5.0], "one that failed says nothing of how long trials take"


# ---- folds and starts ----------------------------------------------------------------------------------------------------


def test_parts_run_in_waves_side_by_side(make: Makes) -> None:
    job = make(folds=3, parallel=2, workers=2, num_trials=1)
    job.ready()
    told = [job.command_of(rank) for rank in range(4)]
    assert [(one["fold"], one["at"]["global_rank"], one["at"]["world_size"]) for one in told] == [
        *((0, 0, 2), (0, 1, 2), (1, 0, 2), (1, 1, 2))
    ]
    tokens = [one["at"]["token"] for one in told]
    assert tokens[0] == tokens[1] != tokens[2] == tokens[3], "the workers of a model meet each other, and nobody else"
    assert told[0]["at"]["port"] == told[1]["at"]["port"]
    job.done(0, 1, value=1.0)
    job.done(2, value=2.0)
    assert [len(job.workers.sent[rank]) for rank in range(4)] == [1, 1, 1, 1], "the wave is not over"
    job.done(3, value=99.0)  # what is not the first worker's word counts for nothing
    assert [len(job.workers.sent[rank]) for rank in range(4)] == [2, 2, 1, 1]
    assert job.command_of(0)["fold"] == job.command_of(1)["fold"] == 2
    assert job.command_of(0)["at"]["token"] not in tokens
    job.done(0, 1, value=6.0)
    result = job.result(0)
    assert result.state == COMPLETE and result.values == pytest.approx((3.0,))
    assert result.details["spread"] == pytest.approx(statistics.stdev([1.0, 2.0, 6.0]))
    assert [(one["fold"], one["values"]) for one in result.details["parts"]] == [(0, [1.0]), (1, [2.0]), (2, [6.0])]
    assert {(one["epochs"], one["took_s"], one["repeat"]) for one in result.details["parts"]} == {(3, 1.5, 0)}


def test_random_starts_follow_each_other(make: Makes) -> None:
    job = make(folds=2, repeats=2, num_trials=1)
    job.ready()
    seen = []
    for value in (1.0, 2.0, 3.0, 4.0):
        seen.append((job.command_of(0)["repeat"], job.command_of(0)["fold"]))
        job.done(0, value=value)
    assert seen == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert job.result(0).values == (2.5,) and job.store.num_open() == 0


def test_one_training_has_no_spread_and_takes_its_time(make: Makes) -> None:
    job = make(num_trials=1)
    job.ready()
    job.clock.now += 42
    job.done(0, value=0.25)
    result = job.result(0)
    assert (result.values, result.took_s, result.details["spread"]) == ((0.25,), 42.0, 0.0)


def test_workers_on_several_machines_know_where_they_are(make: Makes) -> None:
    job = make(workers=3, nodes={0: "n0", 1: "n1", 2: "n0"})
    job.ready()
    at = [job.command_of(rank)["at"] for rank in range(3)]
    assert [(one["local_rank"], one["local_size"], one["node_name"]) for one in at] == [(0, 2, "n0"), (0, 1, "n1"), (1, 2, "n0")]
    assert {one["address"] for one in at} == {"address of n0"}, "all look for the first"
    assert [one["gpus"] for one in at] == [[0], [1], [2]]


def test_several_objectives_are_averaged_each(make: Makes) -> None:
    job = make(objectives=[ACCURACY, Objective("time_s", False)], folds=2, num_trials=1)
    job.ready()
    job.done(0, value=1.0, took_s=10.0)
    job.done(0, value=2.0, took_s=30.0)
    assert job.result(0).values == (1.5, 20.0)


# ---- pruning -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prune", ["asha", "median"])
def test_all_folds_of_a_wave_learn_at_the_same_epoch_whether_to_continue(make: Makes, prune: str) -> None:
    job = make(folds=2, parallel=2, workers=2, prune=prune)
    job.ready()
    job.epoch(0, 1, 0.2)
    assert job.answers(0) == [], "the other has not come so far"
    job.epoch(2, 1, 0.4)
    assert job.answers(0) == job.answers(2) == [True] and job.answers(1) == []
    job.search.hopeless = True
    job.epoch(2, 2, 0.4)
    assert job.answers(2) == [True]
    job.epoch(0, 2, 0.4)
    assert job.answers(0) == job.answers(2) == [True, False]
    assert job.trial(0).reports == pytest.approx({1: 0.3, 2: 0.4})
    job.search.hopeless = False
    job.done(0, 1, 2, 3, reason="pruned")
    result = job.result(0)
    assert (result.state, result.values, result.reason) == (PRUNED, (0.4,), "")
    assert job.begun() == [(0, 0), (1, 0)], "the block goes on at once"


def test_later_waves_report_on_with_what_is_known(make: Makes) -> None:
    job = make(folds=3, parallel=2, prune="asha", num_trials=1)
    job.ready()
    job.done(0, value=0.1)
    job.done(1, value=0.2)
    job.epoch(0, 4, 0.6)
    assert job.trial(0).reports == pytest.approx({13: 0.3}), "step 9 + 4, and the mean of three folds"
    assert job.answers(0) == [True]


def test_a_fold_that_ended_early_keeps_no_other_waiting(make: Makes) -> None:
    job = make(folds=2, parallel=2, prune="asha")
    job.ready()
    job.epoch(0, 3, 0.2)
    assert job.answers(0) == []
    job.done(1, value=0.6)  # as it had patience no longer
    assert job.answers(0) == [True] and job.trial(0).reports == pytest.approx({3: 0.4})
    job.epoch(0, 4, 0.4)
    assert job.answers(0) == [True, True] and job.trial(0).reports[4] == pytest.approx(0.5)


def test_folds_that_resume_from_different_epochs_do_not_deadlock(make: Makes) -> None:
    """They were killed; one had saved its sixth epoch, the other none."""
    job = make(folds=2, parallel=2, prune="asha")
    job.ready()
    job.epoch(0, 7)
    for epoch in range(1, 7):
        job.epoch(1, epoch)
        assert job.answers(1) == [True] * epoch, f"nobody answers epoch {epoch}"
        assert job.answers(0) == [], "it is ahead"
    job.epoch(1, 7)
    assert job.answers(0) == [True] and job.answers(1) == [True] * 7


def test_what_an_earlier_attempt_reported_is_not_reported_again(make: Makes) -> None:
    job = make(prune="asha", num_trials=1)
    job.ready()
    job.epoch(0, 1, 0.1)
    job.epoch(0, 2, 0.2)
    job.again(0)
    assert job.begun() == [(0, 0), (0, 1)]
    job.search.hopeless = True
    job.epoch(0, 2, 0.9)  # its checkpoint was of the first epoch
    assert job.answers(0) == [True] * 3 and job.trial(0).reports == {1: 0.1, 2: 0.2}
    job.epoch(0, 3, 0.3)
    assert job.answers(0) == [True] * 3 + [False] and job.trial(0).reports == {1: 0.1, 2: 0.2, 3: 0.3}


def test_a_hopeless_trial_does_not_begin_its_next_wave(make: Makes) -> None:
    job = make(folds=2, prune="asha", num_trials=1)
    job.ready()
    job.search.hopeless = True
    job.epoch(0, 9, 0.1)  # the last: it has no more to be pruned
    job.done(0, value=0.1)
    assert job.result(0).state == PRUNED and len(job.workers.sent[0]) == 2


def test_a_trial_that_is_hopeless_at_its_very_end_is_complete(make: Makes) -> None:
    job = make(prune="asha", num_trials=1)
    job.ready()
    job.search.hopeless = True
    job.epoch(0, 9, 0.1)
    job.done(0, value=0.1)
    assert job.result(0).state == COMPLETE


def test_without_pruning_workers_do_not_wait_for_an_answer(make: Makes) -> None:
    job = make(folds=2, parallel=2)
    job.ready()
    job.epoch(0, 1)
    job.epoch(1, 1)
    assert job.answers(0) == job.answers(1) == [] and job.trial(0).reports == {}


def test_wilcoxon_compares_parts_and_workers_do_not_ask_at_an_epoch(make: Makes) -> None:
    job = make(folds=6, parallel=2, prune="wilcoxon", num_trials=1)
    job.ready()
    job.epoch(0, 1)
    job.done(0, value=0.1)
    assert job.trial(0).reports == {}
    job.done(1, value=0.2)
    assert job.trial(0).reports == {1: 0.1, 2: 0.2}
    job.search.hopeless = True
    job.done(1, value=0.4)
    job.done(0, value=0.3)
    assert job.trial(0).reports == {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}, "in the order of the parts"
    assert job.result(0).state == PRUNED
    assert job.answers(0) == [], "a worker that does not ask would take an answer for its next order"


# ---- what goes wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ERROR, DIVERGED])
def test_a_trial_that_raises_has_failed_and_the_block_continues(make: Makes, kind: str) -> None:
    job = make(num_trials=2)
    job.ready()
    job.failed(0, kind, "ValueError: 0 layers")
    result = job.result(0)
    assert (result.state, result.values, result.reason) == (FAILED, (), "ValueError: 0 layers")
    assert job.begun() == [(0, 0), (1, 0)] and job.workers.signals == []


def test_when_one_part_raises_the_others_are_ended(make: Makes) -> None:
    job = make(folds=2, parallel=2, num_trials=2)
    job.ready()
    job.failed(1)
    assert job.workers.signals == [(0, KILL)] and job.begun() == [(0, 0)], "the other is still at it"
    job.gone(0)
    assert job.result(0).reason == "it raised" and (1, KILL) in job.workers.signals
    assert job.workers.started == [0]
    job.again(1)
    job.ready(0)
    assert job.begun(0) == job.begun(1) == [(0, 0), (1, 0)]


def test_a_trial_whose_process_is_killed_is_run_again(make: Makes) -> None:
    job = make(num_trials=2)
    job.ready()
    point = job.command_of(0)["values"]
    job.gone(0)
    assert job.workers.started == [0] and job.trial(0).state == WAITING and job.begun() == [(0, 0)]
    assert job.observer.said == ["trial 0 goes back to the queue: its process ended by signal 9"]
    job.ready(0)
    assert job.begun() == [(0, 0), (0, 1)] and job.command_of(0)["values"] == point
    job.done(0, value=0.7)
    result = job.result(0)
    assert (result.attempt, result.state, result.values) == (1, COMPLETE, (0.7,))
    assert (
        job.search._study.best_value == 0.7 and len([one for one in job.search._study.trials if one.state.name == "COMPLETE"]) == 1
    )


def test_a_killed_trial_is_begun_so_often_and_has_then_failed(make: Makes) -> None:
    job = make(attempts=3, num_trials=2)
    job.ready()
    for _ in range(3):
        job.again(0)
    result = job.result(0)
    assert result.state == FAILED
    assert result.reason == "its process ended by signal 9; it was started 3 times (--attempts)"
    assert job.begun() == [(0, 0), (0, 1), (0, 2), (1, 0)]


def test_a_killed_trial_may_resume_in_another_block(make: Makes) -> None:
    job = make(num_blocks=2, num_trials=2)
    job.ready()
    job.gone(0)
    job.done(1)
    assert job.begun(1) == [(1, 0), (0, 1)]
    job.ready(0)
    assert job.begun(0) == [(0, 0)]


def test_a_process_that_exits_by_itself_has_failed_its_trial(make: Makes) -> None:
    job = make()
    job.ready()
    job.again(0, status=3)
    assert job.result(0).state == FAILED and job.result(0).reason == "its process ended by exit code 3"
    assert job.begun() == [(0, 0), (1, 0)]


def test_a_process_that_dies_between_trials_harms_none(make: Makes) -> None:
    job = make(num_trials=1)
    job.ready()
    job.done(0)
    job.gone(0)
    assert job.workers.started == [0] and job.result(0).state == COMPLETE


def test_a_trial_out_of_memory_has_failed_and_its_process_is_renewed(make: Makes) -> None:
    job = make()
    job.ready()
    job.failed(0, MEMORY, "out of memory (RuntimeError: CUDA out of memory)")
    assert job.result(0).reason.startswith("out of memory") and job.workers.signals == [(0, KILL)]
    assert job.begun() == [(0, 0)], "a process that has no memory gets no trial"
    job.again(0)
    assert job.begun() == [(0, 0), (1, 0)]


def test_a_process_that_the_system_ended_for_want_of_memory_is_not_begun_again(make: Makes) -> None:
    job = make()
    job.ready()
    job.gone(0, no_memory=True)
    assert job.result(0).reason == "out of memory (the system ended its process)"
    job.ready(0)
    assert job.begun() == [(0, 0), (1, 0)]


CAUSES: Mapping[str, tuple[Callable[[Job], None], str]] = {
    "the peer tells why": (lambda job: job.failed(1, ERROR, "ValueError: boom"), "ValueError: boom"),
    "the peer has no memory": (lambda job: job.failed(1, MEMORY, "out of memory"), "out of memory"),
    "the peer exits": (lambda job: job.gone(1, status=1), "its process ended by exit code 1"),
}


@pytest.mark.parametrize("what", CAUSES)
def test_a_lost_peer_is_confirmed_by_the_peer_itself(make: Makes, what: str) -> None:
    cause, reason = CAUSES[what]
    job = make(workers=2)
    job.ready()
    job.failed(0, PEER, "PeerLost: rank 1 is gone")
    job.coordinator.tick()
    assert job.workers.signals == []
    cause(job)
    result = job.result(0)
    assert (result.state, result.reason) == (FAILED, reason)


def test_a_peer_that_was_killed_costs_an_attempt_and_no_more(make: Makes) -> None:
    job = make(workers=2)
    job.ready()
    job.failed(0, PEER, "PeerLost: rank 1 is gone")
    job.gone(1)
    assert job.trial(0).state == WAITING and job.workers.signals == [(0, KILL)] and job.workers.started == [1]
    job.ready(1)
    job.again(0)
    assert job.begun(0) == job.begun(1) == [(0, 0), (0, 1)]


def test_peers_that_all_blame_each_other_begin_again(make: Makes) -> None:
    job = make(workers=2, attempts=2)
    job.ready()
    for _ in range(2):
        job.failed(0, PEER, "CollectiveTimeout")
        job.failed(1, PEER, "CollectiveTimeout")
        job.again(0, 1)
    assert job.result(0).reason == "CollectiveTimeout; it was started 2 times (--attempts)"


def test_a_peer_that_says_nothing_is_ended(make: Makes) -> None:
    job = make(workers=2)
    job.ready()
    job.failed(0, PEER, "CollectiveTimeout")
    job.clock.now += PEER_WAIT_S - 0.3
    job.coordinator.tick()
    assert job.workers.signals == []
    job.clock.now += 0.3
    job.coordinator.tick()
    assert job.workers.signals == [(1, KILL)]
    job.gone(1)
    assert job.trial(0).state == WAITING


def test_a_trial_past_its_limit_has_failed(make: Makes) -> None:
    job = make(num_blocks=2, limit_s=60.0)
    job.ready(0)
    job.clock.now += 30
    job.ready(1)
    job.clock.now += 30
    job.coordinator.tick()
    assert job.workers.signals == []
    job.clock.now += 1
    job.coordinator.tick()
    job.coordinator.tick()
    assert job.workers.signals == [(0, KILL)], "the other began later"
    job.gone(0)
    assert job.result(0).reason == "it ran past its limit of 60 s (--trial-limit)" and job.result(0).state == FAILED
    job.ready(0)
    assert job.begun(0) == [(0, 0), (2, 0)]


def test_the_limit_counts_all_waves_and_restarts_with_an_attempt(make: Makes) -> None:
    job = make(folds=2, limit_s=60.0)
    job.ready()
    job.clock.now += 40
    job.done(0)
    job.again(0)
    job.clock.now += 40
    job.coordinator.tick()
    assert job.workers.signals == [], "the second attempt has had 40 s"
    job.clock.now += 21
    job.coordinator.tick()
    assert job.workers.signals == [(0, KILL)]


def test_messages_of_an_earlier_attempt_are_ignored(make: Makes) -> None:
    job = make(workers=2, prune="asha", num_trials=1)
    job.ready()
    old = job.command_of(0)["id"]
    job.failed(0, PEER)
    job.gone(1)
    job.ready(1)
    job.again(0)
    assert job.command_of(0)["id"] != old
    before = len(job.workers.sent[0])
    stale: list[dict[str, Any]] = [
        {"is": "done", "reason": "", "metrics": {"accuracy": 0.9}, "epochs": 1, "took_s": 1.0},
        {"is": "failed", "kind": ERROR, "reason": "old", "took_s": 1.0},
        {"is": "epoch", "epoch": 1, "metrics": {"accuracy": 0.1}},
        {"is": "report", "step": 1, "value": 0.1},
        {"is": "suggest", "name": "x", "distribution": "{}"},
    ]
    for letter in stale:
        job.coordinator.on_message(0, {**letter, "id": old})
    assert job.trial(0).result is None and job.trial(0).reports == {}
    assert all(letter == {DROPPED: old} for letter in job.workers.sent[0][before:]), "nobody waits for it any more"
    job.done(0, 1, value=0.5)
    assert job.result(0).attempt == 1 and job.result(0).values == (0.5,)


def test_messages_of_an_earlier_wave_are_ignored(make: Makes) -> None:
    job = make(folds=2, workers=2, num_trials=1)
    job.ready()
    old = job.command_of(0)["id"]
    job.done(0, 1)
    job.coordinator.on_message(0, {"is": "failed", "id": old, "kind": ERROR, "reason": "old", "took_s": 0.0})
    job.done(0, 1)
    assert job.result(0).state == COMPLETE


def test_a_repeated_message_counts_once(make: Makes) -> None:
    job = make(workers=2, num_trials=1)
    job.ready()
    job.done(0, 0, value=0.5)
    job.failed(0)
    assert job.trial(0).result is None
    job.done(1)
    job.coordinator.on_message(1, {"is": "done", "id": "0.0.0", "reason": "", "metrics": {}, "took_s": 1.0})
    assert job.result(0).state == COMPLETE and len(job.trial(0).results) == 1


NO_VALUE: Mapping[str, tuple[Mapping[str, float], str]] = {
    "the first is nan": ({"accuracy": math.nan, "loss": 1.0}, "accuracy has no value (nan)"),
    "the second is nan": ({"accuracy": 1.0, "loss": math.nan}, "loss has no value (nan)"),
    "one is missing": ({"loss": 1.0}, "accuracy has no value (nan)"),
}


@pytest.mark.parametrize("folds", [1, 2])
@pytest.mark.parametrize("what", NO_VALUE)
def test_a_trial_without_a_value_has_failed(make: Makes, what: str, folds: int) -> None:
    metrics, reason = NO_VALUE[what]
    job = make(objectives=[ACCURACY, Objective("loss", False)], folds=folds, parallel=folds, num_trials=2)
    job.ready()
    for rank in range(folds):
        job.done(rank, metrics=metrics if rank == 0 else {"accuracy": 1.0, "loss": 1.0})
    assert job.result(0).state == FAILED and job.begun() == [(0, 0), (1, 0)]
    assert job.result(0).reason == reason


@pytest.mark.parametrize("values", [(math.inf, 1.0), (1.0, -math.inf)])
def test_a_fold_without_end_ends_nothing_else(make: Makes, values: Sequence[float]) -> None:
    job = make(folds=2, num_trials=2)
    job.ready()
    for value in values:
        job.done(0, value=value)
    assert job.result(0).state in (COMPLETE, FAILED) and job.begun() == [(0, 0), (1, 0)]
    assert job.store.study.best(True) is None


# ---- stopping ------------------------------------------------------------------------------------------------------------


def test_stopping_saves_and_gives_back_and_begins_nothing(make: Makes) -> None:
    job = make(num_blocks=2)
    job.ready()
    job.coordinator.stop("SIGTERM")
    assert sorted(job.workers.signals) == [(0, TERMINATE), (1, TERMINATE)] and job.coordinator.is_stopping
    job.done(0, reason="interrupted")
    job.done(1, value=0.5)  # it was at its end anyway
    assert job.coordinator.is_idle and job.coordinator.stop_reason == "SIGTERM"
    assert job.trial(0).state == WAITING and job.result(1).state == COMPLETE
    job.coordinator.tick()
    job.ready()
    assert job.begun(0) == [(0, 0)] and job.begun(1) == [(1, 0)]


def test_a_stopped_trial_is_resumed_by_the_next_job(make: Makes) -> None:
    job = make(num_trials=2)
    job.ready()
    point = job.command_of(0)["values"]
    job.coordinator.stop("time")
    job.done(0, reason="interrupted")
    job.store.append({"event": "left", "job": "job", "at_s": 0.0, "reason": "time"})
    later = make(num_trials=2, name="later")
    later.ready()
    assert later.begun() == [(0, 1)] and later.command_of(0)["values"] == point
    later.done(0)
    later.done(0)
    assert later.store.num_open() == 0


def test_only_what_was_begun_counts_as_an_attempt(make: Makes) -> None:
    job = make(num_trials=2, attempts=2)
    job.ready()
    job.coordinator.tick()  # which may claim the second trial
    job.coordinator.stop("time")
    job.done(0, reason="interrupted")
    job.store.append({"event": "left", "job": "job", "at_s": 0.0, "reason": "time"})
    later = make(num_trials=2, attempts=2, name="later")
    later.ready()
    later.done(0)
    assert later.command_of(0)["number"] == 1
    later.again(0)
    assert later.trial(1).result is None, "it was begun once, and may be begun twice"


def test_stopping_gives_back_however_often_a_trial_was_begun(make: Makes) -> None:
    job = make(attempts=1)
    job.ready()
    job.coordinator.stop("time")
    job.done(0, reason="interrupted")
    assert job.trial(0).state == WAITING


def test_stopping_answers_waiting_workers(make: Makes) -> None:
    job = make(folds=2, parallel=2, prune="asha")
    job.ready()
    job.epoch(0, 1)
    job.coordinator.stop("time")
    assert job.answers(0) == [True], "so that it comes to save"
    job.done(0, 1, reason="interrupted")
    assert job.trial(0).state == WAITING and job.coordinator.is_idle


def test_a_part_that_asks_after_its_neighbour_was_stopped_is_answered(make: Makes) -> None:
    job = make(folds=2, parallel=2, prune="asha")
    job.ready()
    job.coordinator.stop("time")
    job.done(1, reason="interrupted")
    job.epoch(0, 1)
    assert job.answers(0), "it waits for an answer, and nobody else will ever ask"


def test_a_worker_that_does_not_stop_in_time_is_killed(make: Makes) -> None:
    job = make(num_blocks=2)
    job.ready()
    job.coordinator.stop("time")
    job.done(1, reason="interrupted")
    job.clock.now += STOP_WAIT_S - 1
    job.coordinator.tick()
    assert KILL not in [signum for _, signum in job.workers.signals]
    job.clock.now += 1
    job.coordinator.tick()
    assert job.workers.signals[-1] == (0, KILL)
    job.gone(0)
    assert job.trial(0).state == WAITING and job.coordinator.is_idle


def test_a_part_that_does_not_stop_is_ended_though_another_did(make: Makes) -> None:
    job = make(folds=2, parallel=2)
    job.ready()
    job.coordinator.stop("time")
    job.done(0, reason="interrupted")
    job.clock.now += STOP_WAIT_S
    job.coordinator.tick()
    assert (1, KILL) in job.workers.signals, "the job would wait for it forever"
    job.gone(1)
    assert job.trial(0).state == WAITING and job.coordinator.is_idle


def test_between_two_waves_a_stopped_trial_is_given_back(make: Makes) -> None:
    job = make(folds=2)
    job.ready()
    job.coordinator.stop("time")
    job.done(0)
    assert job.trial(0).state == WAITING and len(job.workers.sent[0]) == 1 and job.coordinator.is_idle


def test_a_process_that_dies_while_all_stops_costs_nothing(make: Makes) -> None:
    job = make(attempts=1)
    job.ready()
    job.coordinator.stop("time")
    job.gone(0, status=-TERMINATE)
    assert job.trial(0).state == WAITING and job.coordinator.is_idle


# ---- supervisors that are lost -------------------------------------------------------------------------------------------


def test_what_is_left_of_blocks_makes_new_ones(make: Makes) -> None:
    job = make(num_blocks=3, workers=2, num_trials=5)
    job.ready()
    job.coordinator.on_ranks_lost([1, 2])
    assert set(job.coordinator.formation.blocks) == {2, 3} and job.coordinator.formation.blocks[3].ranks == (0, 3)
    assert {(0, KILL), (3, KILL)} <= set(job.workers.signals)
    assert [job.trial(number).state for number in range(3)] == [WAITING, WAITING, "running"]
    job.again(0, 3)
    assert job.begun(0)[-1] == job.begun(3)[-1] == (0, 1) and job.command_of(0)["at"]["world_size"] == 2
    job.done(0, 3)
    assert job.begun(0)[-1] == (1, 1)
    assert any("block 3 is formed of the remaining processes" in text for text in job.observer.said)


def test_ranks_that_are_lost_one_after_the_other_make_new_blocks_too(make: Makes) -> None:
    job = make(num_blocks=2, workers=2)
    job.ready()
    job.coordinator.on_ranks_lost([1])
    job.gone(0)  # it was killed, and is in no block now
    job.coordinator.on_ranks_lost([2])
    assert set(job.coordinator.formation.blocks) == {2} and job.coordinator.formation.blocks[2].ranks == (0, 3)
    assert 0 in job.workers.started, "its last process is dead, and nobody starts another"
    job.again(0, 3)
    assert job.coordinator.num_running == 1


def test_the_trial_of_a_lost_block_of_one_is_given_to_another(make: Makes) -> None:
    job = make(num_blocks=2, num_trials=3)
    job.ready()
    job.coordinator.on_ranks_lost([0])
    assert set(job.coordinator.formation.blocks) == {1} and job.begun(0) == [(0, 0)], "who is gone gets no trial"
    job.done(1)
    job.done(1)
    job.done(1)
    assert job.begun(1) == [(1, 0), (0, 1), (2, 0)] and job.store.num_open() == 0


def test_a_block_that_is_lost_while_it_waits_is_not_fed(make: Makes) -> None:
    job = make(num_blocks=2)
    job.proposals.is_held_up = True
    job.ready()
    job.coordinator.on_ranks_lost([0])
    job.proposals.is_held_up = False
    job.coordinator.tick()
    assert job.begun(0) == [] and job.begun(1) == [(0, 0)]
    job.coordinator.on_message(0, {"is": "ready"})
    assert job.begun(0) == []


def test_without_blocks_the_trials_are_given_back(make: Makes) -> None:
    job = make(num_blocks=2, workers=2, num_trials=2)
    job.ready()
    job.coordinator.on_ranks_lost([0, 1, 2, 3])
    assert not job.coordinator.formation.blocks and job.coordinator.is_idle
    assert [job.trial(number).state for number in range(2)] == [WAITING, WAITING]


def test_ranks_are_lost_once(make: Makes) -> None:
    job = make(num_blocks=2, workers=2)
    job.ready()
    job.coordinator.on_ranks_lost([0])
    said = len(job.observer.said)
    job.coordinator.on_ranks_lost([0])
    job.gone(0)
    assert len(job.observer.said) == said and 0 not in job.workers.started


# ---- objectives ----------------------------------------------------------------------------------------------------------

REAL, WHOLE = optuna.distributions.FloatDistribution(0.0, 1.0), optuna.distributions.IntDistribution(1, 9)


def text_of(distribution: optuna.distributions.BaseDistribution) -> str:
    return optuna.distributions.distribution_to_json(distribution)


VALUE = Objective("value", False)


def test_an_objective_asks_for_what_it_wants_to_know(make: Makes) -> None:
    job = make(space=None, objectives=[VALUE], epochs=1)
    job.ready()
    assert job.command_of(0)["values"] == {} and job.command_of(0)["distributions"] == {}
    job.say(0, "suggest", name="x", distribution=text_of(REAL))
    job.say(0, "suggest", name="n", distribution=text_of(WHOLE))
    values = [letter["value"] for letter in job.workers.sent[0] if "value" in letter]
    assert 0.0 <= values[0] <= 1.0 and values[1] in range(1, 10)
    job.done(0, values=[0.25], user={"note": "good"})
    result = job.result(0)
    assert result.values == (0.25,) and job.trial(0).values == {"x": values[0], "n": values[1]}
    assert result.details["distributions"] == {"x": text_of(REAL), "n": text_of(WHOLE)}
    assert result.details["parts"][0]["user"] == {"note": "good"}
    told = job.command_of(0)
    assert told["number"] == 1 and set(told["values"]) == {"x", "n"} and told["distributions"] == result.details["distributions"]


def test_an_objective_reports_from_step_0_on_and_is_answered(make: Makes) -> None:
    job = make(space=None, objectives=[VALUE], epochs=1, prune="asha")
    job.ready()
    for step, value in ((0, 0.5), (1, 0.4), (2, 0.3)):
        job.say(0, "report", step=step, value=value)
    assert job.answers(0) == [True] * 3
    job.search.hopeless = True
    job.say(0, "report", step=3, value=9.0)
    assert job.answers(0) == [True] * 3 + [False]
    assert job.trial(0).reports == {0: 0.5, 1: 0.4, 2: 0.3, 3: 9.0}


def test_an_objective_that_is_pruned_has_the_value_that_it_last_reported(make: Makes) -> None:
    job = make(space=None, objectives=[VALUE], epochs=1, prune="asha", num_trials=2)
    job.ready()
    job.say(0, "report", step=1, value=9.0)
    job.done(0, reason="pruned", values=[])
    assert (job.result(0).state, job.result(0).values) == (PRUNED, (9.0,)) and job.begun() == [(0, 0), (1, 0)]


@pytest.mark.parametrize("values", [[], [1.0, 2.0], [math.nan]])
def test_an_objective_that_gives_something_else_has_failed(make: Makes, values: list[float]) -> None:
    job = make(space=None, objectives=[VALUE], epochs=1, num_trials=2)
    job.ready()
    job.done(0, values=values)
    assert job.result(0).state == FAILED and job.begun() == [(0, 0), (1, 0)]
    assert ("nan" if len(values) == 1 else f"it gave {len(values)}") in job.result(0).reason


def test_an_objective_that_contradicts_itself_fails_alone(make: Makes) -> None:
    job = make(space=None, objectives=[VALUE], epochs=1, num_trials=2)
    job.ready()
    job.say(0, "suggest", name="x", distribution=text_of(REAL))
    job.done(0, values=[1.0])
    other = optuna.distributions.CategoricalDistribution(["a", "b"])
    job.say(0, "suggest", name="x", distribution=text_of(other))  # as Optuna does not allow
    if job.trial(1).result is None:
        job.failed(0, ERROR, "ValueError: Cannot set different distribution kind")
    assert job.result(1).state == FAILED


def test_a_killed_objective_is_resumed_by_another_job(make: Makes) -> None:
    job = make(space=None, objectives=[VALUE], epochs=1, num_trials=1)
    job.ready()
    job.say(0, "suggest", name="x", distribution=text_of(REAL))
    job.coordinator.stop("time")
    job.gone(0)
    job.store.append({"event": "left", "job": "job", "at_s": 0.0, "reason": "time"})
    later = make(space=None, objectives=[VALUE], epochs=1, num_trials=1, name="later")
    later.ready()
    later.say(0, "suggest", name="x", distribution=text_of(REAL))
    later.done(0, values=[0.5])
    assert later.result(0).values == (0.5,) and 0.0 <= (later.trial(0).values or {})["x"] <= 1.0


def test_what_an_objective_asked_for_is_known_after_it_was_stopped(make: Makes) -> None:
    job = make(space=None, objectives=[VALUE], epochs=1, num_trials=2)
    job.ready()
    job.say(0, "suggest", name="x", distribution=text_of(REAL))
    job.done(0, values=[0.5])
    point = job.command_of(0)["values"]
    assert set(point) == {"x"}, "proposed ahead"
    job.coordinator.stop("time")
    job.done(0, reason="interrupted", values=[])
    job.store.append({"event": "left", "job": "job", "at_s": 0.0, "reason": "time"})
    later = make(space=None, objectives=[VALUE], epochs=1, num_trials=2, name="later")
    later.ready()
    assert later.command_of(0)["values"] == point
    later.done(0, values=[0.25])
    assert later.trial(1).values == point
    assert later.result(1).details["distributions"] == {"x": text_of(REAL)}, "else neither a search nor an export knows its point"
    assert later.search._study.best_trial.params == point
