"""Do asynchronous and local workers learn as well as synchronous ones? Four workers of each algorithm on MNIST, at equal samples.

    python -m bench.asynchronous --mnist DIR            # DIR holds the files of MNIST (unisono data get mnist); about half an hour
    python -m bench.asynchronous --mnist DIR --link     # two hosts at 1 Gbit/s, time to accuracy; about 12 minutes, only as root
    python -m bench.asynchronous --mnist DIR --quick    # few images: a look whether it works

Each run is one `unisono train bench/asynchronous_task.py`, with real processes. Writes asynchronous.md, .json (every epoch of every
run) and .png, with --link asynchronous_link.*.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from bench import asynchronous_link
from bench.asynchronous_page import page_of
from bench.measurement import begin, guarded
from bench.options import parse, parser_of
from bench.rounds import orders
from bench.trainings import accuracy, data_options, trained

WORKERS = 4
SEEDS = (0, 1, 2)
LIMIT_S = 600.0
FULL = {"epochs": 8, "num_train": 12_000, "num_test": 10_000}
QUICK = {"epochs": 1, "num_train": 1280, "num_test": 500}
COMMON = ("--global-batch", "128", "--set", "schedule=cosine")
MOMENTUM = ("--set", "optimizer.momentum=0.9")


@dataclass(frozen=True)
class Entry:
    """One algorithm with its settings."""

    name: str
    options: Sequence[str]
    has_server: bool = False

    def command(self) -> list[str]:
        """Pure: options of `unisono train`, but for data and seed."""
        return ["--algorithm", self.name, "-n", str(WORKERS + self.has_server), *COMMON, *self.options]


SYNCHRONOUS = "allreduce"
ENTRIES = (
    Entry(SYNCHRONOUS, ("--lr", "0.05", *MOMENTUM)),
    Entry("parameter_server", ("--lr", "0.05", *MOMENTUM), has_server=True),
    Entry("downpour", ("--lr", "0.1", "--set", "schedule.warmup_epochs=1"), has_server=True),
    Entry("easgd", ("--lr", "0.05", "--set", "algorithm.momentum=0.9", "--set", "algorithm.period=4"), has_server=True),
    Entry("gem", ("--lr", "0.05", *MOMENTUM), has_server=True),
    Entry("local_sgd", ("--lr", "0.05", *MOMENTUM, "--set", "algorithm.period=8")),
    Entry("post_local_sgd", ("--lr", "0.05", *MOMENTUM, "--set", "algorithm.period=8", "--set", "algorithm.switch_step=188")),
    Entry(
        "diloco",
        ("--lr", "0.05", *MOMENTUM, "--set", "algorithm.period=16", "--set", "algorithm.outer_momentum=0.5"),
    ),
)

NOT_MEASURED = (
    "Times of a machine with a core for each process: here 4 workers, and a server with some algorithms, share the cores, so times "
    "hold for an overloaded machine and say little about others. What a slow link changes: asynchronous_link.md.",
    "More workers than 4 (many_workers.md: up to 100, virtual), other data, larger models, other settings than the stated ones.",
    "Images that nobody chose anything by: settings were tried out with another seed and judged by the same test images.",
)


def main() -> None:
    """Local, blocking: train, and publish what came of it."""
    parser = parser_of("asynchronous", __doc__)
    parser.add_argument("--link", action="store_true", help="time to accuracy between two hosts at 1 Gbit/s instead; needs root")
    args = parse(parser, needs_mnist=True)
    if args.link:
        asynchronous_link.measure(args)
        return
    measurement = begin("asynchronous", args, page_of)
    effort, seeds = (QUICK, SEEDS[:1]) if args.quick else (FULL, SEEDS)
    commands = {entry.name: entry.command() for entry in ENTRIES}
    record = measurement.record({**effort, "seeds": seeds, "workers": WORKERS, "options": commands})
    for seed, order in zip(seeds, orders(list(commands), len(seeds), seed=20), strict=True):
        for name in order:
            if (key := f"{name}, seed {seed}") in record.blocks:
                continue
            measurement.progress.say(f"{key} ({measurement.watch} so far)")
            found = trained([*commands[name], "--seed", str(seed), *data_options(args.mnist, effort)], LIMIT_S)
            record.add(key, {"algorithm": name, "seed": seed, **found})
            measurement.progress.keep(f"{key}: {accuracy(found):.2f} % in {found['epochs'][-1]['wall_s']:.0f} s")
    runs = [record.blocks[f"{name}, seed {seed}"] for name in commands for seed in seeds]
    measurement.finish(synchronous=SYNCHRONOUS, not_measured=NOT_MEASURED, runs=runs)


if __name__ == "__main__":
    sys.exit(guarded(main))
