"""Do parallel blocks find as much as a serial search with as many trials, and more in the same time?"""

from __future__ import annotations

import heapq
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.bounds import Bound, judge
from bench.figure import COLOURS, Line, Panel
from bench.groups import Launch, temporary_folder
from bench.page import Page, Result, Table
from bench.record import Record
from bench.rounds import Estimate, Floats, estimate
from bench.tune_overhead import run_program
from bench.tune_problems import PROBLEMS, Problem, suggested
from bench.tune_simulation import Case, simulate
from unisono.tuning.study.study_options import TuneConfig, choose_search

NUM_BLOCKS = 4
DEFAULT, TPE = "unisono", "unisono_tpe"
"""Ours with the search that is taken unless another is asked for, and with Optuna's default."""
REAL_MEAN_S = 1.0
"""Of a trial in the runs that are not simulated."""


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    seeds: int
    trials: int
    mean_s: float = 60.0
    """Of a simulated trial."""
    sigma: float = 0.3


FULL, QUICK = Effort(20, 60), Effort(3, 12)


def measure_quality(record: Record, effort: Effort) -> None:
    """Blocking: all problems and seeds that `record` does not have yet."""
    for name, problem in PROBLEMS.items():
        for seed in range(effort.seeds):
            key = f"{name}, seed {seed}"
            if record.lacks(key):
                case = Case(
                    NUM_BLOCKS, effort.trials, "tpe", seed, effort.mean_s, effort.sigma, False, problem.space, problem.value
                )
                ways = {"optuna": 1, "optuna_parallel": NUM_BLOCKS}
                found = {way: by_optuna(problem, case, num_at_once) for way, num_at_once in ways.items()}
                ours = {DEFAULT: in_blocks(replace(case, search=search_of_task(problem, effort))), TPE: in_blocks(case)}
                record.add(key, {"problem": name, "seed": seed, **ours, **found})
        if record.lacks(key := f"{name}, real"):
            record.add(key, {"problem": name, "seed": 0, "best": in_reality(name, effort)})


def search_of_task(problem: Problem, effort: Effort) -> str:
    """Pure: what `unisono tune` takes for such a space unless it is told otherwise."""
    return choose_search(TuneConfig("", {}), problem.space, effort.trials, NUM_BLOCKS)


def in_blocks(case: Case) -> list[list[float]]:
    """Local, blocking: when each trial of a simulated study of ours ended, and what it was worth."""
    with temporary_folder() as folder:
        return [[round(at, 4), value] for at, _, value in simulate(case, folder).ended]


