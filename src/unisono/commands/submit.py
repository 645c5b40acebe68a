"""`unisono submit`: a training as a SLURM job that goes on by itself in further jobs until it is done."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from unisono.cluster import job_log, queue, sbatch, sbatch_options, site
from unisono.cluster.resolve import environment
from unisono.commands import train
from unisono.errors import UsageError
from unisono.taskfile import check_file
from unisono.training.atomic import explained, replacing
from unisono.training.run_directory import made_anew, new_names

HELP = "train under SLURM, in as many jobs as it takes"
DESCRIPTION = """Writes a readable batch file into the run directory and submits it. A job stops in time, saves, and is followed
by the next, which goes on from there, until the training is done. All options of `unisono train` mean the same here; those of
sbatch that are not listed stand after `--`. What all jobs at a site have in common stands in its site file: that of --site or
UNISONO_SITE, ./unisono-site.toml or ~/.config/unisono/site.toml (account, partition, modules, preamble, container, sbatch)."""
EPILOG = """examples:
  unisono submit task.py --epochs 90 --nodes 2 --time 00:30:00
  unisono submit task.py -n 8 --nodes 2 --cpus-per-task 8 --time 12:00:00 --partition gpu -- --gres=gpu:4 --mail-type=END
  unisono submit task.py --time 30 --dry-run                 print the batch file, submit nothing
  unisono submit task.py --time 30 --out runs/task           goes on with the run in runs/task, e.g. after scancel
  unisono status runs/task                                   what each job did
scancel ends the job and the chain; `scancel -s USR1 JOB` saves, ends the job and goes on in the next."""

NAMED: Mapping[str, str] = {
    "account": "whom to charge",
    "partition": "where to run",
    "qos": "quality of service",
    "constraint": "features of the nodes",
    "cpus-per-task": "CPUs of each worker",
    "gpus-per-task": "GPUs of each worker",
    "mem": "memory of each node",
    "job-name": "name of the jobs (default: that of the run directory)",
}
"""Options of sbatch that are common enough to stand among ours."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Local: the options of `unisono train`, and those of the job."""
    train.add_arguments(parser)
    _add_own(parser)


def _add_own(parser: argparse.ArgumentParser) -> None:
    job = parser.add_argument_group("the job")
    job.add_argument("--time", metavar="T", help="limit of one job: 00:30:00, 90 (minutes), 2-12:00 (days), 2h")
    job.add_argument("--nodes", type=int, metavar="K", help="nodes (default 1)")
    job.add_argument("--ntasks-per-node", type=int, metavar="N", help="workers of each node (default 1, or as -n says)")
    for name, words in NAMED.items():
        job.add_argument(f"--{name}", metavar="X", help=f"{words}, as sbatch takes it" if "default" not in words else words)
    job.add_argument("--site", metavar="FILE", help="the site file")
    how = job.add_mutually_exclusive_group()
    how.add_argument(
        "--chain", action="store_false", dest="requeue", default=False, help="each job submits its successor (default)"
    )
    how.add_argument("--requeue", action="store_true", help="the same job starts again; where that is refused, a successor follows")
    job.add_argument(
        "--max-jobs", type=int, default=sbatch.MAX_JOBS, metavar="K", help=f"at most K jobs (default {sbatch.MAX_JOBS})"
    )
    job.add_argument("--dry-run", action="store_true", help="print the batch file and submit nothing")


def main(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Local, blocking: `argv` is the command as typed, without `unisono`; what follows `--` in it belongs to sbatch."""
    here, passed = split(argv)
    _refuse_other_ways(args)
    train.configuration(args, argv)  # what is wrong with it is told now, and not by a job that has waited for hours
    check_file(Path(args.task))
    found = site.find(environment(), args.site)
    of_site = site.Site() if found is None else site.read(found)
    options, first_only = _options(args, of_site, passed)
    limit_s = sbatch.limit_s(options.pop("time") or "")
    if args.dry_run:
        out = Path(args.out) if args.out else next(path for path in new_names(Path("runs"), _name(args)) if not path.exists())
        print(sbatch.text(_job(args, here, of_site, options, limit_s, out)), end="")
        print(f"unisono: nothing was submitted; the batch file would be {out / sbatch.FILE}", file=sys.stderr)
        return 0
    queue.require_sbatch()
    with _directory(args) as out:
        file = out / sbatch.FILE
        text = sbatch.text(_job(args, here, of_site, options, limit_s, out))
        with replacing(file) as draft:
            draft.write_text(text)
        number = queue.submit(file, first_only, environment())
    with explained(out / sbatch.LOG), (out / sbatch.LOG).open("a") as log:
        log.write(job_log.line(time.time(), number, "submitted as number 1"))
    print(f"submitted job {number}, which trains in {out} (site file: {found or 'none'}; at most {args.max_jobs} jobs in a row)")
    print(f"watch: unisono status {out}; what it prints: {out}/slurm-{number}.out; end: scancel {number}")
    return 0


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Pure: the words of ours, and after `--` those of sbatch."""
    place = argv.index("--") if "--" in argv else len(argv)
    return list(argv[:place]), list(argv[place + 1 :])


def _refuse_other_ways(args: argparse.Namespace) -> None:
    remedies = {
        "time_limit": "--time-limit is written by unisono submit from --time; leave it out",
        "fresh": "--fresh would start over in every job; leave --out out, and a new directory is taken",
        "restarts": "--restarts is for workers that unisono starts itself, and srun starts these; leave it out",
    }
    for name, words in remedies.items():
        if getattr(args, name):
            raise UsageError(words)
    for name, least in (("n", 1), ("nodes", 1), ("ntasks_per_node", 1), ("max_jobs", 1)):
        value = getattr(args, name)
        if value is not None and value < least:
            option = "-n" if name == "n" else f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} must be at least {least}; received {value}")


