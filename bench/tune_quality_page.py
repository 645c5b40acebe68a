"""The part of `bench.tune`'s page on what parallel blocks find."""

from __future__ import annotations

import numpy as np

from bench.bounds import Bound, judge, told
from bench.figure import COLOURS, Line, Panel
from bench.page import Page, Result, Table
from bench.tune_quality import DEFAULT, TPE, Found, curve, difference

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
        answer=f"Differences of the best values, less is better: {told(bounds)}.",
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
