"""Searching with many blocks: how long a block waits for its next trial, against peers; how many one coordinator can keep busy; and
whether parallel blocks find as much as a serial search.

    python -m bench.tune                              # everything; about twenty minutes on two cores that do nothing else
    python -m bench.tune --part overhead              # or ahead, blocks, quality; what the others have left stays
    python -m bench.tune --quick                      # a look whether it works: few and short trials, no judgement

Writes tune.md (tables, bounds, how it was measured), tune.json (every trial) and tune.png.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, NamedTuple

from bench import tune_blocks, tune_overhead, tune_overhead_page, tune_quality
from bench.blocks import described
from bench.contenders.tune import OURS, WAYS
from bench.figure import Panel, Picture
from bench.measurement import begin, guarded
from bench.options import add_choice, parse, parser_of
from bench.page import Page, Result
from bench.record import Record
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
    measure: Callable[[Record], None]
    more: Mapping[str, Any]


def main() -> None:
    """Local, blocking: measure what is asked for, and publish what is known of all parts."""
    parser = parser_of("tune", __doc__)
    add_choice(parser, "--part", PARTS)
    add_choice(parser, "--only", [way.name for way in WAYS], needed=(OURS.name,))
    args = parse(parser)
    for name, part in _parts(args).items():
        measurement = begin("tune", args, page_of)
        record = measurement.record(part.settings, name)
        part.measure(record)
        versions = {package: version(package) for package in PACKAGES}
        measurement.finish(name, versions=versions, not_measured=NOT_MEASURED[name], **part.more, runs=record.blocks)


def _parts(args: argparse.Namespace) -> dict[str, Part]:
    overhead = tune_overhead.QUICK if args.quick else tune_overhead.FULL
    blocks = tune_blocks.QUICK if args.quick else tune_blocks.FULL
    quality = tune_quality.QUICK if args.quick else tune_quality.FULL
    all_parts = {
        "overhead": Part(
            {**asdict(overhead), "contenders": args.only},
            lambda record: tune_overhead.measure_overhead(record, overhead, args.only),
            {"contenders": described(way for way in WAYS if way.name in args.only)},
        ),
        "ahead": Part(
            asdict(overhead),
            lambda record: tune_overhead.measure_ahead(record, overhead),
            {"rows": [row.name for row in tune_overhead.AHEAD]},
        ),
        "blocks": Part(
            {
                "series": [{"name": one.name, **asdict(one)} for one in blocks.series],
                "trials_each": tune_blocks.TRIALS_EACH,
                "most_s": blocks.most_s,
            },
            lambda record: tune_blocks.measure_blocks(record, blocks),
            {},
        ),
        "quality": Part(
            {
                **asdict(quality),
                "blocks": tune_quality.NUM_BLOCKS,
                "real_mean_s": tune_quality.REAL_MEAN_S,
                "default_search": tune_quality.search_of_task(PROBLEMS["Branin"], quality),
            },
            lambda record: tune_quality.measure_quality(record, quality),
            {"problems": {name: {"about": problem.about, "best": problem.best} for name, problem in PROBLEMS.items()}},
        ),
    }
    return {name: all_parts[name] for name in PARTS if name in args.part}


PAGES: Mapping[str, Callable[[Result], Page]] = {
    "overhead": tune_overhead_page.overhead,
    "ahead": tune_overhead_page.ahead,
    "blocks": tune_blocks.page_of,
    "quality": tune_quality.page_of,
}
PARTS = tuple(PAGES)
"""Each may be measured by a command of its own; a result has some of them."""
TOP: Mapping[str, Callable[[Result], Panel]] = {"overhead": tune_overhead_page.panel, "blocks": tune_blocks.panel}


def page_of(result: Result) -> Page:
    """Pure: the page of these raw data."""
    parts = [page(result[name]) for name, page in PAGES.items() if name in result]
    rows = [[panel(result[name]) for name, panel in TOP.items() if name in result]]
    rows.append(tune_quality.panels(result["quality"]) if "quality" in result else [])
    shown = [row for row in rows if row]
    return Page(
        question="How long is a block of a search without a trial, how many does one coordinator keep busy, and what do they find?",
        answer=" ".join(part.answer for part in parts),
        picture=Picture("Searching with many blocks", shown) if shown else None,
        parts=parts,
        raw="`overhead.runs[].waits[worker]` and `ahead.runs[].waits[worker]`, when each trial began and ended, in seconds since "
        "the start of its program; `blocks.runs[]`; `quality.runs[].unisono` and `.optuna`, when each trial ended in virtual "
        "seconds, and what it was worth",
    )


if __name__ == "__main__":
    sys.exit(guarded(main))
