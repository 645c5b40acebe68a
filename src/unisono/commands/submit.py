"""`unisono submit`: a training as a SLURM job that resumes by itself in further jobs until it is done."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from unisono.commands import on_workers, train
from unisono.errors import UsageError
from unisono.files.atomic import atomic_replacement, explain_os_errors
from unisono.slurm_jobs import job_log, sbatch, sbatch_options, site_file, slurm_queue
from unisono.task.options import add_options, check, option, options_for
from unisono.task.task_file import check_file
from unisono.training.run_folder.run_directory import make_new_directory, new_names

DESCRIPTION = """Writes a readable batch file into the run directory and submits it. Each job saves and stops before its time limit,
and the next job resumes there, until the training is done. All options of `unisono train` mean the same here; give other options
of sbatch after `--`. The site file has the settings of all jobs at a site (account, partition, modules, preamble, container,
sbatch): the file given by --site or UNISONO_SITE, else ./unisono-site.toml, else ~/.config/unisono/site.toml."""
EPILOG = """examples:
  unisono submit task.py --epochs 90 --nodes 2 --time 00:30:00
  unisono submit task.py -n 8 --nodes 2 --cpus-per-task 8 --time 12:00:00 --partition gpu -- --gres=gpu:4 --mail-type=END
  unisono submit task.py --time 30 --dry-run                 print the batch file, submit nothing
  unisono submit task.py --time 30 --out runs/task           resumes the run in runs/task, e.g. after scancel
  unisono status runs/task                                   what each job did
scancel ends the job and the chain; `scancel -s USR1 JOB` saves, ends the job and resumes in the next."""


@dataclass(frozen=True)
class JobOptions:
    """Options of the job; those that `unisono train` also has mean the same as there."""

    time: str | None = option(
        None,
        "time limit of each job: 00:30:00, 90 (minutes), 2-12:00 (days-hours), 2h; required here or in the site file",
        "T",
        group="the job",
    )
    nodes: int | None = option(None, "number of nodes (default 1)", "K", least=1)
    ntasks_per_node: int | None = option(None, "workers on each node (default 1, or -n divided by --nodes)", "N", least=1)
    account: str | None = option(None, "account to charge, as for sbatch", "X")
    partition: str | None = option(None, "partition to run in, as for sbatch", "X")
    qos: str | None = option(None, "quality of service, as for sbatch", "X")
    constraint: str | None = option(None, "required features of the nodes, as for sbatch", "X")
    cpus_per_task: str | None = option(None, "CPUs of each worker, as for sbatch", "X")
    gpus_per_task: str | None = option(None, "GPUs of each worker, as for sbatch", "X")
    mem: str | None = option(None, "memory of each node, as for sbatch", "X")
    job_name: str | None = option(None, "name of the jobs (default: that of the run directory)", "X")
    site: str | None = option(None, "site file (default: UNISONO_SITE, ./unisono-site.toml or ~/.config/unisono/site.toml)", "FILE")
    max_jobs: int = option(sbatch.MAX_JOBS, "submit at most K jobs in a row", "K", least=1)
    dry_run: bool = option(False, "print the batch file and submit nothing")
    requeue: bool = False

    def __post_init__(self) -> None:
        check(self)


NAMED = ("account", "partition", "qos", "constraint", "cpus-per-task", "gpus-per-task", "mem", "job-name")
"""Options of sbatch that are common enough to stand among ours."""
REFUSED: Mapping[str, str] = {
    "time_limit": "unisono submit sets --time-limit from --time; leave --time-limit out",
    "fresh": "--fresh would start over in every job; to start a new run, leave --fresh and --out out",
    "restarts": "--restarts is for workers that unisono starts itself, but here srun starts them; leave --restarts out",
}
"""Options of `unisono train` that mean nothing here, with the remedy."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Local: adds the options of `unisono train`, and those of the job."""
    train.add_arguments(parser)
    _add_job_options(parser)


def _add_job_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the job alone."""
    add_options(parser, JobOptions)
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--chain", action="store_false", dest="requeue", default=False, help="each job submits its successor (default)"
    )
    how.add_argument(
        "--requeue", action="store_true", help="the same job is requeued; if SLURM refuses that, it submits a successor"
    )


def main(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Local, blocking: submits a training as a job; returns the exit code. `argv` is the command as typed, without `unisono`; what
    follows `--` in it belongs to sbatch."""
    from unisono.cluster.resolve import environment

    ours, passed = split(argv)
    for name in REFUSED:
        if vars(args).get(name):
            raise UsageError(REFUSED[name])
    start = on_workers.options(args)
    start.check()
    job = JobOptions(requeue=args.requeue, **options_for(JobOptions, vars(args)))
    config = train.configuration(args, argv)  # mistakes are reported now, and not by a job that has waited for hours
    check_file(Path(args.task))
    name = job.job_name or Path(args.task).stem
    env = environment()
    found = site_file.find(env, job.site)
    of_site = site_file.Site() if found is None else site_file.read(found)
    options, first_only = _options(job, start.workers, of_site, passed)
    limit_s = sbatch.limit_s(options.pop("time") or "")
    workdir = _working_directory(env)
    batch = sbatch.Job(
        name=name,
        out=workdir,
        workdir=workdir,
        command=[*_unisono(of_site.container), "train", *_train_arguments(ours)],
        limit_s=limit_s,
        options=options,
        modules=of_site.modules,
        preamble=of_site.preamble,
        container=of_site.container,
        requeue=job.requeue,
        max_jobs=job.max_jobs,
    )

    def text(out: Path) -> str:
        command = batch.command if config.out else [*batch.command, "--out", str(out)]
        return sbatch.batch_file(replace(batch, name=out.name, out=workdir / out, command=command))

    if job.dry_run:
        out = Path(config.out) if config.out else next(path for path in new_names(Path("runs"), name) if not path.exists())
        print(text(out), end="")
        print(f"unisono: nothing was submitted; the batch file would be {out / sbatch.FILE}", file=sys.stderr)
        return 0
    slurm_queue.require_sbatch()
    with _directory(config.out, name) as out:
        file = out / sbatch.FILE
        with atomic_replacement(file) as draft:
            draft.write_text(text(out))
        number = slurm_queue.submit(file, first_only, env)
    with explain_os_errors(out / sbatch.LOG), (out / sbatch.LOG).open("a") as log:
        log.write(job_log.event_line(time.time(), number, "submitted as number 1"))
    print(f"submitted job {number}; run directory: {out} (site file: {found or 'none'}; at most {job.max_jobs} jobs in a row)")
    print(f"progress: unisono status {out}; output: {out}/slurm-{number}.out; to end it: scancel {number}")
    return 0


