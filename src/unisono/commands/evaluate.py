"""`unisono evaluate`: evaluates a trained model again, on any number of workers."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from unisono.commands import on_workers
from unisono.commands.text_columns import in_columns
from unisono.predict.finished_run import open_run, refuse_idle_workers
from unisono.predict.predict_options import EvaluateConfig
from unisono.task.options import add_options, options_for

DESCRIPTION = """Builds task, data and model again from a run directory and evaluates its weights: every sample counts once,
whatever the number of workers. The result is printed and written to RUN/evaluation-SPLIT.json (of the best weights to
evaluation-SPLIT-best.json).
A task file or data that have changed since the training are refused (see --accept-changes)."""
EPILOG = """examples:
  unisono evaluate runs/digits                                 the test data, with the weights that count
  unisono evaluate runs/digits -n 4 --split validation --weights best
  unisono evaluate runs/digits --save-predictions              lets `unisono compare` show differences with intervals
  unisono evaluate runs/digits --json > digits.json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Local: adds the options of the verb."""
    parser.add_argument("run", metavar="RUN", help="a run directory that `unisono train` has written")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    add_options(parser, EvaluateConfig)
    on_workers.add_arguments(parser)


def main(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Local or collective, blocking: starts the workers, or runs as one. `argv` is the command as typed, without `unisono`."""
    start = on_workers.options(args)
    start.check()
    config = EvaluateConfig(args.run, **options_for(EvaluateConfig, vars(args)))
    run = open_run(config.run)
    refuse_idle_workers(start.workers or 1, run.num_samples(config.split))  # before they are started
    if (code := on_workers.launch_if_requested(start, argv, "evaluate")) is not None:
        return code
    from unisono.cluster.terminal import terminal
    from unisono.observe.bar import Bar
    from unisono.predict.evaluate_run import evaluate_run
    from unisono.predict.piece_progress import PieceProgress

    with on_workers.worker_communicator(start) as comm:
        screen = terminal()
        bar = Bar(sys.stdout, screen.columns if comm.rank == 0 and not args.json else None, screen.colour)
        try:
            found = evaluate_run(config, comm, PieceProgress(bar, str(run.path), comm.size))
        finally:
            bar.close()
        if comm.rank == 0:
            print(json.dumps(found, indent=2) if args.json else _table(found, str(run.evaluation(config.split, found["weights"]))))
    return 0


def _table(found: dict[str, Any], file: str) -> str:
    """Returns the results of an evaluation as text: a headline, the metrics, and the file they were written to."""
    from unisono.observe.quantities import duration, value

    rows = [(name, "no value" if number is None else value(number)) for name, number in found["metrics"].items()]
    plural = "" if found["num_workers"] == 1 else "s"
    head = (
        f"{found['run']}: {found['num_samples']:,} {found['split']} samples, {found['weights']} weights, "
        f"{found['num_workers']} worker{plural}, {duration(found['wall_s'])}"
    )
    return "\n".join([head, in_columns([("metric", "value"), *rows]), f"written to {file}", *found["notes"]])
