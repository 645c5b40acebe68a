"""`unisono tune`: search for the settings of a task, many trials at a time, inside one allocation or over many jobs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from unisono.errors import UsageError
from unisono.task.options import add_options, options_for
from unisono.task.task import Task
from unisono.task.task_file import check_file
from unisono.tuning.study.study_options import JOB_OPTIONS, TaskTrials, TuneConfig

DESCRIPTION = """Searches for the settings of a task: learning rate, batch, optimiser, algorithm, and the arguments of its model and
data that are annotated with un.Range or un.Choice, or that are in a file (--space). The ranks are divided into blocks; each block
trains one trial at a time, on every fold, with --workers processes for each model. No server and no database is needed: a study is
a folder, and any number of jobs may work on it. Run the same command to resume a study that was stopped."""
EPILOG = """examples:
  unisono tune examples/digits.py -n 4 --folds 3 --trials 24 --out studies/digits
                                                         four trials at a time, each measured on three folds
  unisono tune task.py -n 13 --workers 3 --parallel-folds 2 --folds 2 --trials 40
                                                         a coordinator and two blocks of six: two folds, three workers each
  unisono tune task.py -n 8 --space space.toml --search gp --metric val_accuracy --metric time_s
  unisono tune task.py -n 8 --prune asha --epochs 50     hopeless trials end early
  srun -n 33 -O unisono tune task.py --workers 4 --out studies/x --time-limit 2h
  mpirun -n 12 unisono tune task.py --workers 3 --out studies/x
  unisono tune --join studies/x -n 4                     another job, anywhere, helps with the same study
  unisono tune --report studies/x                        writes the report of a study again
  unisono train task.py --from-study studies/x           trains with the best settings on all data
a space in a file:
  [lr]
  low = 1e-4
  high = 1.0
  log = true
  [optimizer]
  choice = ["sgd", "adamw"]
  [optimizer.momentum]
  low = 0.0
  high = 0.99
  when = { optimizer = "sgd" }
Ctrl-C, SIGTERM and the time limit stop the search with everything saved; running trials are resumed from their checkpoints later.
all options: docs/reference/options.md
exit codes: 0 done, 1 failed, 2 a mistake in the command, the task or its data,
  75 stopped, checkpoints saved; run the same command to resume"""

SETTINGS = ("epochs", "global_batch", "lr")
"""Settings of the task that have an option of their own."""
OF_THE_COMMAND = ("task", "n", "join", "report", "export")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Local: adds the options of the verb."""
    parser.add_argument("task", metavar="TASK.py", nargs="?", help="the file that defines `task = un.Task(...)`")
    parser.add_argument("-n", type=int, metavar="N", help="ranks (default 1, or those that srun, mpirun or unisono run started)")
    parser.add_argument(
        "--join", metavar="DIR", help="work on an existing study, with the settings of that study; no TASK.py is needed"
    )
    parser.add_argument("--report", metavar="DIR", help="only write the report of a study again")
    parser.add_argument(
        "--export",
        nargs=2,
        metavar=("DIR", "URL"),
        help="only export a study to an Optuna database, e.g. for optuna-dashboard",
    )
    add_options(parser, TuneConfig, TaskTrials)
    add_options(parser, Task, only=SETTINGS)


def main(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Local or collective, blocking: runs as one job of a study, or as one rank of it; returns the exit code."""
    from unisono.cluster.resolve import current_topology
    from unisono.cluster.terminal import terminal
    from unisono.tuning.tune_job import run_tune_job

    if args.report is not None:
        return _report(Path(args.report))
    if args.export is not None:
        return _export(Path(args.export[0]), args.export[1])
    config = _join_study(args, argv) if args.join is not None else configuration(args, argv)
    if current_topology().launcher == "local" and not config.work_spec["file"].endswith(".cloudpickle"):
        check_file(Path(config.work_spec["file"]))
    return run_tune_job(config, args.n, terminal().columns)


def configuration(args: argparse.Namespace, argv: Sequence[str]) -> TuneConfig:
    """Pure: the configuration from parsed arguments."""
    if args.task is None:
        raise UsageError("the task file is missing; give TASK.py, or --join DIR for an existing study")
    given = vars(args)
    values = {"out": f"studies/{Path(args.task).stem}", **options_for(TuneConfig, given)}
    config = TuneConfig(work_spec={}, command=("unisono", *argv), **values)
    trials = TaskTrials(**options_for(TaskTrials, given))
    settings = {name: given[name] for name in SETTINGS if name in given}
    return replace(config, work_spec=trials.work_spec(args.task, settings, config.folds, config.seed))


def _join_study(args: argparse.Namespace, argv: Sequence[str]) -> TuneConfig:
    """Local, blocking: the configuration of a job that joins a study, as the study says it."""
    from unisono.tuning.study.study_file import read_study

    given = vars(args)
    if args.task is not None or "out" in given:
        raise UsageError("--join takes the task and its settings from the study; leave out TASK.py and --out")
    for name in given:
        if name not in (*OF_THE_COMMAND, *JOB_OPTIONS):
            raise UsageError(f"--{name.replace('_', '-')} has no effect with --join, which takes it from the study; leave it out")
    known = read_study(Path(args.join))
    work_spec = known["order"]
    if work_spec["kind"] == "objective":  # which lies in the study, wherever that was made
        work_spec = {**work_spec, "file": str(Path(args.join) / Path(work_spec["file"]).name)}
    of_the_study = ("search", "prune", "folds", "repeats", "workers", "parallel_folds", "seed", "storage")
    return TuneConfig(
        out=args.join,
        work_spec=work_spec,
        metrics=tuple(f"{one['metric']}:{'max' if one['higher_is_better'] else 'min'}" for one in known["objectives"]),
        joins=True,
        command=("unisono", *argv),
        **{name: known[name] for name in of_the_study},
        **options_for(TuneConfig, given),
    )


def _report(folder: Path) -> int:
    """Writes the report of a study again; returns the exit code 0."""
    from unisono.tuning.report.document import write_report
    from unisono.tuning.study.result import load_study

    about, study = load_study(folder)
    write_report(study, about, folder / "report.html")
    print(f"report in {folder / 'report.html'}")
    return 0


def _export(folder: Path, url: str) -> int:
    """Writes the trials of a study to an Optuna database; returns the exit code 0."""
    from unisono.tuning.study.export import to_optuna

    study = to_optuna(folder, url)
    print(f"{len(study.get_trials(deepcopy=False))} trials of {folder} are in {url} as study {study.study_name!r}")
    return 0