def _options(args: argparse.Namespace, of_site: site.Site, passed: Sequence[str]) -> tuple[dict[str, str | None], list[str]]:
    """Pure: what goes into the batch file, the command line outweighing the site; and what only the first job is told."""
    ours = _tasks(args, of_site.sbatch) | ({"time": args.time} if args.time else {})
    named = {name: value for name in NAMED if (value := getattr(args, name.replace("-", "_"))) is not None}
    options: dict[str, str | None] = {**of_site.sbatch, **ours, **named, **sbatch_options.parse(passed)}
    if not options.get("time"):
        raise UsageError("unisono submit needs the time limit of one job: --time 00:30:00, or sbatch.time in the site file")
    first = [
        f"--{name}" if options[name] is None else f"--{name}={options[name]}"
        for name in options
        if name in sbatch_options.FIRST_ONLY
    ]
    return {name: value for name, value in options.items() if name not in sbatch_options.FIRST_ONLY}, first


def _tasks(args: argparse.Namespace, of_site: sbatch.Options) -> dict[str, str | None]:
    """Pure: nodes and workers, which must agree."""
    num_nodes, num_workers, each = args.nodes, args.n, args.ntasks_per_node
    if num_workers and each and (num_workers != each * num_nodes if num_nodes else num_workers % each):
        nodes = f"{num_nodes} nodes" if num_nodes else "whole nodes"
        raise UsageError(f"-n {num_workers} workers do not fill {nodes} with --ntasks-per-node {each}; give one of the two")
    if num_workers and num_nodes and num_workers < num_nodes:
        raise UsageError(f"-n {num_workers} workers cannot use --nodes {num_nodes}; each node needs one at least")
    found: dict[str, str | None] = {}
    if num_nodes or "nodes" not in of_site:
        found["nodes"] = str(num_nodes or (num_workers // each if num_workers and each else 1))
    if num_workers:
        found["ntasks"] = str(num_workers)
    if each or not (num_workers or "ntasks" in of_site or "ntasks-per-node" in of_site):
        found["ntasks-per-node"] = str(each or 1)
    return found


def _job(
    args: argparse.Namespace, here: Sequence[str], of_site: site.Site, options: sbatch.Options, limit_s: int, out: Path
) -> sbatch.Job:
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    _add_own(own)
    _, of_train = own.parse_known_args(list(here[1:]))  # what is not ours is as typed the command of the training
    words = [*_unisono(of_site.container), "train", *of_train, *(() if args.out else ("--out", str(out)))]
    where = _working_directory(environment())
    return sbatch.Job(
        name=out.name,
        out=where / out,
        workdir=where,
        command=words,
        limit_s=limit_s,
        options=options,
        modules=of_site.modules,
        preamble=of_site.preamble,
        container=of_site.container,
        requeue=args.requeue,
        max_jobs=args.max_jobs,
    )


def _working_directory(env: Mapping[str, str]) -> Path:
    """As the shell calls it: what links lead to may have another name on the nodes."""
    here, called = Path.cwd(), Path(env.get("PWD", ""))
    return called if called.is_absolute() and called.exists() and called.samefile(here) else here


def _unisono(container: str) -> list[str]:
    """The program that submits is the one that trains, but for a container, which has its own."""
    beside = Path(sys.executable).parent / "unisono"
    if container:
        return ["unisono"]
    return [str(beside)] if beside.is_file() else [sys.executable, "-m", "unisono"]


def _name(args: argparse.Namespace) -> str:
    return args.job_name or Path(args.task).stem


@contextmanager
def _directory(args: argparse.Namespace) -> Iterator[Path]:
    """The run directory; one that was made for this job goes away again if the job is refused."""
    if args.out is None:
        out = made_anew(Path("runs"), _name(args))
        try:
            yield out
        except BaseException:
            (out / sbatch.FILE).unlink(missing_ok=True)
            with suppress(OSError):  # somebody else has put something there
                out.rmdir()
            raise
        return
    out = Path(args.out)
    alive = queue.states(job.job for job in job_log.read(out / sbatch.LOG))
    for job, state in (alive or {}).items():
        raise UsageError(f"job {job} ({state}) of {out} is in the queue already; wait for it, or end it with scancel {job}")
    with explained(out):
        out.mkdir(parents=True, exist_ok=True)
    yield out