def by_optuna(problem: Problem, case: Case, num_at_once: int) -> list[list[float]]:
    """Local, blocking: the same of Optuna by itself, so many trials at a time, each chosen when the one before it has ended."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=case.seed))
    now, running, found = 0.0, list[tuple[float, int, float]](), list[list[float]]()
    for number in range(case.num_trials + num_at_once):
        if number >= num_at_once:
            now, earlier, value = heapq.heappop(running)
            study.tell(earlier, value)
            found.append([round(now, 4), value])
        if number < case.num_trials:
            trial = study.ask()
            value = problem.value(suggested(trial, problem.space))
            heapq.heappush(running, (now + case.duration_s(number), trial.number, value))
    return found


def in_reality(name: str, effort: Effort) -> float:
    """Local, blocking: the best value of one `un.tune` that is not simulated."""
    numbers = (NUM_BLOCKS, effort.trials, 0, REAL_MEAN_S, effort.sigma, search_of_task(PROBLEMS[name], effort))
    with temporary_folder() as folder:
        program = [sys.executable, "-m", "bench.ranks.tune_problem", str(folder), name, *map(str, numbers)]
        run_program(name, Launch(program), folder / "log")
        return float(json.loads((folder / "best.json").read_text()))


def best_until(trials: Sequence[Sequence[float]], until_s: float) -> float:
    """Pure: the best of the trials that had ended by then; the first where none had."""
    return min([value for at, value in trials if at <= until_s] or [trials[0][1]])


def difference(ours: Floats, theirs: Floats) -> Estimate:
    """Pure: of the means over seeds, pair by pair, with the 95 % interval of a bootstrap over seeds."""
    return estimate(ours - theirs, of=np.mean)


@dataclass(frozen=True)
class Found:
    """What both have found of one problem, one value for each seed."""

    ours: Floats
    """After all trials."""
    theirs: Floats
    """Of Optuna, one by one."""
    theirs_parallel: Floats
    """Of Optuna with as many at a time."""
    theirs_in_time: Floats
    """When ours had ended all its trials."""
    num_in_time: Floats
    """Trials that Optuna had ended by then."""

    @classmethod
    def of(cls, runs: Sequence[Mapping[str, Any]], who: str = DEFAULT) -> Found:
        ends = [run[who][-1][0] for run in runs]
        in_time = [best_until(run["optuna"], end) for run, end in zip(runs, ends, strict=True)]
        num_in_time = [sum(at <= end for at, _ in run["optuna"]) for run, end in zip(runs, ends, strict=True)]
        return cls(
            _bests(runs, who),
            _bests(runs, "optuna"),
            _bests(runs, "optuna_parallel"),
            np.asarray(in_time, dtype=np.float64),
            np.asarray(num_in_time, dtype=np.float64),
        )


def _bests(runs: Sequence[Mapping[str, Any]], who: str) -> Floats:
    return np.asarray([min(value for _, value in run[who]) for run in runs], dtype=np.float64)


def curve(runs: Sequence[Mapping[str, Any]], who: str, times: Floats) -> Floats:
    """Pure: the mean over seeds of the best value so far, at these times."""
    return np.asarray([np.mean([best_until(run[who], at) for run in runs]) for at in times], dtype=np.float64)


POINTS = 60


def page_of(part: Result) -> Page:
    """Pure: this part of the page."""
    settings, bounds = part["settings"], _verdicts(part)
    default = settings["default_search"]
    problems = [
        f"{name}: {about['about']}" + (f"; the least value is {about['best']:g}." if about["best"] is not None else ".")
        for name, about in part["problems"].items()
    ]
    return Page(
        question="Do parallel blocks find as much as a serial search?",
        answer=f"After {settings['trials']} trials they are not worse, beyond the noise, on {_holding(bounds[::2])} problems, and "
        f"better in the same time on {_holding(bounds[1::2])}.",
        result=part,
        setup=f"The best value after {settings['trials']} trials, the mean over {settings['seeds']} seeds; less is better. 4 "
        f"blocks on a virtual clock, whose trials take lognormal times (sigma {settings['sigma']:g}), against Optuna's default "
        "sampler (TPE) with the same seed, one trial after the other, each of which takes as long. Ours is shown with the search "
        f"that `unisono tune` takes for such a space unless it is told otherwise ({default}), and with TPE.",
        tables=[_table(part)],
        bounds=bounds,
        reading=[
            *problems,
            "Differences are of the means, ours less Optuna's, pair by pair with the same seed, with the 95 % interval of a "
            "bootstrap over seeds. The first bound is missed when the whole interval lies above 0, the second unless it lies "
            "wholly below.",
            "The bounds are judged for the default search. The rows of TPE compare the same search: what they find less than one "
            "by one is what parallel blocks cost, and what the default finds more than they is what the choice of a search gives.",
            "With 4 at a time: Optuna's sampler asked for the next point when a trial has ended, at once and with nothing made "
            "ahead. What 4 at a time find less than one by one there, they find less because each is chosen before 3 others have "
            "ended; what ours finds less than that would be the price of proposals ahead of demand.",
            "In the same time: what Optuna had found by the moment when our last trial ended.",
            "The simulation runs the real search, coordinator and rules of proposals ahead of demand; trials take "
            f"{settings['mean_s']:g} virtual seconds on average. To see whether it can be believed, each problem is also searched "
            f"once by a real `un.tune` with 4 blocks and the default search, whose trials take {settings['real_mean_s']:g} s on "
            "average; its best value should lie among those of the seeds that were simulated.",
            "The time that proposals take is measured and runs on the virtual clock, so another machine, or a busy one, may give "
            "other trials.",
        ],
        versions={"packages": part["versions"]},
    )


def by_problem(part: Result) -> dict[str, list[Result]]:
    """Pure: the simulated runs of each problem, by seed."""
    runs = [run for run in part["runs"].values() if "unisono" in run]
    return {name: [run for run in runs if run["problem"] == name] for name in part["problems"]}


def _table(part: Result) -> Table:
    settings, rows, in_time = part["settings"], [], []
    for name, runs in by_problem(part).items():
        for who in (DEFAULT, TPE):
            found, real = Found.of(runs, who), part["runs"][f"{name}, real"]["best"]
            peers = (found.theirs, found.theirs_parallel, found.theirs_in_time)
            against = [cell for peer in peers for cell in (f"{peer.mean():.4g}", f"{difference(found.ours, peer):+.3g}")]
            simulated = f"{real:.4g} ({found.ours.min():.4g} to {found.ours.max():.4g})" if who == DEFAULT else ""
            search = settings["default_search"] if who == DEFAULT else "tpe"
            rows.append([f"{name}, {search}", f"{found.ours.mean():.4g}", *against, simulated])
        in_time.append(Found.of(runs).num_in_time.mean())
    trials = settings["trials"]
    header = [
        f"mean best of {settings['seeds']} seeds",
        f"unisono, 4 blocks, {trials} trials",
        f"optuna, tpe, {trials} one by one",
        "difference",
        f"optuna, tpe, {trials} with 4 at a time",
        "difference",
        f"optuna, tpe, one by one, in the same time ({np.mean(in_time):.0f} trials)",
        "difference",
        "a real run (simulated: least to most)",
    ]
    return Table(header, rows)


def _verdicts(part: Result) -> list[Bound]:
    bounds, trials = [], part["settings"]["trials"]
    for name, runs in by_problem(part).items():
        found, with_tpe = Found.of(runs), Found.of(runs, TPE).ours
        equal, timed = difference(found.ours, found.theirs), difference(found.ours, found.theirs_in_time)
        alike = f"{equal:+.3g} after {trials} trials, against one by one"
        verdict = judge(name, equal, at_most=0.0).verdict
        bounds.append(Bound(name, alike, "at most 0", verdict, f" (with tpe: {difference(with_tpe, found.theirs):+.3g})"))
        verdict = "holds" if timed.high < 0 else "MISSED"
        bounds.append(Bound(name, f"{timed:+.3g} in the same time, against one by one", "wholly below 0", verdict))
    return bounds


def _holding(bounds: Sequence[Bound]) -> str:
    return f"{sum(bound.verdict != 'MISSED' for bound in bounds)} of {len(bounds)}"


def panels(part: Result) -> list[Panel]:
    """Pure: the best value so far on each problem."""
    found = []
    for name, runs in by_problem(part).items():
        end, lines = max(run["optuna"][-1][0] for run in runs), []
        times = np.linspace(end / POINTS, end, POINTS)
        for at, (who, label) in enumerate((("unisono", "unisono, 4 blocks"), ("optuna", "optuna, one by one"))):
            shown = times[times <= max(run[who][-1][0] for run in runs) * 1.01]
            lines.append(Line(label, shown / 60, curve(runs, who, shown), look={"color": COLOURS[3 * at], "marker": ""}))
        found.append(Panel(name, "virtual minutes", "mean of the best value so far", lines))
    return found
