"""`unisono tune`: search for the settings of a task, many trials at a time, inside one allocation or over many jobs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unisono.cluster.deadline import DURATION_FORMS, parse_duration
from unisono.errors import TrainingFailed, UsageError
from unisono.overrides import literal, parse
from unisono.taskfile import check_file

HELP = "search for the best settings of a task, many trials at a time"
DESCRIPTION = """Searches for the settings of a task: learning rate, batch, optimiser, algorithm, and the arguments of its model and
data that are annotated with un.Range or un.Choice, or that a file names (--space). The ranks are divided into blocks; each trains
one trial at a time, on every fold, with as many workers as asked for. No server and no database is needed: a study is a folder,
and any number of jobs may work at it. The same command goes on where it stopped."""
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
  unisono tune --report studies/x                        writes the report of a study anew
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
Ctrl-C, SIGTERM and the time limit end it with everything saved: trials under way are given back, and go on from their checkpoints.
exit codes: 0 done, 1 failed, 2 a mistake in the command, the task or its data, 75 stopped in time and to be gone on with"""

DIRECT = ("epochs", "global_batch", "lr", "algorithm")
DEFAULTS: Mapping[str, Any] = {
    "search": "auto",
    "prune": "none",
    "folds": 1,
    "repeats": 1,
    "workers": 1,
    "parallel_folds": 1,
    "seed": 0,
}
OF_THE_STUDY: Sequence[str] = (
    *DEFAULTS,
    *DIRECT,
    "storage",
    "space",
    "metrics",
    "changes",
    "fold_by",
    "block_size",
)
"""What one who joins takes from the study."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Local: the options of the verb."""
    parser.add_argument("task", metavar="TASK.py", nargs="?", help="the file that defines `task = un.Task(...)`")
    parser.add_argument("-n", type=int, metavar="N", help="ranks (default 1, or those that srun, mpirun or unisono run started)")
    study = parser.add_argument_group("the study")
    study.add_argument("--out", metavar="DIR", help="folder of the study (default studies/NAME); one that is there goes on")
    study.add_argument("--join", metavar="DIR", help="help with a study that is there, with its own settings; no TASK.py is needed")
    study.add_argument("--report", metavar="DIR", help="only write the report of a study anew")
    study.add_argument(
        "--export",
        nargs=2,
        metavar=("DIR", "URL"),
        help="only write a study into a database of Optuna's, e.g. for optuna-dashboard",
    )
    study.add_argument(
        "--trials", type=int, metavar="T", help="points to try, over all jobs together (default 20); more enlarge it"
    )
    study.add_argument("--accept-changes", action="store_true", help="go on although files of the task have changed")
    study.add_argument("--seed", type=int, metavar="S", help="of the search and the folds (default 0)")
    study.add_argument(
        "--storage", metavar="URL", help="keep the study in a database of Optuna's (sqlite:///..., postgresql://...)"
    )
    where = parser.add_argument_group("where it looks")
    where.add_argument("--space", metavar="FILE.toml", help="ranges and choices, beside and in place of the task's annotations")
    where.add_argument(
        "--search", metavar="S", help="auto (gp for few trials, else tpe), tpe, gp, cmaes, evolution, random or grid"
    )
    where.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="M",
        dest="metrics",
        help="what is to be best: val_accuracy, val_loss, best_val_loss, time_s, ...; may be given again; M:max or M:min",
    )
    where.add_argument("--prune", metavar="P", help="end hopeless trials early: asha, median or wilcoxon (over folds)")
    where.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="changes",
        help="a setting of all trials, as in unisono train",
    )
    where.add_argument("--epochs", metavar="E", help="of every training")
    where.add_argument("--global-batch", metavar="B", help="samples of one step over the workers of a model")
    where.add_argument("--lr", metavar="LR", help="learning rate, where it is not searched")
    where.add_argument("--algorithm", metavar="A", help="how the workers of a model agree, where it is not searched")
    folds = parser.add_argument_group("how a trial is measured")
    folds.add_argument("--folds", type=int, metavar="K", help="train on each of K folds (default 1: the task's own split)")
    folds.add_argument(
        "--fold-by", metavar="HOW", help="random, stratified, group or blocks (default: as the task splits its data)"
    )
    folds.add_argument("--block-size", type=int, metavar="PIXELS", help="of spatial blocks")
    folds.add_argument("--repeats", type=int, metavar="R", help="random starts on each fold (default 1)")
    machine = parser.add_argument_group("the machine")
    machine.add_argument("--workers", type=int, metavar="W", help="processes that train one model together (default 1)")
    machine.add_argument("--parallel-folds", type=int, metavar="P", help="trainings of a trial at the same time (default 1)")
    machine.add_argument("--threads", type=int, metavar="T", help="threads of each rank (default: the CPUs / the ranks)")
    machine.add_argument("--device", default="auto", metavar="D", help="auto, cpu or cuda")
    limits = parser.add_argument_group("limits")
    limits.add_argument("--time-limit", metavar="T", help=f"stop and save before this time is over: {DURATION_FORMS}")
    limits.add_argument("--trial-limit", metavar="T", help="a trial that runs longer has failed")
    limits.add_argument(
        "--attempts", type=int, default=5, metavar="A", help="how often a trial is begun whose process is killed (default 5)"
    )
    limits.add_argument("--quiet", action="store_true", help="print nothing but errors")


