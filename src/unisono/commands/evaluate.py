"""`unisono evaluate`: the metrics of a trained model, once more, on any number of workers."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from unisono.commands import workers
from unisono.commands.columns import in_columns
from unisono.predict.finished_run import SPLITS, WEIGHTS, open_run, refuse_idle_workers

HELP = "evaluate a trained model on a part of its data"
DESCRIPTION = """Builds task, data and model again from a run directory and evaluates its weights: every sample counts once,
whatever the number of workers. What was found is printed and written to RUN/evaluation-SPLIT.json.
A task file or data that have changed since the training are refused."""
EPILOG = """examples:
  unisono evaluate runs/digits                                 the test data, with the final weights
  unisono evaluate runs/digits -n 4 --split validation --weights best
  unisono evaluate runs/digits --save-predictions              what `unisono compare` needs for differences with intervals
  unisono evaluate runs/digits --json > digits.json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Local: the options of the verb."""
    parser.add_argument("run", metavar="RUN", help="a run directory that `unisono train` has written")
    parser.add_argument("--split", choices=SPLITS, default="test", help="the part of the data (default test)")
    parser.add_argument("--weights", choices=tuple(WEIGHTS), default="final", help="final (default), or those of the best epoch")
    parser.add_argument(
        "--save-predictions", action="store_true", help="also keep outputs and targets, in RUN/predictions-SPLIT.npz"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    add_task_arguments(parser)
    workers.add_arguments(parser)


def add_task_arguments(parser: argparse._ActionsContainer) -> None:
    """Local: the options for tasks that are not as they were."""
    parser.add_argument("--task", metavar="TASK.py", help="the task file, where it is no longer in its old place")
    parser.add_argument("--accept-changes", action="store_true", help="take the task file and the data as they are now")


def main(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Local or collective, blocking: start the workers, or be one. `argv` is the command as typed, without `unisono`."""
    run = open_run(args.run)
    refuse_idle_workers(args.n or 1, run.num_samples(args.split))  # before they are started
    if (code := workers.launched(args, argv, "evaluate")) is not None:
        return code
    from unisono.cluster.terminal import terminal
    from unisono.predict.evaluate_run import EvaluateConfig, evaluate_run
    from unisono.predict.progress import Progress

    asked = EvaluateConfig(args.run, args.split, args.weights, args.task, args.accept_changes, args.save_predictions)
    with workers.working(args) as comm:
        columns = terminal().columns if comm.rank == 0 and not args.json else None
        bar = Progress(sys.stdout, columns, str(run.path), comm.size)
        try:
            found = evaluate_run(asked, comm, bar)
        finally:
            bar.close()
        if comm.rank == 0:
            print(json.dumps(found, indent=2) if args.json else _table(found, str(run.evaluation(args.split, args.weights))))
    return 0


def _table(found: dict[str, Any], file: str) -> str:
    from unisono.observe.quantities import duration, value

    rows = [(name, "no value" if number is None else value(number)) for name, number in found["metrics"].items()]
    plural = "" if found["num_workers"] == 1 else "s"
    head = (
        f"{found['run']}: {found['num_samples']:,} {found['split']} samples, {found['weights']} weights, "
        f"{found['num_workers']} worker{plural}, {duration(found['wall_s'])}"
    )
    return f"{head}\n{in_columns([('metric', 'value'), *rows])}\nwritten to {file}"
