"""A search proposes what the space allows, forgets what nobody tries, and knows after a restart all that it knew before."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
import pytest

from unisono.errors import UsageError
from unisono.files.journal import Record
from unisono.task.task import Choice, Range
from unisono.tuning.search.grid import NUM_VALUES, describe_grid, grid
from unisono.tuning.search.samplers import SEARCHES
from unisono.tuning.search.search import Proposal, Search
from unisono.tuning.search.space import Dimension, Space
from unisono.tuning.study.study import (
    COMPLETE,
    FAILED,
    PRUNED,
    Study,
    begin_record,
    end_record,
    give_back_record,
    proposal_record,
    report_record,
)

SGD = {"optimizer": ["sgd"]}
SPACE = Space(
    [
        Dimension("lr", Range(1e-4, 1.0, log=True)),
        Dimension("width", Range(1, 64, log=True), is_integer=True),
        Dimension("optimizer", Choice("sgd", "adam", None)),
        Dimension("optimizer.momentum", Range(0.0, 0.9), when=SGD),
        Dimension("nesterov", Choice(True, False), when={"optimizer.momentum": [0.9], **SGD}),
        Dimension("depth", Range(1, 3), is_integer=True, when={"act": ["relu"]}),
        Dimension("batch", Choice(16, 32), when={"act": ["tanh"]}),
    ],
    {"act": "relu"},
)
LINE = Space([Dimension("x", Range(-1.0, 1.0))])
DRAWN = [name for name in SEARCHES if name != "grid"]


def proposed(search: Search) -> Proposal:
    found = search.propose()
    assert found is not None
    return found


def run_trial(search: Search, number: int, value: float | None, reports: Sequence[float] = (), state: str = "") -> Proposal:
    """One trial from its proposal to its end; without a value it goes on."""
    proposal = proposed(search)
    search.start_trial(number, proposal)
    for step, one in enumerate(reports, 1):
        search.report(number, step, one)
        if search.prune == "asha":
            search.should_prune(number)  # which notes the rung
    if value is not None or state:
        search.tell(number, state or COMPLETE, [] if value is None else [value])
    return proposal


def states(search: Search) -> Counter[str]:
    return Counter(one.state.name for one in search._study.get_trials(deepcopy=False))


def of(*records: Mapping[str, Any]) -> Study:
    study = Study()
    for number, record in enumerate(records):
        study.apply(Record("job", number, record))
    return study


def assert_inside(space: Space, values: Mapping[str, Any]) -> None:
    assert set(values) == {one.name for one in space.dimensions if space.is_active(one, values)}
    for one in space.dimensions:
        if one.name in values:
            value = values[one.name]
            assert one.contains(value), (one.name, value)
            kind = (
                type(None) if value is None else int if one.is_integer else float if isinstance(one.values, Range) else type(value)
            )
            assert type(value) is kind, (one.name, value)
            assert not isinstance(one.values, Choice) or any(value is known for known in one.values.values)


# ---- what is proposed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SEARCHES)
def test_proposals_lie_in_the_space(name: str) -> None:
    search = Search(SPACE, name, [False], seed=3)
    seen = set[Any]()
    for number in range(12 if name == "gp" else 25):
        proposal = run_trial(search, number, (number * 7 % 5) / 5)
        assert_inside(SPACE, proposal.values)
        assert {"depth"} <= proposal.values.keys() and "batch" not in proposal.values, "what is fixed counts as a condition"
        seen.add(proposal.values["optimizer"])
    assert seen == {"sgd", "adam", None} or name in ("gp", "cmaes")
    assert states(search) == {"COMPLETE": number + 1}


@pytest.mark.parametrize("name", DRAWN)
def test_what_is_first_is_proposed_first_and_once(name: str) -> None:
    first = {"lr": 0.03, "width": 17, "optimizer": "adam", "depth": 2}
    search = Search(SPACE, name, [True], first_point=first)
    assert proposed(search).values == first
    assert proposed(search).values != first


def test_a_part_of_a_point_may_be_first() -> None:
    values = proposed(Search(SPACE, "tpe", [True], first_point={"optimizer": "sgd", "width": 5})).values
    assert (values["optimizer"], values["width"]) == ("sgd", 5)
    assert_inside(SPACE, values)


@pytest.mark.parametrize("name", ["tpe", "gp", "cmaes", "evolution"])
@pytest.mark.parametrize("num_told", [0, 10])
def test_proposals_at_the_same_time_differ(name: str, num_told: int) -> None:
    search = Search(LINE, name, [False], seed=1)
    for number in range(num_told):
        run_trial(search, number, float(number))
    values = [proposed(search).values["x"] for _ in range(5)]
    assert len(set(values)) == 5


@pytest.mark.parametrize("name", ["tpe", "cmaes"])
def test_a_search_that_learns_comes_near_the_best(name: str) -> None:
    search = Search(LINE, name, [False], seed=5)
    found = []
    for number in range(25):
        proposal = proposed(search)
        search.start_trial(number, proposal)
        found.append(abs(proposal.values["x"] - 0.3))
        search.tell(number, COMPLETE, [found[-1]])
    assert min(found) < 0.05


def test_the_same_seed_draws_the_same_and_another_another() -> None:
    def draws(seed: int) -> list[Mapping[str, Any]]:
        search = Search(SPACE, "tpe", [False], seed=seed)
        return [run_trial(search, number, float(number)).values for number in range(15)]

    assert draws(4) == draws(4) != draws(5)


@pytest.mark.parametrize("name", ["tpe", "gp", "evolution", "random"])
def test_several_objectives(name: str) -> None:
    search = Search(LINE, name, [True, False], seed=2)
    for number in range(10):
        proposal = proposed(search)
        assert_inside(LINE, proposal.values)
        search.start_trial(number, proposal)
        search.tell(number, COMPLETE, [proposal.values["x"], proposal.values["x"] ** 2])
    search.tell(search_running(search, 10), COMPLETE, [1.0])  # one value of two is none
    assert states(search) == {"COMPLETE": 10, "FAIL": 1}
    assert [one.name for one in search._study.directions] == ["MAXIMIZE", "MINIMIZE"]


def search_running(search: Search, number: int) -> int:
    search.start_trial(number, proposed(search))
    return number


# ---- a grid --------------------------------------------------------------------------------------------------------------

SMALL = Space(
    [
        Dimension("optimizer", Choice("sgd", "adam")),
        Dimension("momentum", Range(0.0, 0.8), when=SGD),
        Dimension("depth", Range(1, 3), is_integer=True),
    ]
)


def test_a_grid_lists_every_point_once() -> None:
    points = grid(SMALL)
    assert len(points) == 3 * NUM_VALUES + 3
    assert all(points.count(point) == 1 for point in points)
    for point in points:
        assert_inside(SMALL, point)
    assert sorted({one["momentum"] for one in points if "momentum" in one}) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8])
    assert all(("momentum" in one) == (one["optimizer"] == "sgd") for one in points)


def test_a_choice_that_names_a_value_twice_has_it_once() -> None:
    assert grid(Space([Dimension("x", Choice(1, True, 1, None, "a"))])) == [{"x": 1}, {"x": True}, {"x": None}, {"x": "a"}]


def test_points_of_a_range_by_powers() -> None:
    points = grid(Space([Dimension("lr", Range(1e-4, 1.0, log=True)), Dimension("width", Range(1, 3, log=True), is_integer=True)]))
    assert sorted({one["lr"] for one in points}) == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1, 1.0])
    assert sorted({one["width"] for one in points}) == [1, 2, 3]
    assert all(1e-4 <= one["lr"] <= 1.0 for one in points), "also where rounding would lead outside"


@pytest.mark.parametrize("first", [None, {"optimizer": "adam", "depth": 2}, {"optimizer": "adam", "depth": 9}])
def test_a_grid_has_the_same_order_in_every_job(first: dict[str, Any] | None) -> None:
    """Later lives are given no first point, and know a point by the number of its trial, whatever has become of others."""
    search, points = Search(SMALL, "grid", [True], first_point=first), grid(SMALL)
    study = of(
        proposal_record(0, points[0]),
        end_record(0, 0, COMPLETE, [1.0], 1.0),
        proposal_record(1, points[1]),
        end_record(1, 0, FAILED, [], 1.0),
    )
    for trial in study.trials.values():
        search.add_known_trial(trial)
    for number, point in enumerate(points):
        planned = search.grid_point(number)
        assert planned is not None and planned.values == point


def test_a_huge_grid_is_listed_only_as_far_as_it_is_tried() -> None:
    huge = Space([Dimension(f"x{number}", Range(0.0, 1.0)) for number in range(40)])
    search = Search(huge, "grid", [True], num_trials=7)
    planned = search.grid_point(6)
    assert planned is not None and planned.values == grid(huge, 7)[6]
    assert describe_grid(huge, 7) == "the grid has more than 100000 points; the first 7 of them are tried (--trials)"


def test_what_is_said_of_a_grid() -> None:
    assert describe_grid(SMALL, 40) == "the grid has 18 points, fewer than --trials 40; all are tried"
    assert describe_grid(SMALL, 18) == "the grid has 18 points; all are tried"
    assert describe_grid(SMALL, 17) == "the grid has 18 points; the first 17 of them are tried (--trials)"
    assert describe_grid(Space([], {"x": 1}), 3) == "the grid has 1 point, fewer than --trials 3; all are tried"


# ---- what is withdrawn ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tpe", "cmaes", "evolution"])
def test_what_is_withdrawn_leaves_no_trace(name: str) -> None:
    search = Search(LINE, name, [False], seed=1, num_trials=20)
    for number in range(12):
        run_trial(search, number, float(number))
    kept = proposed(search)
    search.start_trial(12, kept)
    dropped = [proposed(search) for _ in range(4)]
    for one in dropped:
        search.withdraw(one)
    assert states(search) == {"COMPLETE": 12, "RUNNING": 1, "FAIL": 4}
    counted = search._study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.RUNNING))
    assert not {one.values["x"] for one in dropped} & {one.params["x"] for one in counted}
    search.tell(12, COMPLETE, [-5.0])
    assert search._study.best_value == -5.0 and search._study.best_trial.params == kept.values


def test_a_sampler_draws_alike_whether_others_were_withdrawn_or_never_made() -> None:
    found = []
    for withdraws in (False, True):
        search = Search(LINE, "tpe", [False], seed=1)
        for number in range(12):
            run_trial(search, number, float(number))
        for one in [proposed(search) for _ in range(3 if withdraws else 0)]:
            search.withdraw(one)
        search._study.sampler = optuna.samplers.TPESampler(seed=9)
        found.append([proposed(search).values for _ in range(3)])
    assert found[0] == found[1]


# ---- what is remembered --------------------------------------------------------------------------------------------------

VALUES = (0.5, 0.1, 0.9, 0.4, 0.2, 0.3, 0.8, 0.7, 0.6, 0.05, 0.45, 0.35)


def searched(prune: str = "none", num_steps: int = 9) -> tuple[Search, Study]:
    """A search that was told everything as it came, and the journal of that: complete, pruned, failed, under way, given back."""
    search = Search(SPACE, "tpe", [True], seed=8, prune=prune, num_steps=num_steps)
    records: list[Mapping[str, Any]] = []
    for number, value in enumerate(VALUES):
        reports = [value * step / 9 for step in range(1, 10)]
        proposal = run_trial(search, number, value, reports)
        records += [proposal_record(number, proposal.values), begin_record(number, 0, "job/0", 1.0)]
        records += [report_record(number, step, one) for step, one in enumerate(reports, 1)]
        records.append(end_record(number, 0, COMPLETE, [value], 2.0))
    number += 1
    proposal = run_trial(search, number, None, [0.01, 0.02], state=PRUNED)
    records += [proposal_record(number, proposal.values), report_record(number, 1, 0.01), report_record(number, 2, 0.02)]
    records.append(end_record(number, 0, PRUNED, [], 1.0))
    number += 1
    proposal = run_trial(search, number, None, state=FAILED)
    records += [proposal_record(number, proposal.values), end_record(number, 0, FAILED, [], 1.0, "it raised")]
    for gives_back in (False, True):
        number += 1
        proposal = run_trial(search, number, None, [0.03])
        records += [proposal_record(number, proposal.values), begin_record(number, 0, "job/0", 1.0), report_record(number, 1, 0.03)]
        if gives_back:
            records.append(give_back_record(number, 0, "stopped", 2.0))
    return search, of(*records)


def again(study: Study, prune: str = "none", num_steps: int = 9) -> Search:
    search = Search(SPACE, "tpe", [True], seed=8, prune=prune, num_steps=num_steps)
    for _ in range(2):  # once more changes nothing
        for trial in study.trials.values():
            search.add_known_trial(trial)
    return search


def test_a_restored_search_equals_the_live_one() -> None:
    live, study = searched()
    remembered = again(study)
    expected = {state: count for state, count in states(live).items() if state != "FAIL"}
    assert {state: count for state, count in states(remembered).items() if state != "FAIL"} == expected
    assert expected == {"COMPLETE": 12, "PRUNED": 1, "RUNNING": 2}
    assert remembered._study.best_value == live._study.best_value == 0.9
    assert remembered._study.best_trial.params == live._study.best_trial.params
    kept = [
        [(one.params, one.intermediate_values) for one in search._study.get_trials(deepcopy=False) if one.state.name != "FAIL"]
        for search in (live, remembered)
    ]
    assert kept[0] == kept[1]
    for search in (live, remembered):
        search._study.sampler = optuna.samplers.TPESampler(seed=9)
    assert [proposed(live).values for _ in range(3)] == [proposed(remembered).values for _ in range(3)]


def test_a_trial_in_progress_can_be_ended_after_it_is_restored() -> None:
    _, study = searched()
    search = again(study)
    study.apply(Record("job", 1000, end_record(14, 0, COMPLETE, [0.99], 1.0)))
    study.apply(Record("job", 1001, end_record(15, 0, FAILED, [], 1.0)))
    for number in (14, 15):
        search.add_known_trial(study.trials[number])
    assert search._study.best_value == 0.99
    assert states(search)["RUNNING"] == 0 and states(search)["COMPLETE"] == 13


def test_a_trial_without_its_point_is_not_remembered() -> None:
    search = again(of(begin_record(0, 0, "job/0", 1.0), end_record(1, 0, COMPLETE, [1.0], 1.0)))
    assert not states(search)
    search.tell(1, COMPLETE, [1.0])
    search.report(1, 1, 0.5)
    assert not states(search) and not search.should_prune(1)


def test_a_result_that_is_no_number_counts_alike_live_and_restored() -> None:
    live = Search(LINE, "tpe", [True])
    points = [run_trial(live, number, value).values for number, value in enumerate((math.inf, math.nan, 1.0))]
    assert states(live) == {"FAIL": 2, "COMPLETE": 1}
    records = [proposal_record(number, point) for number, point in enumerate(points)]
    records += [end_record(number, 0, COMPLETE, [value], 1.0) for number, value in enumerate((math.inf, math.nan, 1.0))]
    remembered = Search(LINE, "tpe", [True])
    for trial in of(*records).trials.values():
        remembered.add_known_trial(trial)
    assert states(remembered)["PRUNED"] == 0 and states(remembered)["COMPLETE"] == 1


def test_a_second_result_counts_for_nothing() -> None:
    search = Search(LINE, "tpe", [True])
    run_trial(search, 0, 1.0)
    search.tell(0, COMPLETE, [5.0])
    search.tell(0, FAILED, [])
    search.report(0, 1, 3.0)
    assert search._study.best_value == 1.0 and states(search) == {"COMPLETE": 1}
    assert search._study.best_trial.intermediate_values == {}


def test_reports_of_another_job_are_learned_while_it_runs() -> None:
    search = Search(LINE, "random", [True], prune="asha", num_steps=9)
    study = of(proposal_record(0, {"x": 0.5}), begin_record(0, 0, "other/0", 1.0))
    search.add_known_trial(study.trials[0])
    for step in (1, 2, 3):
        study.apply(Record("other", 10 + step, report_record(0, step, step / 9)))
    search.add_known_trial(study.trials[0])
    (known,) = search._study.get_trials()
    assert known.intermediate_values == {1: 1 / 9, 2: 2 / 9, 3: 3 / 9}
    search.start_trial(1, proposed(search))
    search.report(1, 1, 0.01)
    assert search.should_prune(1), "the other was better at the first rung"


# ---- pruning -------------------------------------------------------------------------------------------------------------


def rungs(search: Search) -> list[Mapping[str, float]]:
    trials = [one for one in search._study.get_trials(deepcopy=False) if one.state.name != "FAIL"]
    return [{name: value for name, value in one.system_attrs.items() if "rung" in name} for one in trials]


@pytest.mark.parametrize("num_steps", [9, 18, 1], ids=["first rung 1", "first rung 2", "an objective, which says no number"])
def test_rungs_are_remembered(num_steps: int) -> None:
    live, study = searched("asha", num_steps)
    remembered = again(study, "asha", num_steps)
    assert any(rungs(live)) and rungs(remembered) == rungs(live)
    answers = []
    for number, value in enumerate((0.001, 0.02, 0.089, 0.2), 50):
        for search in (live, remembered):
            search.start_trial(number, proposed(search))
            for step in (1, 2, 3):
                search.report(number, step, value * step)
                answers.append(search.should_prune(number))
            assert rungs(search)[-1]
        assert answers[-3:] == answers[-6:-3]
    assert any(answers) and not all(answers)


def test_all_rungs_are_restored_however_long_an_objective_runs() -> None:
    live = Search(LINE, "random", [False], prune="asha", num_steps=1)
    reports = [1 / step for step in range(1, 90)]
    proposal = run_trial(live, 0, 0.5, reports)
    remembered = Search(LINE, "random", [False], prune="asha", num_steps=1)
    records = [report_record(0, step, value) for step, value in enumerate(reports, 1)]
    for trial in of(proposal_record(0, proposal.values), *records, end_record(0, 0, COMPLETE, [0.5], 1.0)).trials.values():
        remembered.add_known_trial(trial)
    assert set(rungs(live)[0]) == {f"completed_rung_{rung}" for rung in range(5)}
    assert rungs(remembered) == rungs(live)


@pytest.mark.parametrize("higher_is_better", [True, False])
@pytest.mark.parametrize("prune", ["asha", "median", "wilcoxon"])
def test_a_bad_trial_is_hopeless_and_a_good_one_is_not(prune: str, higher_is_better: bool) -> None:
    search = Search(LINE, "random", [higher_is_better], prune=prune, num_steps=9)
    sign = 1 if higher_is_better else -1
    for number in range(9):
        run_trial(search, number, sign * (1.0 + number / 100), [sign * (1.0 + number / 100 + step / 1000) for step in range(9)])
    hopeless = dict[int, list[bool]]()
    for number, value in ((20, -3.0), (21, 7.0)):
        search.start_trial(number, proposed(search))
        hopeless[number] = []
        for step in range(1, 9):
            search.report(number, step, sign * (value + step / 1000))
            hopeless[number].append(search.should_prune(number))
    assert any(hopeless[20]) and not any(hopeless[21])


def test_without_pruning_nothing_is_hopeless() -> None:
    search = Search(LINE, "random", [True])
    for number in range(8):
        run_trial(search, number, 1.0, [1.0])
    run_trial(search, 8, None, [-100.0])
    assert not search.should_prune(8)


@pytest.mark.parametrize("prune", ["asha", "median", "wilcoxon"])
def test_nothing_is_hopeless_of_which_nothing_is_known(prune: str) -> None:
    search = Search(LINE, "random", [True], prune=prune, num_steps=9)
    search.start_trial(0, proposed(search))
    assert not search.should_prune(0) and not search.should_prune(77)
    search.report(0, 1, 0.1)
    assert not search.should_prune(0), "the first of all has nobody to be compared with"


@pytest.mark.parametrize("prune", ["asha", "median"])
def test_a_trial_that_has_no_value_in_the_middle_is_pruned_in_silence(prune: str) -> None:
    search = Search(LINE, "random", [True], prune=prune, num_steps=9)
    for number in range(8):
        run_trial(search, number, 1.0, [1.0, 1.0])
    run_trial(search, 9, None, [math.nan, math.nan])
    assert search.should_prune(9)
    search.tell(9, PRUNED, [])
    assert states(search) == {"COMPLETE": 8, "PRUNED": 1}


@pytest.mark.parametrize("num_steps", [3, 4, 5])
def test_wilcoxon_is_refused_where_it_could_never_prune(num_steps: int) -> None:
    """Of few pairs the chance that a trial is as good is never small, and after the last nothing is left to be saved."""
    try:
        search = Search(LINE, "random", [True], prune="wilcoxon", num_steps=num_steps)
    except UsageError as error:
        assert f"folds times repeats = {num_steps}. Use --folds" in str(error)
        return
    run_trial(search, 0, 100.0, [100.0 + step for step in range(num_steps)])
    search.start_trial(1, proposed(search))
    hopeless = []
    for step in range(1, num_steps):
        search.report(1, step, float(step))
        hopeless.append(search.should_prune(1))
    assert any(hopeless), f"--prune wilcoxon is accepted with {num_steps} trainings, and can never prune"


# ---- objectives, whose space nobody knows before -------------------------------------------------------------------------


def text_of(distribution: optuna.distributions.BaseDistribution) -> str:
    return optuna.distributions.distribution_to_json(distribution)


def test_parameters_that_an_objective_suggests_are_proposed_in_advance_from_then_on() -> None:
    search = Search(None, "tpe", [False], seed=1)
    whole, real = optuna.distributions.IntDistribution(1, 9), optuna.distributions.FloatDistribution(0.1, 1.0, log=True)
    first = proposed(search)
    assert first.values == {}
    search.start_trial(0, first)
    values = {"n": search.suggest(0, "n", text_of(whole)), "x": search.suggest(0, "x", text_of(real))}
    assert type(values["n"]) is int and 1 <= values["n"] <= 9 and 0.1 <= values["x"] <= 1.0
    assert search.suggest(0, "n", text_of(whole)) == values["n"], "asked again, the same"
    assert search.distributions(0) == {"n": text_of(whole), "x": text_of(real)}
    search.tell(0, COMPLETE, [1.0])
    assert set(proposed(search).values) == {"n", "x"}

    details = {"asked": values, "distributions": {"n": text_of(whole), "x": text_of(real)}}
    remembered = Search(None, "tpe", [False])
    remembered.add_known_trial(of(proposal_record(0, {}), end_record(0, 0, COMPLETE, [1.0], 1.0, details=details)).trials[0])
    assert remembered._study.best_trial.params == values
    assert set(proposed(remembered).values) == {"n", "x"}


def test_a_resumed_objective_may_suggest_further_parameters() -> None:
    search = Search(None, "tpe", [False], seed=1)
    search.add_known_trial(
        of(proposal_record(0, {}), begin_record(0, 0, "job/0", 1.0), give_back_record(0, 0, "stopped", 2.0)).trials[0]
    )
    value = search.suggest(0, "x", text_of(optuna.distributions.FloatDistribution(3.0, 4.0)))
    assert 3.0 <= value <= 4.0
    search.tell(0, COMPLETE, [1.0])
    assert search._study.best_trial.params == {"x": value}


def test_an_objective_may_change_its_mind_about_a_range() -> None:
    search = Search(None, "random", [False], seed=1)
    search.start_trial(0, proposed(search))
    search.suggest(0, "x", text_of(optuna.distributions.FloatDistribution(0.0, 1.0)))
    search.tell(0, COMPLETE, [1.0])
    search.start_trial(1, proposed(search))
    value = search.suggest(1, "x", text_of(optuna.distributions.FloatDistribution(5.0, 6.0)))
    assert 5.0 <= value <= 6.0, "what was proposed ahead lay in the range of the trial before"


# ---- refusals ------------------------------------------------------------------------------------------------------------

REFUSED: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "unknown search": ({"name": "tpee"}, r"unknown search 'tpee' \(--search\); did you mean 'tpe'"),
    "unknown pruner": ({"name": "tpe", "prune": "ashe"}, r"unknown pruner 'ashe' \(--prune\); did you mean 'asha'"),
    "pruning of two": (
        {"name": "tpe", "prune": "asha", "higher_is_better": [True, False]},
        "asha needs a single metric, and 2",
    ),
    "cmaes of two": ({"name": "cmaes", "higher_is_better": [True, True]}, "--search cmaes is for one metric; use tpe"),
    "grid of nothing": ({"name": "grid", "space": None}, "--search grid needs a space"),
    "one training": (
        {"name": "tpe", "prune": "wilcoxon", "num_steps": 1},
        r"--prune wilcoxon .* = 1\. Use --folds and --repeats for at least",
    ),
    "two trainings": (
        {"name": "tpe", "prune": "wilcoxon", "num_steps": 2},
        r"--prune wilcoxon .* = 2\. Use --folds and --repeats for at least",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused(case: str) -> None:
    options, message = REFUSED[case]
    with pytest.raises(UsageError, match=message):
        Search(**{"space": LINE, "higher_is_better": [True], **options})


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_the_search_cannot_use_is_the_users_mistake(seed: int) -> None:
    with pytest.raises(UsageError, match=rf"--seed must lie in 0\.\.4294967295; received {seed}"):
        Search(LINE, "tpe", [True], seed=seed)


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_the_ends_of_the_seeds_can_be_used(seed: int) -> None:
    assert_inside(LINE, Search(LINE, "tpe", [True], seed=seed).propose().values)


def test_a_stopgap_proposes_for_the_same_study() -> None:
    search = Search(Space([Dimension("x", Range(-1.0, 1.0))]), "gp", [False], has_fallback=True)
    for number, proposal in enumerate((search.propose(), search.propose_by_fallback())):
        search.start_trial(number, proposal)
        search.tell(number, COMPLETE, [proposal.values["x"] ** 2])
    states = [trial.state.name for trial in search._study.get_trials(deepcopy=False)]
    assert states == ["COMPLETE", "COMPLETE"] and search._trials[0].params != search._trials[1].params
