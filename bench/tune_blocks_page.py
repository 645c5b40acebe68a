"""The part of `bench.tune`'s page on how many blocks one coordinator keeps busy."""

from __future__ import annotations

from bench.bounds import Bound, judge, told
from bench.figure import Line, Panel
from bench.page import Page, Result, Table
from bench.tune_blocks import ENOUGH

MANY_BLOCKS = 1000
HEADER = (
    "busy, %",
    "after the first, %",
    "median gap, ms",
    "mean gap, ms",
    "trials/s",
    "coordinator could, /s",
    "first / last proposals, ms",
)


def page_of(part: Result) -> Page:
    """Pure: this part of the page."""
    runs, bounds = list(part["runs"].values()), _verdicts(part)
    check = next(run for run in runs if "how" in run)
    as_many = 60.0 * check["blocks"] / check["mean_s"]
    return Page(
        question="How many blocks does one coordinator keep busy?",
        answer=f"{told(bounds)}.",
        result=part,
        setup="Studies on a virtual clock with the real coordinator, search, store and journal; blocks, sockets and the waiting "
        f"are made up. Trials take lognormal times (sigma 0.5), and there are {part['settings']['trials_each']} for each block. "
        "What the coordinator does takes on the virtual clock what it takes in reality, and letters wait in line meanwhile.",
        tables=[
            Table(
                ["search, mean trial, proposals", "blocks", *HEADER],
                [[run["series"], f"{run['blocks']:,}", *_row(run)] for run in runs if "series" in run],
            ),
            Table(
                [f"trials of {check['mean_s']:g} s", "blocks", *HEADER],
                [[run["how"], f"{run['blocks']:,}", *_row(run)] for run in runs if "how" in run],
                f"The same study simulated in both ways and with real waiting; it has as many trials a second as {as_many:,.0f} "
                "blocks with trials of 60 s:",
            ),
        ],
        bounds=bounds,
        lists={"Where the limit lies": _limits(part)},
        reading=[
            "Busy: the share of all blocks' time from the start of the study, when all are ready, to the end of each one's last "
            "trial or until no trial is left to begin, whichever is later; `after the first` counts from the begin of each one's "
            "first trial.",
            "Side by side: proposals are made by a second server that takes nothing from the coordinator. One lock: both take "
            "turns, one proposal or one round of letters at a time. Python's lock is between the two, nearer to the second; a real "
            "thread may be interrupted every 0.5 ms, the simulated one only after a whole proposal.",
            "`coordinator could`: trials divided by the time that the coordinator worked. First / last proposals: the mean of the "
            "first and of the last hundred at most: a search that models all earlier trials takes longer the more there are.",
            "A series ends with the first number of blocks that is busy less than asked, or that takes too long to simulate.",
            "DeepHyper reports above 95 % with 1,920 workers on a supercomputer (arXiv:2207.00479); there every worker has a "
            "search of its own and nobody coordinates, and trials, machine and way of counting are others.",
            "The folder of the study is on a local disk. On a network file system each round's wait for the disk is longer.",
        ],
        versions={"packages": part["versions"]},
    )


def _by_series(part: Result) -> dict[str, list[Result]]:
    runs = [run for run in part["runs"].values() if "series" in run]
    return {name: [run for run in runs if run["series"] == name] for name in dict.fromkeys(run["series"] for run in runs)}


def _row(run: Result) -> list[str]:
    if "error" in run:
        return [run["error"], *["-"] * (len(HEADER) - 1)]
    made_ms = [1e3 * mean_s for mean_s in run["proposal_means_s"]]
    return [
        f"{100 * run['busy_share']:.1f}",
        f"{100 * run['busy_share_after_first']:.1f}",
        f"{1e3 * run['gap_quantiles_s'][2]:.1f}",
        f"{1e3 * run['gap_mean_s']:.1f}",
        f"{run['trials'] / run['took_s']:.2f}",
        f"{run['coordinator_trials_per_s']:.0f}",
        f"{made_ms[0]:.1f} / {made_ms[-1]:.1f}",
    ]


def _verdicts(part: Result) -> list[Bound]:
    bounds = []
    for name, runs in _by_series(part).items():
        many = [run for run in runs if run["blocks"] == MANY_BLOCKS]
        if many and "error" not in many[0]:
            unit = f"% of their time are {MANY_BLOCKS:,} blocks busy"
            bounds.append(judge(name, 100 * many[0]["busy_share"], unit, at_least=100 * ENOUGH))
        elif runs[-1]["blocks"] < MANY_BLOCKS or many:
            bounds.append(Bound(name, f"{runs[-1]['blocks']:,} blocks are too many already", f"{MANY_BLOCKS:,} blocks", "MISSED"))
    return bounds


def _limits(part: Result) -> list[str]:
    """For each series the largest number of blocks that was kept busy, and why there is no larger one."""
    lines = []
    for name, runs in _by_series(part).items():
        good, last = [run["blocks"] for run in runs if "error" not in run and run["busy_share"] >= ENOUGH], runs[-1]
        kept = f"{max(good):,} blocks were kept busy" if good else "no number of blocks was kept busy"
        why = f"{last['blocks']:,} were not"
        if last["blocks"] in good:
            why = f"more were not simulated (this one took {last['real_s']:.0f} s)"
        lines.append(f"{name}: {kept} {100 * ENOUGH:g} % of their time; {why}.")
    return lines


def panel(part: Result) -> Panel:
    """Pure: busy blocks of each series."""
    good = {name: [run for run in runs if "error" not in run] for name, runs in _by_series(part).items()}
    lines = [Line(name, [run["blocks"] for run in runs], [100 * run["busy_share"] for run in runs]) for name, runs in good.items()]
    marks = {f"{100 * ENOUGH:g} %": 100 * ENOUGH}
    return Panel("busy blocks of one coordinator, simulated", "blocks", "busy, %", lines, marks, settings={"xscale": "log"})
