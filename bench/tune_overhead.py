"""How long a worker is without a trial: every contender runs studies whose trials only wait, in interleaved rounds."""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.contenders.contender import Unavailable
from bench.contenders.tune import JOURNAL, OURS, WAYS, Way
from bench.groups import ONE_THREAD, GroupFailed, Launch, end, started, temporary_folder
from bench.machine import stolen_s
from bench.page import one_line
from bench.ranks.tune_trial import Order, waits_of
from bench.record import Record
from bench.rounds import Floats, orders

NUM_WORKERS = 4
LIMIT_S = 180.0
SEED = 20

Waits = Mapping[str, Sequence[Sequence[float]]]
"""Worker -> when each of its trials began and ended, in seconds since the start of its program."""


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    rounds: int
    trials: int
    """Of one study."""
    seconds: float
    """That a trial waits."""


FULL, QUICK = Effort(9, 28, 1.0), Effort(1, 8, 0.3)


@dataclass(frozen=True)
class Ahead:
    """One row of the table of proposals ahead of demand."""

    name: str
    way: Way
    search: str
    seconds: float
    """That a trial waits."""


AHEAD = (
    Ahead("unisono, random", OURS, "random", 1.0),
    Ahead("unisono, tpe", OURS, "tpe", 1.0),
    Ahead("unisono, gp", OURS, "gp", 2.0),
    Ahead("optuna journal, gp", JOURNAL, "gp", 2.0),
)
AHEAD_RUNS = 2


def measure_overhead(record: Record, effort: Effort, names: Sequence[str]) -> None:
    """Blocking: all rounds that `record` does not have yet. A peer that fails is not asked again."""
    failed: dict[str, str] = dict(record.blocks.get("failed", {}))
    ways = {way.name: way for way in WAYS if way.name in names and way.name not in failed}
    for name, way in list(ways.items()):
        try:
            record.progress.say(f"{name} is prepared")
            way.prepare()
        except Unavailable as error:
            failed[name] = one_line(error)
            record.progress.keep(f"{name} takes no part: {error}")
            del ways[name]
    record.add("failed", failed)
    for number, order in enumerate(orders([way.name for way in WAYS], effort.rounds, SEED)):
        for name in order:
            key = f"{name}, round {number}"
            if name in ways and record.lacks(key):
                seconds = effort.seconds / NUM_WORKERS if ways[name].is_serial else effort.seconds
                wanted = Order("", effort.trials, NUM_WORKERS, seconds, SEED + number, "tpe")
                try:
                    record.add(key, {"contender": name, "round": number, **searched(ways[name], wanted)})
                except GroupFailed as error:
                    if ways[name].kind in ("ours", "noise"):
                        raise
                    failed[name] = one_line(error)
                    record.add("failed", failed)
                    record.progress.keep(f"{name} takes no more part: {error}")
                    del ways[name]


def measure_ahead(record: Record, effort: Effort) -> None:
    """Blocking: all rows that `record` does not have yet, in interleaved rounds."""
    num_runs = min(AHEAD_RUNS, effort.rounds)
    for number, order in enumerate(orders([row.name for row in AHEAD], num_runs, SEED)):
        for name in order:
            (row,) = (row for row in AHEAD if row.name == name)
            key = f"{name}, round {number}"
            if record.lacks(key):
                wanted = Order("", effort.trials, NUM_WORKERS, row.seconds * effort.seconds, SEED + number, row.search)
                record.add(key, {"row": name, "search": row.search, "round": number, **searched(row.way, wanted)})


def searched(way: Way, order: Order) -> dict[str, Any]:
    """Local, blocking: one study from the start of its program to its end. Raises `GroupFailed`."""
    with temporary_folder() as folder:
        order, before = replace(order, folder=str(folder)), stolen_s()
        began = time.monotonic()
        run_program(way.name, way.start(order), folder / "log")
        took_s = time.monotonic() - began
        waits = {
            str(worker): [[round(at - began, 6) for at in trial] for trial in trials]
            for worker, trials in enumerate(waits_of(folder).values())
        }
        num_trials = sum(map(len, waits.values()))
        if num_trials != order.num_trials:
            raise GroupFailed(f"{way.name}: {num_trials} trials were run and {order.num_trials} asked for")
        found = {
            "seconds": order.seconds,
            "waits": waits,
            "took_s": round(took_s, 3),
            "stolen_cpu_s": round(stolen_s() - before, 2),
            "versions": json.loads((folder / "versions.json").read_text()),
        }
        if (file := folder / "proposals.json").exists():
            noted = json.loads(file.read_text())
            found["asked"] = [[round(at - began, 6), is_there] for at, is_there in noted["asked"]]
            found["made"] = [[round(at - began, 6) for at in span] for span in noted["made"]]
        return found


def run_program(name: str, launch: Launch, log: Path) -> None:
    """Local, blocking: until the program and all that it started have ended."""
    with log.open("wb") as sink:
        process = started(replace(launch, environment={**ONE_THREAD, **launch.environment}), sink)
    children: list[psutil.Process] = []
    try:
        process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        children = psutil.Process(process.pid).children(recursive=True)
        raise GroupFailed(f"{name} was not done after {LIMIT_S:g} s and printed: {_said(log)}") from None
    finally:
        if process.poll() is None:
            children = children or psutil.Process(process.pid).children(recursive=True)
            end(process)
        for one in children:  # Ray's daemons have groups of their own
            if one.is_running():
                one.kill()
    if process.returncode:
        raise GroupFailed(f"{name} ended with {process.returncode} and printed: {_said(log)}")


def _said(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-8:])


def gaps_of(waits: Waits) -> Floats:
    """Pure: seconds between the end of a trial and the begin of the next of the same worker."""
    found = [after[0] - before[1] for trials in waits.values() for before, after in itertools.pairwise(trials)]
    return np.asarray(found, dtype=np.float64)


def busy_shares(waits: Waits) -> Floats:
    """Pure: for each worker the share of the time from its first trial's begin to its last one's end in which it had one."""
    return np.asarray(
        [sum(end - begin for begin, end in trials) / (trials[-1][1] - trials[0][0]) for trials in waits.values()], dtype=np.float64
    )


def begins_after(waits: Waits) -> float:
    """Pure: seconds from the start of the program until all workers had a trial."""
    return max(trials[0][0] for trials in waits.values())


def answered_at_once(run: Mapping[str, Any]) -> float:
    """Pure: the share of trials, but for each worker's first, during whose gap nobody asked for a proposal in vain."""
    vain = np.asarray([at for at, is_there in run["asked"] if not is_there], dtype=np.float64)
    served = [
        not np.any((vain >= before[1]) & (vain <= after[0]))
        for trials in run["waits"].values()
        for before, after in itertools.pairwise(trials)
    ]
    return float(np.mean(served))