def split(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Pure: splits the command line into our arguments, and those of sbatch after `--`."""
    place = argv.index("--") if "--" in argv else len(argv)
    ours, _ = train.split(argv[:place])
    return ours, tuple(argv[place + 1 :])


def _train_arguments(ours: Sequence[str]) -> list[str]:
    """Pure: returns the arguments for `unisono train`: those typed, without the verb and without the options of the job."""
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    _add_job_options(own)
    _, of_train = own.parse_known_args(list(ours[1:]))
    return of_train


def _options(
    job: JobOptions, num_workers: int | None, of_site: site_file.Site, passed: Sequence[str]
) -> tuple[dict[str, str | None], list[str]]:
    """Pure: the options of the batch file, where the command line overrides the site file, and those of the first job only."""
    ours = _tasks(job, num_workers, of_site.sbatch) | ({"time": job.time} if job.time else {})
    named = {name: value for name in NAMED if (value := getattr(job, name.replace("-", "_"))) is not None}
    options: dict[str, str | None] = {**of_site.sbatch, **ours, **named, **sbatch_options.parse(passed)}
    if not options.get("time"):
        raise UsageError(
            "unisono submit needs the time limit of each job; give e.g. --time 00:30:00, or sbatch.time in the site file"
        )
    first = [
        f"--{name}" if options[name] is None else f"--{name}={options[name]}"
        for name in options
        if name in sbatch_options.FIRST_JOB_ONLY
    ]
    return {name: value for name, value in options.items() if name not in sbatch_options.FIRST_JOB_ONLY}, first


def _tasks(job: JobOptions, num_workers: int | None, of_site: sbatch.Options) -> dict[str, str | None]:
    """Pure: the numbers of nodes and workers; refuses numbers that do not match."""
    num_nodes, each = job.nodes, job.ntasks_per_node
    if num_workers and each and (num_workers != each * num_nodes if num_nodes else num_workers % each):
        nodes = f"{num_nodes} nodes" if num_nodes else "whole nodes"
        raise UsageError(
            f"-n {num_workers} workers do not fill {nodes} with --ntasks-per-node {each}; give only one of -n and --ntasks-per-node"
        )
    if num_workers and num_nodes and num_workers < num_nodes:
        raise UsageError(f"-n {num_workers} workers cannot use --nodes {num_nodes}; each node needs at least one")
    found: dict[str, str | None] = {}
    if num_nodes or "nodes" not in of_site:
        found["nodes"] = str(num_nodes or (num_workers // each if num_workers and each else 1))
    if num_workers:
        found["ntasks"] = str(num_workers)
    if each or not (num_workers or "ntasks" in of_site or "ntasks-per-node" in of_site):
        found["ntasks-per-node"] = str(each or 1)
    return found


def _working_directory(env: Mapping[str, str]) -> Path:
    """The working directory by the name that the shell uses: the target of a link may have another name on the nodes."""
    here, called = Path.cwd(), Path(env.get("PWD", ""))
    return called if called.is_absolute() and called.exists() and called.samefile(here) else here


def _unisono(container: str) -> list[str]:
    """The command of the jobs: that of the program that submits; in a container the container's own."""
    beside = Path(sys.executable).parent / "unisono"
    if container:
        return ["unisono"]
    return [str(beside)] if beside.is_file() else [sys.executable, "-m", "unisono"]


@contextmanager
def _directory(given: str | None, name: str) -> Iterator[Path]:
    """Context manager: yields the run directory; one that was made for this job is removed again if the job is refused."""
    if given is None:
        out = make_new_directory(Path("runs"), name)
        try:
            yield out
        except BaseException:
            (out / sbatch.FILE).unlink(missing_ok=True)
            with suppress(OSError):  # another process has put something there
                out.rmdir()
            raise
        return
    out = Path(given)
    alive = slurm_queue.job_states(job.job for job in job_log.read(out / sbatch.LOG))
    for job, state in (alive or {}).items():
        raise UsageError(f"job {job} ({state}) of {out} is already in the queue; wait for it, or end it with scancel {job}")
    with explain_os_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    yield out
