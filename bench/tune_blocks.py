"""How many blocks can one coordinator keep busy? Simulated studies with more and more of them, until it breaks."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.groups import FOLDERS
from bench.progress import Progress
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


def measure_blocks(record: Record, effort: Effort, progress: Progress) -> None:
    """Blocking: all cases that `record` does not have yet."""
    for series in effort.series:
        for num_blocks in series.sizes:
            key = f"{series.name}, {num_blocks} blocks"
            if key not in record.blocks:
                progress.say(f"blocks: {key}")
                record.add(key, {"series": series.name, "search": series.search, **played(series.case(num_blocks))})
            found = record.blocks[key]
            if "error" not in found:
                progress.keep(f"{key}: busy {found['busy_share']:.1%}, {found['real_s']:.0f} s")
            if "error" in found or found["busy_share"] < ENOUGH or found["real_s"] > effort.most_s:
                break
    for how, case in (("simulated, side by side", effort.real), ("simulated, one lock", replace(effort.real, shares_lock=True))):
        if (key := f"check: {how}") not in record.blocks:
            record.add(key, {"how": how, **played(case)})
    if (key := "check: real") not in record.blocks:
        progress.say("blocks: the same with real waiting")
        record.add(key, {"how": "real waiting, a real thread", **played(effort.real, is_real=True)})


def played(case: Case, is_real: bool = False) -> dict[str, Any]:
    """Local, blocking: what a study was like."""
    about = {"blocks": case.num_blocks, "trials": case.num_trials, "mean_s": case.mean_s, "shares_lock": case.shares_lock}
    folder = Path(tempfile.mkdtemp(prefix=f"{FOLDERS}{os.getpid()}-"))
    try:
        return {**about, **described(in_real_time(case, folder) if is_real else simulate(case, folder), case.num_blocks)}
    except StandsStill as error:
        return {**about, "error": str(error)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
