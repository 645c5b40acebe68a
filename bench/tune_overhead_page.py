"""The parts of `bench.tune`'s page on how long blocks are without a trial."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bench.bounds import Bound, judge, told
from bench.figure import COLOURS, Line, Panel
from bench.page import INTERLEAVED, Page, Result, Table
from bench.rounds import Floats, estimate
from bench.tune_overhead import answered_at_once, begins_after, busy_shares, gaps_of

LEAST_BUSY = 0.95
"""Share of its time in which a block must have a trial, with four blocks."""
MOST_GAP = 0.5
"""What our gap may be, as a multiple of the best peer's."""
OURS, AT_ONCE = "unisono", "answered at once, %"


def overhead(part: Result) -> Page:
    """Pure: gaps between trials, against peers."""
    settings, bounds = part["settings"], _verdicts(part)
    versions = {name: runs[0]["versions"] for name, runs in by_contender(part).items() if name != f"{OURS} A/A"}
    return Page(
        question="How long is a block without a trial?",
        answer=f"Between two trials: {told(bounds[1:3])}.",
        result={**part, "absent": part["runs"].get("failed", {})},
        setup=f"{settings['trials']} trials that wait {settings['seconds']:g} s and do nothing else, four at a time, of three "
        "settings: a number, a logarithmic one and a whole one. A gap is the time between the end of a trial and the begin of the "
        "next on the same worker: telling the result, choosing the next point, and everything on the way.",
        tables=[_table(part)],
        bounds=bounds,
        reading=[
            f"{settings['rounds']} rounds; in each every contender runs one study in processes of its own. Numbers are medians "
            "over rounds of what each run gave.",
            INTERLEAVED,
            "Each trial notes when it begins, once it knows its settings, and when it ends, by a clock that all processes share. "
            "The time before a worker's first trial and after its last does not count as a gap; `start` is how long after the "
            "start of the program all workers had a trial.",
            "Busy: the share of the time between the begin of a worker's first trial and the end of its last in which it had one; "
            "`least block` is the least of all workers and rounds.",
            "The trials of all workers end at nearly the same time, since all take equally long: the hardest case for one "
            "coordinator.",
            "All that use TPE have Optuna's sampler with `constant_liar=True`; its first 10 trials are drawn at random. Ours, the "
            "journal and SQLite keep every trial on the disk as it goes; `optuna alone` and `optuna threads` keep nothing.",
        ],
        versions={"packages": part["versions"], **versions},
    )


def by_contender(part: Result) -> dict[str, list[Result]]:
    """Pure: the runs of those who took part in all rounds, by round."""
    runs = sorted((run for run in part["runs"].values() if "contender" in run), key=lambda run: int(run["round"]))
    found = {name: [run for run in runs if run["contender"] == name] for name in part["contenders"]}
    return {name: mine for name, mine in found.items() if len(mine) == part["settings"]["rounds"]}


def of_rounds(runs: Sequence[Result], value: Callable[[Any], float]) -> Floats:
    """Pure: one number for each run."""
    return np.asarray([value(run["waits"]) for run in runs], dtype=np.float64)


def mean_gap(waits: Any) -> float:
    """Pure: seconds without a trial between two trials."""
    return float(gaps_of(waits).mean())


def median_gap(waits: Any) -> float:
    """Pure: the same of the one in the middle."""
    return float(np.median(gaps_of(waits)))


def mean_busy(waits: Any) -> float:
    """Pure: in percent, of all workers."""
    return 100 * float(busy_shares(waits).mean())


def _table(part: Result) -> Table:
    found, rows = by_contender(part), []
    ours = of_rounds(found[OURS], mean_gap)
    for name, runs in found.items():
        means, medians = of_rounds(runs, mean_gap), of_rounds(runs, median_gap)
        rows.append(
            {
                "4 at a time": name,
                "median gap, ms": f"{1e3 * np.median(medians):.1f}",
                "mean gap, ms": f"{1e3 * np.median(means):.1f}",
                "mean gap, times unisono": "1" if name == OURS else str(estimate(means / ours)),
                "busy, %": f"{np.median(of_rounds(runs, mean_busy)):.1f}",
                "least block, %": f"{100 * min(of_rounds(runs, lambda waits: float(busy_shares(waits).min()))):.1f}",
                "start, s": f"{np.median(of_rounds(runs, begins_after)):.1f}",
            }
        )
    return Table.of(rows)


