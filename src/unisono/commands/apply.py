"""`unisono apply`: the predictions of trained models, in a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from unisono.commands import on_workers
from unisono.errors import UsageError
from unisono.predict.finished_run import is_run, open_run, refuse_idle_workers
from unisono.predict.predict_options import ApplyConfig
from unisono.task.options import add_options, options_for

if TYPE_CHECKING:
    from unisono.predict.apply_run import Applied

DESCRIPTION = """Applies a trained model to a part of its task's data, or to files: arrays (.npy, .npz, HDF5, Zarr), volumes,
pictures (a folder, or a table .csv). Several runs are averaged; a study stands for the models of its best trial.
The output is in the order of the inputs, whatever the number of workers. Finished pieces are kept in OUT.parts until all are done,
so the same command resumes work that was stopped.
Inputs from files are prepared as the task prepares its own (map_inputs; size and mode of pictures)."""
EPILOG = """examples:
  unisono apply runs/digits                                    labels of the test data, in predictions.csv
  unisono apply runs/digits new.npy -n 4 --out new-labels.npy
  unisono apply runs/a runs/b runs/c test.h5 --open inputs=images --kind probabilities --out mean.h5
  unisono apply runs/melanoma test-pictures/ --kind scores --id image_name --columns target --out submission.csv
  unisono apply runs/digits new.npy --kind probabilities --columns zero=p0,one=p1
  unisono apply studies/digits new.npy                         mean of the models of the best trial, one for each fold"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Local: adds the options of the verb."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="RUN ... [INPUTS]",
        help="run directories, then files or a folder (default: --split of the task)",
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    add_options(parser, ApplyConfig)
    on_workers.add_arguments(parser)


def main(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Local or collective, blocking: starts the workers, or runs as one. `argv` is the command as typed, without `unisono`."""
    start = on_workers.options(args)
    start.check()
    config = _configuration(args, start.workers or 1)
    if (code := on_workers.launch_if_requested(start, argv, "apply")) is not None:
        return code
    from unisono.cluster.terminal import terminal
    from unisono.observe.bar import Bar
    from unisono.predict.apply_run import apply_runs
    from unisono.predict.piece_progress import PieceProgress

    with on_workers.worker_communicator(start) as comm:
        shows = comm.rank == 0 and not args.quiet
        screen = terminal()
        bar = Bar(sys.stdout, screen.columns if shows else None, screen.colour)
        try:
            done = apply_runs(config, comm, PieceProgress(bar, Path(config.out).name, comm.size), _say if shows else None)
        finally:
            bar.close()
        if shows:
            print(_summary_line(done))
    return 0


def _configuration(args: argparse.Namespace, num_workers: int) -> ApplyConfig:
    """The configuration from parsed arguments, in which run directories come before the inputs."""
    from unisono.tuning.study.result import fold_models, is_study

    named = list(takewhile(lambda path: is_run(Path(path)) or is_study(Path(path)), args.paths)) or args.paths[:1]
    inputs = args.paths[len(named) :]
    runs = [run for path in named for run in (map(str, fold_models(Path(path))) if is_study(Path(path)) else [path])]
    config = ApplyConfig(runs, inputs, **options_for(ApplyConfig, vars(args)))
    for path in runs:
        run = open_run(path)
        if not inputs:
            refuse_idle_workers(num_workers, run.num_samples(config.split))  # before they are started
    for path in inputs:
        if is_run(Path(path)):
            raise UsageError(
                f"{path} is a run directory, but it comes after an input ({inputs[0]}); name all runs before the inputs"
            )
    if inputs and "split" in args:
        raise UsageError(f"--split {args.split} and inputs ({inputs[0]}) exclude each other; give one of them")
    return config


def _say(text: str) -> None:
    """Prints a line at once."""
    print(text, flush=True)


def _summary_line(done: Applied) -> str:
    """Returns the line on the predictions that were written: file, number, kind, models, workers, duration."""
    from unisono.observe.quantities import duration

    models = f"{done.weights} weights" if done.num_runs == 1 else f"mean of {done.num_runs} runs, {done.weights} weights"
    plural = "" if done.num_workers == 1 else "s"
    return (
        f"{done.out}: {done.num_samples:,} predictions ({done.kind}; {models}), {done.num_workers} worker{plural}, "
        f"{duration(done.wall_s)}"
    )
