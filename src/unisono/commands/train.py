"""`unisono train`: one task file on any number of workers."""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unisono.cluster.deadline import DURATION_FORMS, parse_duration
from unisono.cluster.instruction_set import LEVELS
from unisono.commands import join, workers
from unisono.config import TrainConfig
from unisono.errors import AlreadyTold, TrainingFailed, UsageError, unknown_name
from unisono.overrides import DIRECT, PLAIN, literal, parse
from unisono.task import Task
from unisono.taskfile import PICKLED, check_file, read_pickled, write_pickled

if TYPE_CHECKING:
    from unisono.run import Ended
    from unisono.tuning.result import BestSettings

HELP = "train a task file on any number of workers"
DESCRIPTION = """Trains what a task file defines, on one worker or many, with the same mathematics whatever their number.
Alone it starts N workers on this machine; inside srun, mpirun or torchrun the workers are there already and -n is not needed.
All that a run produces lies in its directory: settings, metrics, weights, curves, summary."""
EPILOG = """examples:
  unisono train examples/digits.py                             one worker
  unisono train examples/digits.py -n 4 --out runs/digits      four workers on this machine
  unisono train task.py -n 4 --set model.width=128 --set optimizer.momentum=0.9 --lr 0.05 --epochs 20
  unisono train task.py --target 0.99 --patience 5 --timeline --monitor
  unisono train task.py -n 3 --shards 8                        the same bits with 1 to 8 workers
  unisono train task.py -n 4 --algorithm local_sgd --set algorithm.period=16
                                                               workers learn alone, and agree every 16 steps
  unisono train task.py -n 8 --group 4 --algorithm diloco      two workers, each of four processes that agree in every step
  unisono train task.py -n 9 --group 4 --algorithm easgd       a server and two workers of four processes each
  unisono train task.py -n 6 --servers 2 --algorithm downpour  two servers, each with half of the weights, and four workers
  unisono train task.py --elastic 4 --algorithm gem --out runs/a
                                                               a server and four workers; more: unisono join runs/a
  unisono train task.py --simulate 100 --algorithm gem         a hundred virtual workers on a virtual clock
  unisono train task.py -n 5 --algorithm gem --replay runs/a   repeats an asynchronous run, bit for bit
  srun -N 2 -n 8 unisono train task.py                         eight workers under SLURM
  mpirun -n 8 unisono train task.py
  unisono train task.py --out runs/a --time-limit 2h           stops in time; the same command goes on
  unisono train task.py --from-study studies/x                 the best settings of a search, on training and validation data
Ctrl-C, SIGTERM, SIGUSR1 and the time limit end the training after the step in hand, with everything saved: the same command with
the same --out goes on from there, also after a crash, on any number of workers. A second Ctrl-C ends it at once.
exit codes: 0 done, 1 failed, 2 a mistake in the command, the task or its data, 75 stopped in time and to be gone on with"""