def _verdicts(part: Result) -> list[Bound]:
    found, kinds = by_contender(part), {name: one["kind"] for name, one in part["contenders"].items()}
    busy = estimate(of_rounds(found[OURS], mean_busy))
    bounds = [judge("four blocks", busy, "% of their time with a trial", at_least=100 * LEAST_BUSY)]
    peers = [name for name in found if kinds[name] not in ("ours", "noise")]
    groups = {"best peer": peers, "best peer that searches with TPE": [name for name in peers if kinds[name] == "tpe"]}
    for what, value in (("mean gap", mean_gap), ("median gap", median_gap)):
        for of_whom, names in groups.items():
            if not names:
                bounds.append(Bound(what, f"there is no {of_whom}", "-", "not judged"))
                continue
            best = min(names, key=lambda name: float(np.median(of_rounds(found[name], value))))
            times = estimate(of_rounds(found[OURS], value) / of_rounds(found[best], value))
            bounds.append(judge(what, times, f"times that of the {of_whom} ({best})", at_most=MOST_GAP))
    return bounds


def panel(part: Result) -> Panel:
    """Pure: all gaps, with their median."""
    found = {name: 1e3 * np.concatenate([gaps_of(run["waits"]) for run in runs]) for name, runs in by_contender(part).items()}
    lines = []
    for place, (name, gaps) in enumerate(found.items()):
        places = place + np.random.default_rng(0).uniform(-0.25, 0.25, len(gaps))
        colour = COLOURS[0] if name.startswith(OURS) else COLOURS[7]
        dots, bar = {"color": colour, "marker": ".", "linestyle": "", "alpha": 0.5}, {"color": "black", "marker": ""}
        lines.append(Line("_" + name, gaps, places, look=dots))
        lines.append(Line("_median", [float(np.median(gaps))] * 2, [place - 0.4, place + 0.4], look=bar))
    settings = {"xscale": "log", "yticks": range(len(found)), "yticklabels": list(found), "ylim": (len(found) - 0.5, -0.5)}
    return Panel("gaps between trials; the bar is the median", "ms", "", lines, settings=settings)


def ahead(part: Result) -> Page:
    """Pure: how often a proposal was there when a block asked for it."""
    rows = []
    for name in part["rows"]:
        runs = [run for run in part["runs"].values() if run["row"] == name]
        gaps = 1e3 * np.concatenate([gaps_of(run["waits"]) for run in runs])
        made = [1e3 * (end - begin) for run in runs for begin, end in run.get("made", ())]
        at_once = [answered_at_once(run) for run in runs if "asked" in run]
        rows.append(
            {
                "4 at a time": name,
                "a trial": f"{runs[0]['seconds']:g} s",
                "a proposal, median / longest, ms": f"{np.median(made):.1f} / {np.max(made):.0f}" if made else "-",
                AT_ONCE: f"{100 * float(np.mean(at_once)):.0f}" if at_once else "-",
                "median gap, ms": f"{np.median(gaps):.1f}",
                "mean": f"{gaps.mean():.1f}",
                "longest": f"{gaps.max():.0f}",
                "busy, %": f"{float(np.mean(of_rounds(runs, mean_busy))):.1f}",
            }
        )
    answers = [f"{row[AT_ONCE]} % ({row['4 at a time']})" for row in rows if row[AT_ONCE] != "-"]
    return Page(
        question="Is the next proposal there when a block asks for it?",
        answer=f"Answered at once: {', '.join(answers)}.",
        result=part,
        setup="Points are proposed before blocks ask for them, by a thread beside the one that answers. A Gaussian process takes "
        "long to propose; where proposals are ahead, a block does not wait for it.",
        tables=[Table.of(rows)],
        reading=[
            "Answered at once: the share of trials, but for each block's first, in whose gap nobody asked for a proposal in vain; "
            "gaps of several blocks overlap, so a block may be counted as waiting because of another. Where a proposal takes less "
            "than 0.5 % of a trial, a block waits by intention for one that knows all results. A block whose trials are shorter "
            "than 2 s is told the next one when it is half-way through.",
            "A proposal: how long the search took to make one, in the thread of its own; that the process also answers blocks is "
            "in it. Optuna by itself makes proposals in the process of the worker, which waits.",
            "For gp a process loads PyTorch once; ours in a thread of its own while the first trials run.",
            "Demand is 4 / the length of a trial. Where the search makes fewer in a second, nothing can be ahead.",
        ],
        versions={"packages": part["versions"], **{run["row"]: run["versions"] for run in part["runs"].values()}},
    )
