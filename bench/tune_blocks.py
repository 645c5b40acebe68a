"""How many blocks can one coordinator keep busy? Simulated studies with more and more of them, until it breaks."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.bounds import Bound, judge, told
from bench.figure import Line, Panel
from bench.groups import temporary_folder
from bench.page import Page, Result, Table
from bench.record import Record
from bench.tune_simulation import Case, Outcome, StandsStill, in_real_time, simulate

TRIALS_EACH = 3
"""Of every block, on average."""
ENOUGH = 0.95
"""Share of their time in which blocks must have a trial."""
QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
CHUNK = 100
"""Proposals whose durations are kept as one number."""


@dataclass(frozen=True)
class Series:
    """Cases that differ in the number of blocks."""

    search: str
    mean_s: float
    shares_lock: bool
    sizes: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.search}, {self.mean_s:g} s, {'one lock' if self.shares_lock else 'side by side'}"

    def case(self, num_blocks: int) -> Case:
        return Case(num_blocks, TRIALS_EACH * num_blocks, self.search, 0, self.mean_s, shares_lock=self.shares_lock)


@dataclass(frozen=True)
class Effort:
    """What is simulated."""

    series: tuple[Series, ...]
    real: Case
    """Run a second time with real waiting and a real thread, to see whether the simulation can be believed."""
    most_s: float
    """A case that took longer than this is the last of its series."""


FULL = Effort(
    (
        Series("random", 60.0, True, (10, 100, 1000, 2000, 4000, 8000, 16000)),
        Series("tpe", 60.0, False, (10, 100, 1000, 2000)),
        Series("tpe", 60.0, True, (10, 100, 1000, 2000)),
        Series("tpe", 300.0, True, (1000, 2000)),
    ),
    Case(100, 300, "tpe", 0, 6.0),
    40.0,
)
QUICK = Effort((Series("random", 60.0, True, (10, 30)), Series("tpe", 60.0, True, (10, 30))), Case(10, 20, "tpe", 0, 1.0), 10.0)


def measure_blocks(record: Record, effort: Effort) -> None:
    """Blocking: all cases that `record` does not have yet."""
    for series in effort.series:
        for num_blocks in series.sizes:
            key = f"{series.name}, {num_blocks} blocks"
            if record.lacks(key):
                record.add(key, {"series": series.name, "search": series.search, **played(series.case(num_blocks))})
            found = record.blocks[key]
            if "error" not in found:
                record.progress.keep(f"{key}: busy {found['busy_share']:.1%}, {found['real_s']:.0f} s")
            if "error" in found or found["busy_share"] < ENOUGH or found["real_s"] > effort.most_s:
                break
    for how, case in (("simulated, side by side", effort.real), ("simulated, one lock", replace(effort.real, shares_lock=True))):
        if record.lacks(key := f"check: {how}"):
            record.add(key, {"how": how, **played(case)})
    if record.lacks(key := "check: real"):
        record.add(key, {"how": "real waiting, a real thread", **played(effort.real, is_real=True)})


def played(case: Case, is_real: bool = False) -> dict[str, Any]:
    """Local, blocking: what a study was like."""
    about = {"blocks": case.num_blocks, "trials": case.num_trials, "mean_s": case.mean_s, "shares_lock": case.shares_lock}
    try:
        with temporary_folder() as folder:
            return {**about, **described(in_real_time(case, folder) if is_real else simulate(case, folder), case.num_blocks)}
    except StandsStill as error:
        return {**about, "error": str(error)}


def described(outcome: Outcome, num_blocks: int) -> dict[str, Any]:
    """Pure: what is kept of it. A block counts until its last trial ends, or until no trial is left to begin."""
    all_spans = outcome.spans.values()
    gaps = [after[0] - before[1] for spans in all_spans for before, after in itertools.pairwise(spans)]
    busy_s = sum(end - begin for spans in all_spans for begin, end in spans)
    none_left_s = max(spans[-1][0] for spans in all_spans)
    until_s = [max(spans[-1][1], none_left_s) for spans in all_spans] + [none_left_s] * (num_blocks - len(all_spans))
    made_s = np.asarray(outcome.proposals_s)
    num_trials, coordinator_s = len(outcome.ended), sum(outcome.rounds_s)
    return {
        "busy_share": busy_s / sum(until_s),
        "busy_share_after_first": busy_s / (sum(until_s) - sum(spans[0][0] for spans in all_spans)),
        "first_begins_s": max(spans[0][0] for spans in all_spans),
        "took_s": outcome.ended[-1][0],
        "gap_mean_s": float(np.mean(gaps)),
        "gap_quantiles_s": np.round(np.quantile(gaps, QUANTILES), 6).tolist(),
        "rounds": len(outcome.rounds_s),
        "round_quantiles_s": np.round(np.quantile(outcome.rounds_s, QUANTILES), 6).tolist(),
        "coordinator_s": round(coordinator_s, 4),
        "coordinator_trials_per_s": num_trials / coordinator_s,
        "proposals": len(made_s),
        "proposals_s": round(float(made_s.sum()), 4),
        "proposal_means_s": [round(float(made_s[at : at + CHUNK].mean()), 6) for at in range(0, len(made_s), CHUNK)],
        "asked": outcome.num_asked,
        "there": outcome.num_ready,
        "real_s": round(outcome.real_s, 2),
    }


MANY_BLOCKS = 1000


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
            Table.of([{"search, mean trial, proposals": run["series"], **_row(run)} for run in runs if "series" in run]),
            Table.of(
                [{f"trials of {check['mean_s']:g} s": run["how"], **_row(run)} for run in runs if "how" in run],
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


def _row(run: Result) -> dict[str, str]:
    blocks = {"blocks": f"{run['blocks']:,}"}
    if "error" in run:
        return {**blocks, "busy, %": run["error"]}
    return {
        **blocks,
        "busy, %": f"{100 * run['busy_share']:.1f}",
        "after the first, %": f"{100 * run['busy_share_after_first']:.1f}",
        "median gap, ms": f"{1e3 * run['gap_quantiles_s'][2]:.1f}",
        "mean gap, ms": f"{1e3 * run['gap_mean_s']:.1f}",
        "trials/s": f"{run['trials'] / run['took_s']:.2f}",
        "coordinator could, /s": f"{run['coordinator_trials_per_s']:.0f}",
        "first / last proposals, ms": " / ".join(f"{1e3 * run['proposal_means_s'][at]:.1f}" for at in (0, -1)),
    }


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
