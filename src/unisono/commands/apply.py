"""`unisono apply`: the predictions of trained models, in a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from unisono.commands import workers
from unisono.commands.evaluate import add_task_arguments
from unisono.errors import UsageError
from unisono.overrides import parse
from unisono.predict.finished_run import KINDS, SPLITS, WEIGHTS, is_run, open_run, refuse_idle_workers

if TYPE_CHECKING:
    from unisono.predict.apply_run import Applied, ApplyConfig

HELP = "apply trained models to inputs and write their predictions"
DESCRIPTION = """Applies a trained model to a part of its task's data, or to files: arrays (.npy, .npz, HDF5, Zarr), volumes,
pictures (a folder, or a table .csv). Several runs are averaged; a study stands for the models of its best trial.
The output is in the order of the inputs, whatever the number of workers. Work that was stopped goes on with the same command:
finished pieces lie in OUT.parts until all are there.
Inputs from files are prepared as the task prepares its own (map_inputs; size and mode of pictures)."""
EPILOG = """examples:
  unisono apply runs/digits                                    labels of the test data, in predictions.csv
  unisono apply runs/digits new.npy -n 4 --out new-labels.npy
  unisono apply runs/a runs/b runs/c test.h5 --open inputs=images --kind probabilities --out mean.h5
  unisono apply runs/melanoma test-pictures/ --kind scores --id image_name --columns target --out submission.csv
  unisono apply runs/digits new.npy --kind probabilities --columns zero=p0,one=p1
  unisono apply studies/digits new.npy                         mean of the models of the best trial, one for each fold"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Local: the options of the verb."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="RUN ... [INPUTS]",
        help="run directories, then files or a folder (default: --split of the task)",
    )
    what = parser.add_argument_group("what is computed")
    what.add_argument("--split", choices=SPLITS, help="the part of the task's own data, without INPUTS (default test)")
    what.add_argument("--weights", choices=tuple(WEIGHTS), help="default: those of the best epoch where there are any, else final")
    what.add_argument(
        "--kind",
        choices=KINDS,
        help="label: the class (default for classification); probabilities: of each class; scores: of the second of two classes; "
        "raw: what the model gives (default otherwise)",
    )
    what.add_argument(
        "--open",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="options",
        help="how INPUTS are opened, e.g. inputs=images (a key), size=224, file=image_id",
    )
    what.add_argument("--as-is", action="store_true", help="INPUTS are ready for the model; the task's data are not looked at")
    add_task_arguments(what)
    output = parser.add_argument_group("what is written")
    output.add_argument("--out", default="predictions.csv", metavar="FILE", help=".csv, .npy or .h5 (default predictions.csv)")
    output.add_argument("--columns", metavar="NAMES", help="headers, e.g. target, or NAME=FIELD for some fields: low=p0,high=p1")
    output.add_argument("--id", metavar="NAME", help="header of the first column: names of pictures, else numbers of samples")
    output.add_argument("--overwrite", action="store_true", help="replace a file that is there")
    output.add_argument("--quiet", action="store_true", help="print nothing but errors")
    workers.add_arguments(parser)


def main(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Local or collective, blocking: start the workers, or be one. `argv` is the command as typed, without `unisono`."""
    runs, inputs = _runs_and_inputs(args)
    if (code := workers.launched(args, argv, "apply")) is not None:
        return code
    from unisono.cluster.terminal import terminal
    from unisono.predict.apply_run import apply_runs
    from unisono.predict.progress import Progress

    asked = _configuration(args, runs, inputs)
    with workers.working(args) as comm:
        speaks = comm.rank == 0 and not args.quiet
        bar = Progress(sys.stdout, terminal().columns if speaks else None, Path(args.out).name, comm.size)
        try:
            done = apply_runs(asked, comm, bar, _say if speaks else None)
        finally:
            bar.close()
        if speaks:
            print(_told(done))
    return 0


def _runs_and_inputs(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Run directories come first; what follows is input."""
    from unisono.tuning.result import fold_models, is_study

    named = list(takewhile(lambda path: is_run(Path(path)) or is_study(Path(path)), args.paths)) or args.paths[:1]
    inputs = args.paths[len(named) :]
    runs = [run for path in named for run in (map(str, fold_models(Path(path))) if is_study(Path(path)) else [path])]
    for path in runs:
        run = open_run(path)
        if not inputs:
            refuse_idle_workers(args.n or 1, run.num_samples(args.split or "test"))  # before they are started
    for path in inputs:
        if is_run(Path(path)):
            raise UsageError(f"{path} is a run directory behind inputs ({inputs[0]}); name all runs before the inputs")
    if inputs and args.split is not None:
        raise UsageError(f"--split {args.split} and inputs ({inputs[0]}) say two different things; give one of them")
    return runs, inputs


def _configuration(args: argparse.Namespace, runs: list[str], inputs: list[str]) -> ApplyConfig:
    from unisono.predict.apply_run import ApplyConfig

    return ApplyConfig(
        runs=runs,
        inputs=inputs,
        out=args.out,
        split=args.split or "test",
        weights=args.weights,
        kind=args.kind,
        columns=[name.strip() for name in args.columns.split(",")] if args.columns else [],
        id_name=args.id,
        options=parse(args.options, "--open", "size=224"),
        as_is=args.as_is,
        overwrite=args.overwrite,
        task_file=args.task,
        accept_changes=args.accept_changes,
    )


def _say(text: str) -> None:
    print(text, flush=True)


def _told(done: Applied) -> str:
    from unisono.observe.quantities import duration

    models = f"{done.weights} weights" if done.num_runs == 1 else f"mean of {done.num_runs} runs, {done.weights} weights"
    plural = "" if done.num_workers == 1 else "s"
    return (
        f"{done.out}: {done.num_samples:,} predictions ({done.kind}; {models}), {done.num_workers} worker{plural}, "
        f"{duration(done.wall_s)}"
    )
