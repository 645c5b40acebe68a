"""`unisono compare`: runs ranked by a metric, with intervals."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from unisono.commands.text_columns import in_columns
from unisono.errors import UsageError
from unisono.predict.finished_run import open_run

if TYPE_CHECKING:
    from unisono.predict.compare_runs import Comparison, Row

DESCRIPTION = """Ranks finished runs by a metric. Runs that were measured on different samples are refused; studies are left out.
A share of counted samples (accuracy) has a Wilson interval of 95 %; runs of one configuration with different seeds are one row,
with mean and standard deviation; where predictions were kept, the difference to the best run has a paired bootstrap interval."""
EPILOG = """examples:
  unisono compare runs/*
  unisono compare runs/a runs/b --metric val_accuracy
  unisono evaluate runs/a --save-predictions; unisono evaluate runs/b --save-predictions; unisono compare runs/a runs/b
  unisono compare runs/* --json > ranking.json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Local: adds the options of the verb."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directories that `unisono train` has written")
    parser.add_argument(
        "--metric",
        metavar="NAME",
        help="e.g. test_accuracy, val_loss (default: the metric that decides, on the test data); M:min: lower is better",
    )
    parser.add_argument(
        "--lower-is-better", action="store_true", help="lower values of --metric are better (for a metric of your own)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def main(args: argparse.Namespace, argv: Sequence[str] = ()) -> int:  # noqa: ARG001 - as every verb is called
    """Local, blocking: prints the comparison of runs; returns the exit code."""
    from unisono.tuning.study.result import is_study

    studies = [path for path in args.runs if is_study(Path(path))]
    runs = [path for path in args.runs if path not in studies]
    if not runs:
        raise UsageError(f"{studies[0]} is a study, not a run; its report compares its trials: {Path(studies[0], 'report.html')}")
    for path in runs:
        open_run(path)  # before the seconds that loading the metrics takes
    from unisono.predict.compare_runs import compare_runs

    found = compare_runs(runs, args.metric, args.lower_is_better)
    skipped = (f"{path} is left out: it is a study, whose trials are in {Path(path, 'report.html')}" for path in studies)
    found = replace(found, notes=(*found.notes, *skipped))
    print(json.dumps(found.as_dict(), indent=2) if args.json else _text(found))
    return 0


def _text(found: Comparison) -> str:
    """Returns the comparison as a table with notes below."""
    header = ("rank", "run", found.metric, "to best", "steps", "wall_s", "samples/s", "workers")
    rows = [header, *(_cells(row) for row in found.rows)]
    if not any(row.difference for row in found.rows):
        rows = [(*row[:3], *row[4:]) for row in rows]
    direction = "higher" if found.higher_is_better else "lower"
    notes = [f"{found.metric}: {direction} is better; all runs on the same samples ({found.split_sha256[:12]})", *found.notes]
    return "\n".join((in_columns(rows, left=(1, 2)), *notes))


def _cells(row: Row) -> tuple[str, ...]:
    """Returns the cells of one row of the table."""
    from unisono.observe.quantities import rate, value

    shown = value(row.value)
    if row.interval is not None:
        shown += f" [{value(row.interval[0])}, {value(row.interval[1])}]"
    if row.spread is not None:
        shown += f" +- {value(row.spread)} ({len(row.runs)} seeds)"
    return (
        str(row.rank),
        ", ".join(row.runs),
        shown,
        "" if row.difference is None else f"[{row.difference[0]:+.4f}, {row.difference[1]:+.4f}]",
        f"{row.steps:.0f}",
        f"{row.wall_s:.1f}",
        "" if row.samples_per_s is None else rate(row.samples_per_s),
        str(row.num_workers),
    )
