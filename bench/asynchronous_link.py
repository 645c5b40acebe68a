"""Time to accuracy of all-reduce, local SGD and DiLoCo between two hosts at 1 Gbit/s: `python -m bench.asynchronous --link`.

The model is wide: its gradient takes longer to send than to compute. Both times are measured too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from bench.asynchronous_link_page import page_of
from bench.groups import Conductor, Launch, Seat
from bench.hosts import LIMITS, RATE, Across, test_hosts
from bench.measurement import begin
from bench.rounds import orders
from bench.trainings import accuracy, data_options, trained
from tests.system.hosts import Host

SEEDS = (0, 1, 2)
NUM_HOSTS, BATCH, TARGET = 2, 64, 0.94
LIMIT_S = 900.0
FULL = {"epochs": 8, "num_train": 6000, "num_test": 10_000}
QUICK = {"epochs": 1, "num_train": 640, "num_test": 500}
SEND_CALLS = 7
COMMON = ("--set", "model.kind=wide", "--set", "optimizer.momentum=0.9")
ENTRIES: Mapping[str, Sequence[str]] = {
    "allreduce": ("--algorithm", "allreduce", "--lr", "0.01"),
    "local_sgd": ("--algorithm", "local_sgd", "--lr", "0.01", "--set", "algorithm.period=16"),
    "diloco": (
        *("--algorithm", "diloco", "--lr", "0.01", "--set", "algorithm.period=16"),
        *("--set", "algorithm.outer_lr=0.9", "--set", "algorithm.outer_momentum=0.3"),
    ),
}

NOT_MEASURED = (
    LIMITS,
    "More workers than two, other engines than gloo, groups of processes on each host (`--group`), a real cable.",
    "Models whose gradient takes less time to send than to compute, where all-reduce hides it behind the computation.",
    "Images that nobody chose anything by: settings were tried out with another seed, and judged by the same test images.",
)


def measure(args: argparse.Namespace) -> None:
    """Local, blocking: train on two hosts, and publish what came of it."""
    measurement = begin("asynchronous_link", args, page_of)
    effort, seeds = (QUICK, SEEDS[:1]) if args.quick else (FULL, SEEDS)
    options = {name: [*COMMON, "--global-batch", str(BATCH), *entry] for name, entry in ENTRIES.items()}
    record = measurement.record({**effort, "seeds": seeds, "batch": BATCH, "target": TARGET, "rate": RATE, "options": options})
    data = data_options(args.mnist, effort)
    with test_hosts(NUM_HOSTS) as hosts:
        across = Across(hosts)
        if "costs" not in record.blocks:
            measurement.progress.say("how long a gradient takes to compute and to send")
            record.add("costs", costs(hosts, across, [*COMMON, "--lr", "0.01", *data_options(args.mnist, {**effort, "epochs": 1})]))
        for seed, order in zip(seeds, orders(list(ENTRIES), len(seeds), seed=20), strict=True):
            for name in order:
                if (key := f"{name}, seed {seed}") in record.blocks:
                    continue
                measurement.progress.say(f"{key} ({measurement.watch} so far)")
                given = [*options[name], "--seed", str(seed), "--target", str(TARGET), *data]
                found = trained(given, LIMIT_S, lambda command: across.commands("auto", "-m", "unisono", *command))
                record.add(key, {"algorithm": name, "seed": seed, **found})
                measurement.progress.keep(f"{key}: {accuracy(found):.2f} % in {found['epochs'][-1]['wall_s']:.0f} s")
    runs = [record.blocks[f"{name}, seed {seed}"] for name in ENTRIES for seed in seeds]
    measurement.finish(not_measured=NOT_MEASURED, costs=record.blocks["costs"], runs=runs)


def costs(hosts: Sequence[Host], across: Across, options: Sequence[str]) -> dict[str, Any]:
    """Local, blocking: seconds to compute a step, with every host at it and nobody sending, and to sum a gradient over the link."""

    def alone(command: Sequence[str]) -> list[list[str]]:
        *rest, out = command
        outs = [out, *(f"{out}-{number}" for number in range(1, len(hosts)))]
        return [host.command(sys.executable, "-m", "unisono", *rest, own) for host, own in zip(hosts, outs, strict=True)]

    batch = BATCH // len(hosts)
    run = trained([*options, "--global-batch", str(batch)], LIMIT_S, alone)
    num_bytes = 4 * run["num_parameters"]
    with Conductor() as conductor:
        group = conductor.start("gradient", len(hosts), partial(_launches, across))
        group.ask("prepare", num_bytes=num_bytes)
        sent = [max(times[0] for times in group.ask("allreduce", products=0)) / 1e6 for _ in range(SEND_CALLS)]
    return {
        "num_parameters": run["num_parameters"],
        "num_bytes": num_bytes,
        "compute_s": batch / run["epochs"][0]["samples_per_s"],
        "send_s": median(sent),
        "all_send_s": sent,
    }


def _launches(across: Across, num_ranks: int, seat: Seat) -> list[Launch]:  # noqa: ARG001 -- as many as hosts
    return across.launches("auto", "bench.ranks.overlap", seat)