def main(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Local or collective, blocking: be one job of a study, or one rank of it."""
    from unisono.cluster.resolve import here
    from unisono.cluster.terminal import terminal
    from unisono.tuning.job import work_at

    if args.report is not None:
        return _report(Path(args.report))
    if args.export is not None:
        return _export(Path(args.export[0]), args.export[1])
    config = _joined(args, argv) if args.join is not None else configuration(args, argv)
    if here().launcher == "local" and not config.order["file"].endswith(".cloudpickle"):
        check_file(Path(config.order["file"]))
    return work_at(config, args.n, terminal().columns)


def configuration(args: argparse.Namespace, argv: Sequence[str]) -> Any:
    """Pure: what the options say."""
    from unisono.tuning.config import TuneConfig

    if args.task is None:
        raise UsageError("a task file is missing; give TASK.py, or --join a study that is there")
    changes = parse(args.changes)
    for name in DIRECT:
        if (value := getattr(args, name)) is not None:
            if name in changes:
                raise UsageError(f"--{name.replace('_', '-')} and --set {name} say the same thing; give one of them")
            changes[name] = literal(value)
    given = {name: default if (value := getattr(args, name)) is None else value for name, default in DEFAULTS.items()}
    folding = {"folds": given["folds"], "by": args.fold_by, "seed": given["seed"], "block_size": args.block_size}
    return TuneConfig(
        out=args.out or f"studies/{Path(args.task).stem}",
        order={
            "kind": "task",
            "file": str(Path(args.task).absolute()),
            "typed": args.task,
            "changes": changes,
            "space_file": None if args.space is None else str(Path(args.space).absolute()),
            "folding": folding,
        },
        trials=args.trials,
        metrics=tuple(args.metrics),
        storage=args.storage,
        **given,
        **_of_this_job(args, argv),
    )


def _joined(args: argparse.Namespace, argv: Sequence[str]) -> Any:
    """Local, blocking: what the study says."""
    from unisono.tuning.config import TuneConfig
    from unisono.tuning.study_file import read_study

    if args.task is not None or args.out is not None:
        raise UsageError("--join takes the task and all else from the study; leave TASK.py and --out out")
    for name in OF_THE_STUDY:
        if getattr(args, name) not in (None, []):
            option = {"metrics": "metric", "changes": "set"}.get(name, name).replace("_", "-")
            raise UsageError(f"--{option} is that of the study, which --join takes; leave it out")
    known = read_study(Path(args.join))
    order = known["order"]
    if order["kind"] == "objective":  # which lies in the study, wherever that was made
        order = {**order, "file": str(Path(args.join) / Path(order["file"]).name)}
    return TuneConfig(
        out=args.join,
        order=order,
        trials=args.trials,
        search=known["search"],
        metrics=tuple(f"{one['metric']}:{'max' if one['higher_is_better'] else 'min'}" for one in known["objectives"]),
        prune=known["prune"],
        folds=known["folds"],
        repeats=known["repeats"],
        workers=known["workers"],
        parallel_folds=known["parallel_folds"],
        seed=known["seed"],
        storage=known["storage"],
        joins=True,
        **_of_this_job(args, argv),
    )


def _of_this_job(args: argparse.Namespace, argv: Sequence[str]) -> Mapping[str, Any]:
    """Pure: what may differ from job to job."""
    return {
        "attempts": args.attempts,
        "trial_limit_s": None if args.trial_limit is None else parse_duration(args.trial_limit),
        "time_limit_s": None if args.time_limit is None else parse_duration(args.time_limit),
        "threads": args.threads,
        "options": {} if args.device == "auto" else {"device": args.device},
        "accept_changes": args.accept_changes,
        "quiet": args.quiet,
        "command": ("unisono", *argv),
    }


def _report(folder: Path) -> int:
    from unisono.tuning.report.document import write_report
    from unisono.tuning.result import read

    about, study = read(folder)
    write_report(study, about, folder / "report.html")
    print(f"report in {folder / 'report.html'}")
    return 0


def _export(folder: Path, url: str) -> int:
    from unisono.tuning.export import to_optuna

    study = to_optuna(folder, url)
    print(f"{len(study.get_trials(deepcopy=False))} trials of {folder} are in {url} as study {study.study_name!r}")
    return 0


@dataclass(frozen=True)
class Tuned:
    """What `un.tune` has found."""

    out: Path
    best_params: Mapping[str, Any]
    best_values: Sequence[float]
    best_number: int

    @property
    def best_value(self) -> float:
        return self.best_values[0]

    def to_optuna(self, storage: str | None = None) -> Any:
        """Local, blocking: the whole study as Optuna's, for its plots and its dashboard."""
        from unisono.tuning.export import to_optuna

        return to_optuna(self.out, storage)


DIRECTIONS: Mapping[str, str] = {"minimize": "min", "maximize": "max"}


def tune(
    objective: Callable[[Any], Any],
    trials: int = 100,
    blocks: int | None = None,
    out: str | Path | None = None,
    *,
    search: str = "auto",
    direction: str | Sequence[str] = "minimize",
    prune: str = "none",
    seed: int = 0,
    attempts: int = 5,
    trial_limit: str | None = None,
    time_limit: str | None = None,
    storage: str | None = None,
    accept_changes: bool = False,
    show: bool = True,
) -> Tuned:
    """Collective inside a job, else local; blocking: search with an objective of Optuna's, unchanged, `blocks` trials at a time.

    Every trial runs in a process of its own making, so that one that fails, hangs (`trial_limit`) or dies ends nothing but itself.
    What is finished is in the folder `out`; the same call goes on with it. Raises `TrainingFailed` where it was stopped before.
    """
    from unisono.cluster.terminal import terminal
    from unisono.excepthook import show_errors_plainly
    from unisono.tuning.config import TuneConfig
    from unisono.tuning.job import work_at
    from unisono.tuning.objective import write_objective
    from unisono.tuning.result import best_of

    show_errors_plainly()
    directions = [direction] if isinstance(direction, str) else list(direction)
    for one in directions:
        if one not in DIRECTIONS:
            raise UsageError(f"direction must be minimize or maximize; received {one!r}")
    folder = Path(out or f"studies/{getattr(objective, '__name__', 'objective')}")
    file = write_objective(objective, folder)
    names = ["value"] if len(directions) == 1 else [f"value_{number}" for number in range(len(directions))]
    config = TuneConfig(
        out=str(folder),
        order={"kind": "objective", "file": str(file)},
        trials=trials,
        search=search,
        metrics=tuple(f"{name}:{DIRECTIONS[one]}" for name, one in zip(names, directions, strict=True)),
        prune=prune,
        seed=seed,
        attempts=attempts,
        trial_limit_s=None if trial_limit is None else parse_duration(trial_limit),
        time_limit_s=None if time_limit is None else parse_duration(time_limit),
        storage=storage,
        accept_changes=accept_changes,
        quiet=not show,
    )
    code = work_at(config, blocks, terminal().columns if show else None)
    if code:
        raise TrainingFailed(f"the study was stopped before its end; the same call goes on with {folder}")
    _, best = best_of(folder)
    assert best.result is not None
    return Tuned(folder, dict(best.values or {}), best.result.values, best.number)