OPTIONS = (
    "algorithm",
    "group",
    "servers",
    "simulate",
    "replay",
    "elastic",
    "silence_s",
    "host",
    "local_batch",
    "init_from",
    "on_nan",
    "log_every",
    "monitor",
    "timeline",
    "tensorboard",
    "device",
    "threads",
    "hash_every",
    "max_steps",
    "fresh",
    "accept_changes",
    "checkpoint_every",
    "keep",
    "time_limit",
)
"""What `un.train` passes on to the run; other names are settings of the task."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Local: the options of the verb."""
    parser.add_argument("task", metavar="TASK.py", help="the file that defines `task = un.Task(...)`")
    parser.add_argument("-n", type=int, metavar="N", help="workers (default 1, or those that srun, mpirun or torchrun started)")
    experiment = parser.add_argument_group("the experiment (each of these is a change to the task)")
    experiment.add_argument("--epochs", metavar="E", help="how often every training sample is used")
    experiment.add_argument("--global-batch", metavar="B", help="samples of one step over all workers together")
    experiment.add_argument("--local-batch", type=int, metavar="B", help="samples of one worker: the batch grows with the workers")
    experiment.add_argument("--lr", metavar="LR", help="learning rate")
    experiment.add_argument("--seed", metavar="S", help="of the weights, the order of the samples and all that is drawn")
    experiment.add_argument("--target", metavar="T", help="stop when the monitored metric is this good; its time is recorded")
    experiment.add_argument("--patience", metavar="P", help="stop when it has not improved for P epochs")
    experiment.add_argument("--precision", metavar="P", help="float32 or bf16")
    experiment.add_argument(
        "--accumulate", metavar="K", help="micro-batches in which each worker computes its part, to save memory"
    )
    experiment.add_argument(
        "--shards",
        metavar="S",
        help="cut every batch into S fixed parts: any number of workers up to S then gives the same bits",
    )
    experiment.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="changes",
        help="model.NAME, data.NAME, optimizer.NAME, schedule.NAME, loss.NAME, algorithm.NAME, simulate.NAME or a field of it",
    )
    experiment.add_argument("--algorithm", metavar="A", help="how the workers agree (default allreduce)")
    experiment.add_argument(
        "--group", type=int, metavar="G", help="processes of one worker, where workers learn by themselves between exchanges"
    )
    experiment.add_argument(
        "--servers", type=int, metavar="K", help="processes that share the work of the server (downpour, easgd, gem; default 1)"
    )
    experiment.add_argument(
        "--simulate", type=int, metavar="N", help="N virtual workers in one process on a virtual clock (downpour, easgd, gem)"
    )
    experiment.add_argument(
        "--elastic",
        type=int,
        metavar="W",
        help="a server and W workers that may join, leave and die (downpour, easgd, gem; ZeroMQ)",
    )
    experiment.add_argument(
        "--replay",
        metavar="RUN",
        help="repeat an asynchronous run (an --elastic one in one process): its order, its bits",
    )
    experiment.add_argument(
        "--from-study", metavar="DIR", help="the best settings that `unisono tune` has found there; with --all-data"
    )
    experiment.add_argument("--all-data", action="store_true", help="train on training and validation data together")
    experiment.add_argument("--init-from", metavar="FILE", help="begin with the weights of a file (.safetensors, .pt)")
    going_on = parser.add_argument_group("stop and go on")
    going_on.add_argument(
        "--out",
        metavar="DIR",
        help="run directory (default a new one: runs/NAME, runs/NAME-2, ...); a run that is there goes on",
    )
    going_on.add_argument("--max-steps", type=int, metavar="K", help="stop after K steps of the run; with a larger K it goes on")
    going_on.add_argument("--time-limit", metavar="T", help=f"stop and save before this time is over: {DURATION_FORMS}")
    going_on.add_argument(
        "--checkpoint-every",
        default="10m",
        metavar="E",
        help="save the state every so many steps (500), epochs (2epochs), seconds, minutes or hours (30s, 10m, 1h); never: only at "
        "the end (default 10m)",
    )
    going_on.add_argument("--keep", type=int, default=3, metavar="K", help="checkpoints to keep (default 3)")
    going_on.add_argument("--fresh", action="store_true", help="start over; the run that is there is put aside in DIR/earlier-N")
    going_on.add_argument("--accept-changes", action="store_true", help="go on although the task or its settings have changed")
    going_on.add_argument(
        "--restarts",
        type=int,
        default=0,
        metavar="R",
        help="with -n: if a worker dies, go on from the last checkpoint, R times",
    )
    watching = parser.add_argument_group("what is shown")
    watching.add_argument("--on-nan", default="stop", metavar="WHAT", help="stop (default) or skip when a loss is not finite")
    watching.add_argument(
        "--log-every", type=int, default=50, metavar="K", help="steps between lines of metrics.jsonl (default 50)"
    )
    watching.add_argument("--monitor", action="store_true", help="record CPU, GPU and memory of each worker")
    watching.add_argument("--timeline", action="store_true", help="write one trace of all ranks for Perfetto or Chrome")
    watching.add_argument(
        "--hash-every", type=int, metavar="K", help="write the hash of every weight tensor to hashes.jsonl, every K steps"
    )
    watching.add_argument("--tensorboard", action="store_true", help="also write for TensorBoard")
    watching.add_argument("--quiet", action="store_true", help="print nothing but errors and the last line")
    machine = parser.add_argument_group("the machine")
    machine.add_argument("--engine", metavar="E", help="how the workers talk: auto, single, shm, gloo, nccl or mpi")
    machine.add_argument("--allreduce", metavar="A", help="auto, ring, recursive_doubling, rabenseifner, node_aware or engine")
    machine.add_argument("--device", default="auto", metavar="D", help="auto, cpu, or cuda where several workers share a GPU")
    machine.add_argument(
        "--silence",
        type=float,
        default=10.0,
        metavar="S",
        help="with --elastic: seconds without a sign of life after which a worker is counted as dead (default 10)",
    )
    machine.add_argument(
        "--host", metavar="ADDRESS", help="with --elastic: where workers reach the server (default: this node, or its address)"
    )
    machine.add_argument(
        "--portable",
        metavar="LEVEL",
        help=f"use only instructions that many CPUs have, so that they round alike ({', '.join(LEVELS)})",
    )
    machine.add_argument(
        "--threads", type=int, metavar="T", help="threads of each worker (default: the CPUs / the workers; with --shards 1)"
    )


