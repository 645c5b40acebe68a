"""Trainings for the benchmarks, of bench/asynchronous_task.py unless told otherwise: each a `unisono train` of its own, of which
every epoch is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.groups import FOLDERS, GroupFailed, Launch, end, started
from bench.record import Record
from bench.rounds import orders, spread

TASK = "bench/asynchronous_task.py"
ALWAYS = ("--checkpoint-every", "never", "--quiet", "--threads", "1")
METRIC = "val_accuracy"
KEPT = (
    "num_workers",
    "global_batch",
    "steps",
    "num_skipped_updates",
    "num_parameters",
    "metrics",
    "wall_s",
    "engine",
    "device",
    "weights_sha256",
    "versions",
)
"""Of the summary of a run."""
LOOK_EVERY_S = 0.2

Commands = Callable[[Sequence[str]], Sequence[Sequence[str]]]
"""The commands that together are one training, from that of one process."""
Runs = Sequence[Mapping[str, Any]]


def on_this_machine(command: Sequence[str]) -> list[Sequence[str]]:
    """Pure: one command, which starts all workers."""
    return [[sys.executable, "-m", "unisono", *command]]


class Training:
    """A training that has been started. Local; use it in a `with` statement, which ends it in any case."""

    def __init__(self, options: Sequence[str], limit_s: float, commands: Commands = on_this_machine, task: str = TASK) -> None:
        self._options, self._limit_s, self._commands, self._task = options, limit_s, commands, task

    def __enter__(self) -> Training:
        self._folder = tempfile.TemporaryDirectory(prefix=f"{FOLDERS}{os.getpid()}-")
        command = ["train", self._task, *self._options, *ALWAYS, "--out", str(self._run)]
        self._until = time.monotonic() + self._limit_s
        self._processes: list[subprocess.Popen[bytes]] = []
        with self._log.open("wb") as log:
            for one in self._commands(command):
                self._processes.append(started(Launch(one), log))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self._processes:
            end(process)
        self._folder.cleanup()

    @property
    def _run(self) -> Path:
        return Path(self._folder.name) / "run"

    @property
    def _log(self) -> Path:
        return Path(self._folder.name) / "log"

    def is_over(self) -> bool:
        """Local: whether all its processes have ended. Raises `GroupFailed` when it takes longer than allowed."""
        if all(process.poll() is not None for process in self._processes):
            return True
        if time.monotonic() > self._until:
            raise GroupFailed(f"{self} was not done after {self._limit_s:g} s and printed:\n{self._printed()}")
        return False

    def result(self) -> dict[str, Any]:
        """Local: what is kept of a training that is over."""
        codes = [process.returncode for process in self._processes]
        if any(codes):
            raise GroupFailed(f"{self} ended with {codes} and printed:\n{self._printed()}")
        return kept(json.loads((self._run / "summary.json").read_text()))

    def _printed(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])

    def __str__(self) -> str:
        return f"unisono train {self._task} {' '.join(self._options)}"


def kept(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Pure: what a benchmark keeps of the summary of a run; epochs count from 1."""
    epochs = [
        {"epoch": row["epoch"] + 1, "wall_s": row["wall_s"], "samples_per_s": row["samples_per_s"], **row["metrics"]}
        for row in summary["history"]
    ]
    return {**{name: summary[name] for name in KEPT}, "epochs": epochs}


def data_options(mnist: Path, effort: Mapping[str, Any]) -> list[str]:
    """Pure: which images, and how often."""
    sizes = [option for name in ("num_train", "num_test") for option in ("--set", f"data.{name}={effort[name]}")]
    return ["--epochs", str(effort["epochs"]), "--set", f"data.mnist={mnist.resolve()}", *sizes]


def trained(options: Sequence[str], limit_s: float, commands: Commands = on_this_machine, task: str = TASK) -> dict[str, Any]:
    """Local, blocking: one training."""
    ((_, found),) = side_by_side({"": options}, 1, limit_s, commands, task)
    return found


def side_by_side(
    wanted: Mapping[str, Sequence[str]], num_jobs: int, limit_s: float, commands: Commands = on_this_machine, task: str = TASK
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Local, blocking: the trainings of these options, `num_jobs` at a time, each as soon as it is over."""
    waiting = list(wanted.items())
    with ExitStack() as stack:
        running: dict[str, Training] = {}
        while waiting or running:
            while waiting and len(running) < num_jobs:
                name, options = waiting.pop(0)
                running[name] = stack.enter_context(Training(options, limit_s, commands, task))
            for name in [name for name, training in running.items() if training.is_over()]:
                yield name, running.pop(name).result()
            time.sleep(LOOK_EVERY_S)


def trained_with_seeds(
    record: Record,
    algorithms: Mapping[str, Sequence[str]],
    seeds: Sequence[int],
    more: Sequence[str],
    limit_s: float,
    commands: Commands = on_this_machine,
) -> list[dict[str, Any]]:
    """Local, blocking: one training of each algorithm with each seed; in every seed they run in a shuffled order."""
    for seed, order in zip(seeds, orders(list(algorithms), len(seeds), seed=20), strict=True):
        for name in order:
            if record.lacks(key := f"{name}, seed {seed}"):
                found = trained([*algorithms[name], "--seed", str(seed), *more], limit_s, commands)
                record.add(key, {"algorithm": name, "seed": seed, **found})
                record.progress.keep(f"{key}: {accuracy(found):.2f} % in {found['epochs'][-1]['wall_s']:.0f} s")
    return [record.blocks[f"{name}, seed {seed}"] for name in algorithms for seed in seeds]


def accuracy(run: Mapping[str, Any], epoch: int = -1) -> float:
    """Pure: in percent, after an epoch (from 1; -1: the last)."""
    return 100 * float(run["epochs"][epoch - 1 if epoch > 0 else epoch][METRIC])


def reached(run: Mapping[str, Any], target: float) -> tuple[int, float] | None:
    """Pure: the first epoch that was this good, and the seconds until its end; None if there was none."""
    return next(((row["epoch"], row["wall_s"]) for row in run["epochs"] if row[METRIC] >= target), None)


def best(run: Mapping[str, Any]) -> tuple[float, int]:
    """Pure: the best accuracy in percent, and the epoch that had it first."""
    row = max(run["epochs"], key=lambda row: float(row[METRIC]))
    return 100 * float(row[METRIC]), int(row["epoch"])


def staleness(run: Mapping[str, Any]) -> tuple[float, int] | None:
    """Pure: mean and largest of the whole run; None where there is none, as workers agree in every step or round."""
    rows = [row for row in run["epochs"] if "staleness" in row]
    if not rows:
        return None
    return sum(row["staleness"] for row in rows) / len(rows), int(max(row["staleness_max"] for row in rows))


def grouped(runs: Runs) -> dict[str, list[Mapping[str, Any]]]:
    """Pure: the runs of each algorithm, by seed."""
    return {name: [run for run in runs if run["algorithm"] == name] for name in dict.fromkeys(run["algorithm"] for run in runs)}


def time_to(runs: Runs, target: float) -> str:
    """Pure: seconds until the end of the first epoch that was this good."""
    times = [found[1] for run in runs if (found := reached(run, target))]
    if not times:
        return "not reached"
    missing = len(runs) - len(times)
    return f"{spread(times):.1f} s" + (f", not reached by {missing}" if missing else "")
