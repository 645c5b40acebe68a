"""Searching with many blocks: how long a block waits for its next trial, against peers; how many one coordinator can keep busy; and
whether parallel blocks find as much as a serial search.

    python -m bench.tune                              # everything; about twenty minutes on two cores that do nothing else
    python -m bench.tune --part overhead              # or ahead, blocks, quality; what the others have left stays
    python -m bench.tune --quick                      # a look whether it works: few and short trials, no judgement

Writes tune.md (tables, bounds, how it was measured), tune.json (every trial) and tune.png.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

from bench import tune_blocks, tune_overhead, tune_quality
from bench.contenders.tune import OURS, WAYS
from bench.options import parse, some_of
from bench.progress import Progress
from bench.record import Record
from bench.rounds import Stopwatch
from bench.session import guarded, open_record, result_of
from bench.tune_page import PARTS, publish
from bench.tune_problems import PROBLEMS

PACKAGES = ("unisono", "optuna", "numpy", "scikit-learn")
NOT_MEASURED: Mapping[str, tuple[str, ...]] = {
    "overhead": (
        "Overhead: blocks on several machines, blocks of several processes, trials with folds, reports and pruning.",
        "Overhead: trials that compute, and so compete with the coordinator for cores; here they only wait.",
        "Overhead: databases with a server (MySQL, PostgreSQL, Redis), Optuna's gRPC proxy, DeepHyper, and other samplers of Ray.",
    ),
    "ahead": ("Proposals ahead: other searches, and studies with many more trials, where a proposal takes longer.",),
    "blocks": (
        "Many blocks: real processes and sockets; the simulated coordinator reads and writes its letters, but no socket carries "
        "them.",
        "Many blocks: several coordinators that share a study, a network file system, folds, reports, pruning, blocks that die.",
    ),
    "quality": (
        "Quality: other searches than gp and tpe, Optuna with gp, more blocks than 4, more trials than 60, trials that are pruned.",
        "Quality: other peers than Optuna by itself.",
    ),
}


class Part(NamedTuple):
    """One of the measurements."""

    settings: Mapping[str, Any]
    measure: Callable[[Record, Progress], None]
    more: Mapping[str, Any]


def main() -> None:
    """Local, blocking: measure what is asked for, and publish what is known of all parts."""
    args = _arguments()
    path = args.out / "tune.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    if args.figure:
        print(publish(known, args.out))
        return
    progress = Progress()
    for name, part in _parts(args).items():
        watch = Stopwatch()
        record = open_record(f"tune_{name}", args, part.settings, progress)
        part.measure(record, progress)
        versions = {package: version(package) for package in PACKAGES}
        more = {"versions": versions, "not_measured": NOT_MEASURED[name], **part.more}
        known[name] = result_of(args, record, watch, **more, runs=record.blocks)
        known[name]["command"] = known[name]["command"].replace(f" --out {args.out}", "")
        text = publish({name: known[name] for name in PARTS if name in known}, args.out)
        record.finish()
        progress.keep(f"{name}: written to {args.out}/tune.md, .json and .png after {watch}")
    print(text)


def _parts(args: argparse.Namespace) -> dict[str, Part]:
    overhead = tune_overhead.QUICK if args.quick else tune_overhead.FULL
    blocks = tune_blocks.QUICK if args.quick else tune_blocks.FULL
    quality = tune_quality.QUICK if args.quick else tune_quality.FULL
    about_ways = {way.name: {"kind": way.kind, "about": way.about} for way in WAYS}
    series = [{"name": one.name, **asdict(one)} for one in blocks.series]
    all_parts = {
        "overhead": Part(
            {**asdict(overhead), "contenders": args.only},
            partial(_overhead, overhead, args.only),
            {"contenders": {name: about_ways[name] for name in args.only}},
        ),
        "ahead": Part(
            asdict(overhead),
            partial(_ahead, overhead),
            {"rows": [row.name for row in tune_overhead.AHEAD]},
        ),
        "blocks": Part(
            {"series": series, "trials_each": tune_blocks.TRIALS_EACH, "most_s": blocks.most_s},
            partial(_blocks, blocks),
            {},
        ),
        "quality": Part(
            {
                **asdict(quality),
                "blocks": tune_quality.NUM_BLOCKS,
                "real_mean_s": tune_quality.REAL_MEAN_S,
                "default_search": tune_quality.search_of_task(PROBLEMS["Branin"], quality),
            },
            partial(_quality, quality),
            {"problems": {name: {"about": problem.about, "best": problem.best} for name, problem in PROBLEMS.items()}},
        ),
    }
    return {name: all_parts[name] for name in PARTS if name in args.part}


def _overhead(effort: tune_overhead.Effort, names: list[str], record: Record, progress: Progress) -> None:
    tune_overhead.measure_overhead(record, effort, names, progress)


def _ahead(effort: tune_overhead.Effort, record: Record, progress: Progress) -> None:
    tune_overhead.measure_ahead(record, effort, progress)


def _blocks(effort: tune_blocks.Effort, record: Record, progress: Progress) -> None:
    tune_blocks.measure_blocks(record, effort, progress)


def _quality(effort: tune_quality.Effort, record: Record, progress: Progress) -> None:
    tune_quality.measure_quality(record, effort, progress)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.tune", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [way.name for way in WAYS]
    parser.add_argument(
        "--part", type=some_of(PARTS, ","), default=list(PARTS), metavar="NAME,NAME", help=f"some of {', '.join(PARTS)}"
    )
    parser.add_argument(
        "--only", type=some_of(names, ",", (OURS.name,)), default=names, metavar="NAME,NAME", help=f"some of {', '.join(names)}"
    )
    return parse(parser)


if __name__ == "__main__":
    sys.exit(guarded(main))