def main(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Local or collective, blocking: start the workers, or be one. `argv` is the command as typed, without `unisono`."""
    from unisono.cluster.launch import cap
    from unisono.cluster.resolve import here

    cap(args.portable)
    comes_and_goes = args.elastic is not None and args.replay is None
    if args.task.endswith(PICKLED):
        return _work_for_another(Path(args.task))
    if here().launcher == "local":
        if comes_and_goes and args.n is None:
            args.n = args.elastic + 1
        _check_restarts(args)
        configuration(args, argv)  # what is wrong with it is told here, where nothing has started yet
        check_file(Path(args.task))
        if (code := workers.launched(args, argv, Path(args.task).stem)) is not None:
            return code
    if comes_and_goes:
        if here().global_rank:
            return join.be_worker(Path(args.out), args.threads, args.device, wait_s=join.LONG_S, as_rank=True)
        ended = serve(configuration(args, argv))
    else:
        ended = work(lambda: configuration(args, argv), args.n, args.engine, args.allreduce)
    if args.quiet and ended.rank == 0:
        print(f"{ended.summary['reason']}; results in {ended.out}")
    return _code(ended)


def _check_restarts(args: argparse.Namespace) -> None:
    if args.restarts < 0:
        raise UsageError(f"--restarts must be at least 0; received {args.restarts}")
    if args.restarts and (args.n or 1) < 2:
        raise UsageError("--restarts is for workers that -n starts, and one alone is not started by anybody; give -n 2 or more")
    if args.restarts and args.out is None:
        raise UsageError("--restarts needs --out, so that the next life finds the run")


def configuration(args: argparse.Namespace, argv: Sequence[str]) -> TrainConfig:
    """Local, blocking where a study must be read (--from-study): what the options say."""
    direct = {name: literal(value) for name in DIRECT if (value := getattr(args, name)) is not None}
    changes: Mapping[str, Any] = parse(args.changes)
    found = None if args.from_study is None else _best_settings(Path(args.from_study), Path(args.task), args.accept_changes)
    twice = [name for name in direct if name in changes]
    if twice:
        raise UsageError(f"--{twice[0].replace('_', '-')} and --set {twice[0]} say the same thing; give one of them")
    return TrainConfig(
        task_file=args.task,
        changes={**({} if found is None else found.changes), **changes, **direct},
        algorithm=args.algorithm or ("allreduce" if found is None else found.algorithm),
        division={"fold": None} if args.all_data or found is not None else None,
        group=args.group,
        servers=args.servers,
        simulate=args.simulate,
        replay=args.replay,
        elastic=args.elastic,
        silence_s=args.silence,
        host=args.host or _own_address(),
        local_batch=args.local_batch,
        out=args.out,
        fresh=args.fresh,
        accept_changes=args.accept_changes,
        checkpoint_every=args.checkpoint_every,
        keep=args.keep,
        time_limit_s=None if args.time_limit is None else parse_duration(args.time_limit),
        init_from=args.init_from,
        on_nan=args.on_nan,
        log_every=args.log_every,
        monitor=args.monitor,
        timeline=args.timeline,
        tensorboard=args.tensorboard,
        device=args.device,
        threads=args.threads,
        hash_every=args.hash_every,
        max_steps=args.max_steps,
        quiet=args.quiet,
        command=("unisono", *argv),
    )


def _best_settings(folder: Path, task_file: Path, accept_changes: bool) -> BestSettings:
    from unisono.tuning.result import best_settings

    return best_settings(folder, task_file, accept_changes)


def _own_address() -> str | None:
    """Local: where workers on other nodes reach this one; None where there are none."""
    import socket

    from unisono.cluster.resolve import here

    return None if here().one_node else socket.gethostbyname(socket.gethostname())


def _work_for_another(file: Path) -> int:
    """Collective, blocking: be one worker of a training that `un.train` started. What its user is to know goes into a file."""
    asked = read_pickled(file)
    task = None if isinstance(asked.task, str) else asked.task
    told = Path(asked.told)
    try:
        ended = work(lambda: asked.config, task=task)
    except (UsageError, TrainingFailed) as error:
        is_usage = isinstance(error, UsageError)
        told.write_text(json.dumps({"mistake" if is_usage else "failure": str(error)}))
        raise AlreadyTold(2 if is_usage else 1) from error
    if ended.rank == 0:
        told.write_text(json.dumps({"out": str(ended.out.resolve())}))
    return _code(ended)


def work(
    configure: Callable[[], TrainConfig],
    num_workers: int | None = None,
    engine: str | None = None,
    allreduce: str | None = None,
    task: Task | None = None,
) -> Ended:
    """Collective, blocking: be one worker of a training. A mistake in the configuration is told once, as all others."""
    from unisono.cluster.mortality import stop_with_torchrun
    from unisono.cluster.resolve import here
    from unisono.cluster.terminal import terminal
    from unisono.cluster.threads import set_threads
    from unisono.comm.connect import connect
    from unisono.comm.together import together
    from unisono.run import Screen, execute

    stop_with_torchrun(here().launcher)
    with connect(engine=engine, allreduce=allreduce, quiet=True) as comm:
        together(comm, lambda: _check_number(num_workers, comm.size))
        config = together(comm, configure)
        set_threads(config.threads)
        at = terminal()
        return execute(config, comm, None if config.quiet else Screen(at.columns, at.colour), task)


def serve(config: TrainConfig) -> Ended:
    """Local, blocking: be the server of workers that come and go."""
    from unisono.cluster.terminal import terminal
    from unisono.cluster.threads import set_threads
    from unisono.comm.single import alone
    from unisono.run import Screen, execute

    set_threads(config.threads)
    at = terminal()
    return execute(config, alone(), None if config.quiet else Screen(at.columns, at.colour))


def _check_number(asked: int | None, there: int) -> None:
    if asked is not None and asked != there:
        raise UsageError(f"{asked} workers were asked for (-n), but {there} were started; leave it out, or start {asked}")


def _code(ended: Ended) -> int:
    from unisono.run import STOPPED_CODE

    return STOPPED_CODE if ended.summary["reason"] == "interrupted" else 0


def train(
    task: Task | str | Path,
    workers: int | None = None,
    out: str | Path | None = None,
    *,
    engine: str | None = None,
    set: Mapping[str, Any] | None = None,
    show: bool = True,
    **options: Any,
) -> Ended:
    """Collective inside a job, else local; blocking: train a task (or a task file) and give its run directory and summary.

    `set` holds changes as on the command line ({"model.width": 128}); other settings of the task and options of `unisono train`
    can be named directly (epochs=3, lr=0.1, timeline=True). Inside srun, mpirun or `unisono run` every process calls it.
    """
    from unisono.cluster.resolve import here
    from unisono.excepthook import show_errors_plainly

    show_errors_plainly()
    for name in options:
        if name not in (*PLAIN, *OPTIONS):
            raise unknown_name("argument of un.train", name, {*PLAIN, *OPTIONS, "workers", "out", "engine", "set", "show"})

    def configure() -> TrainConfig:
        return TrainConfig(
            task_file=str(task) if not isinstance(task, Task) else "",
            changes={**(set or {}), **{name: value for name, value in options.items() if name not in OPTIONS}},
            out=None if out is None else str(out),
            quiet=not show,
            time_limit_s=parse_duration(str(options["time_limit"])) if options.get("time_limit") else None,
            **{name: value for name, value in options.items() if name in OPTIONS and name != "time_limit"},
        )

    if here().launcher == "local":
        if workers is not None and workers < 1:
            raise UsageError(f"workers must be at least 1; received {workers}")
        if workers is not None and workers > 1:
            return _launch_call(task, configure(), workers, engine)
    return work(configure, workers, engine, task=task if isinstance(task, Task) else None)


def _launch_call(task: Task | str | Path, config: TrainConfig, workers: int, engine: str | None) -> Ended:
    """Local, blocking: the task travels to the workers as a file, functions of a notebook by value."""
    from unisono.cluster.launch import LaunchConfig, launch
    from unisono.run import Ended

    with tempfile.TemporaryDirectory(prefix="unisono-") as folder:
        told = Path(folder) / "out.json"
        file = write_pickled(Path(folder), task, config, str(told))
        code = launch(
            LaunchConfig(
                program=("-m", "unisono.cli", "train", str(file)),
                num_local=workers,
                engine=engine,
                job=task.name if isinstance(task, Task) else Path(task).stem,
                threads=config.threads,
                voice="first",
            )
        )
        if not told.exists():
            if code == 128 + signal.SIGINT:
                raise KeyboardInterrupt
            raise TrainingFailed(f"the workers ended with exit code {code}; what they printed says why")
        news = json.loads(told.read_text())
    if "mistake" in news:
        raise UsageError(news["mistake"])
    if "failure" in news:
        raise TrainingFailed(news["failure"])
    out = Path(news["out"])
    return Ended(out, json.loads((out / "summary.json").read_text()))
