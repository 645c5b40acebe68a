"""Trainings for the benchmarks, of bench/asynchronous_task.py unless told otherwise: each a `unisono train` of its own, of which
every epoch is kept."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.groups import GroupFailed, Launch, end, started, temporary_folder
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
PAPERS_DOWNPOUR = ("--algorithm", "downpour", "--set", "algorithm.optimizer_on=server", "--set", "algorithm.damping=off")
"""Downpour as it was published, with one optimiser and without damping."""
SAY_PAPERS_DOWNPOUR = (
    "Downpour is that of its paper: `--set algorithm.optimizer_on=server --set algorithm.damping=off`. By default each worker has "
    "an optimiser of its own, which was not measured here."
)

Commands = Callable[[Sequence[str]], Sequence[Sequence[str]]]
"""The commands that together are one training, from that of one process."""
Runs = Sequence[Mapping[str, Any]]


def on_this_machine(command: Sequence[str]) -> list[Sequence[str]]:
    """Pure: one command, which starts all workers."""
    return [[sys.executable, "-m", "unisono", *command]]


@contextmanager
def training(
    options: Sequence[str], limit_s: float, commands: Commands, task: str
) -> Iterator[Callable[[], dict[str, Any] | None]]:
    """Local: a training that has been started, and that ends with the context. What it gives tells its result, and None before the
    end; it raises `GroupFailed` where the training fails or takes longer than allowed."""
    until, processes = time.monotonic() + limit_s, list[subprocess.Popen[bytes]]()
    with temporary_folder() as folder, ExitStack() as held:
        log, out = folder / "log", folder / "run"
        with log.open("wb") as sink:
            for command in commands(["train", task, *options, *ALWAYS, "--out", str(out)]):
                processes.append(started(Launch(command), sink))
                held.callback(end, processes[-1])

        def failed(how: str) -> GroupFailed:
            printed = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            return GroupFailed(f"unisono train {task} {' '.join(options)} {how} and printed:\n{printed}")

        def result() -> dict[str, Any] | None:
            codes = [process.poll() for process in processes]
            if None not in codes:
                if any(codes):
                    raise failed(f"ended with {codes}")
                return kept(json.loads((out / "summary.json").read_text()))
            if time.monotonic() > until:
                raise failed(f"was not done after {limit_s:g} s")
            return None

        yield result


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
        running: dict[str, Callable[[], dict[str, Any] | None]] = {}
        while waiting or running:
            while waiting and len(running) < num_jobs:
                name, options = waiting.pop(0)
                running[name] = stack.enter_context(training(options, limit_s, commands, task))
            for name, result in list(running.items()):
                if found := result():
                    del running[name]
                    yield name, found
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
