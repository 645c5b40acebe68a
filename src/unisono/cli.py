"""The command `unisono`: one verb each. Nothing heavy is imported before a verb needs it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

from unisono.commands import apply, compare, data, evaluate, horovodrun, join, status, submit, train, tune, verify
from unisono.errors import AlreadyTold, PeerLost, TrainingFailed, UsageError
from unisono.version import __version__

if TYPE_CHECKING:
    from unisono.cluster.horovod_start import HorovodStart

USAGE_CODE = 2
INTERRUPTED_CODE = 130
READER_LEFT_CODE = 141
"""What the shell gives for a program that SIGPIPE ended (`| head`)."""
DEFAULT_RESTARTS = 3
SWITCHES = ("-h", "--help", "--horovod", "--timestamps", "--told-by-stdin")
"""Options of `unisono run` that take no value."""

COMMANDS: Mapping[str, ModuleType] = {
    "train": train,
    "tune": tune,
    "join": join,
    "submit": submit,
    "horovodrun": horovodrun,
    "status": status,
    "evaluate": evaluate,
    "apply": apply,
    "compare": compare,
    "verify": verify,
    "data": data,
}
"""Verb -> the file that does it."""


class _Parser(argparse.ArgumentParser):
    """Mistakes become `UsageError`, so that all of them look alike."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Local, blocking: do what the command line says and give the exit code. A user's mistake is one line and code 2."""
    try:
        code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        if sys.stdout is not None:  # it was closed before we started
            sys.stdout.flush()  # where we can still say what becomes of it
        return code
    except UsageError as error:
        print(f"unisono: error: {error}", file=sys.stderr)
        return USAGE_CODE
    except (PeerLost, TrainingFailed) as error:
        print(f"unisono: error: {error}", file=sys.stderr)
        return 1
    except AlreadyTold as told:
        return told.code
    except KeyboardInterrupt:
        return INTERRUPTED_CODE
    except BrokenPipeError:
        _write_nowhere()
        return READER_LEFT_CODE


def _write_nowhere() -> None:
    """What is still in the buffers must not fail once more when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for fd in (1, 2):
        os.dup2(nowhere, fd)
    os.close(nowhere)


def _dispatch(argv: list[str]) -> int:
    program: tuple[str, ...] = ()
    if argv[:1] == ["run"]:
        options, program = split_program(argv[1:])
        argv = ["run", *options]
    parser = _parser()
    ours = COMMANDS[argv[0]].split(argv)[0] if argv[:1] in (["submit"], ["horovodrun"]) else argv
    try:
        args, unknown = parser.parse_known_args(ours)
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)
    if unknown:
        where = f"unisono {args.verb}" if args.verb else "unisono"
        raise UsageError(f"{where} does not know {unknown[0]!r}; see {where} --help")
    if args.verb is None:
        parser.print_help()
        return 0
    if args.verb == "run":
        return _run(args, program)
    return _doctor(args) if args.verb == "doctor" else int(COMMANDS[args.verb].main(args, argv))


def split_program(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Our options, and the program with its own: all of ours but the switches take one value, so the program is what follows."""
    position = 0
    while position < len(argv):
        word = argv[position]
        if word == "--":
            return list(argv[:position]), tuple(argv[position + 1 :])
        if word == "-m" or not word.startswith("-") or word == "-":
            break
        if word in SWITCHES or "=" in word or (word[1] != "-" and len(word) > 2):
            position += 1
        else:
            position += 2
    return list(argv[:position]), tuple(argv[position:])


def _parser() -> _Parser:
    parser = _Parser(
        prog="unisono",
        description="Trains, tunes, measures and applies neural networks on many workers.",
        epilog="examples:\n"
        "  unisono train task.py -n 4               train a task on four workers of this machine\n"
        "  unisono submit task.py --time 00:30:00   train a task under SLURM, in as many jobs as it takes\n"
        "  unisono run -n 4 train.py --epochs 3     four processes of a program on this machine\n"
        "  unisono horovodrun -np 4 python train.py  a program written for Horovod, unchanged\n"
        "  unisono doctor                           what a job would find here, and what to repair first\n"
        "  unisono run --help                       all options of one verb, with examples",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"unisono {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="verb", title="verbs")
    for name, command in COMMANDS.items():
        command.add_arguments(_verb(verbs, name, command))
    _add_run(verbs)
    _add_doctor(verbs)
    return parser


def _verb(verbs: argparse._SubParsersAction[_Parser], name: str, command: ModuleType) -> _Parser:
    return verbs.add_parser(
        name,
        help=command.HELP,
        description=command.DESCRIPTION,
        epilog=command.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _add_run(verbs: argparse._SubParsersAction[_Parser]) -> None:
    run = verbs.add_parser(
        "run",
        help="start a program as several processes that find each other",
        usage="unisono run -n N [options] program [arguments ...]\n       unisono run -n N [options] -m module [arguments ...]",
        description="Starts N processes of a program on this machine, with the environment in which they find each other.\n"
        "Each line they print gets its rank in front. When one fails, all end, and its exit code is ours.\n"
        "A .py file or a module runs by the same Python as unisono; anything else is looked up on PATH.",
        epilog="examples:\n"
        "  unisono run -n 4 train.py --epochs 3\n"
        "  unisono run -n 4 --engine gloo --log-dir logs -m package.train --epochs 3\n"
        "  unisono run -n 8 --on-failure restart --restarts 5 train.py\n"
        "two hosts without a scheduler, the same command on both but for --node-rank:\n"
        "  node01$ unisono run -n 4 --nodes 2 --node-rank 0 --rendezvous node01:29400 train.py\n"
        "  node02$ unisono run -n 4 --nodes 2 --node-rank 1 --rendezvous node01:29400 train.py\n"
        "a program written for Horovod, unchanged (`import horovod.torch as hvd`), started here or by another launcher:\n"
        "  unisono run --horovod -n 4 train.py\n"
        "  mpirun -n 4 unisono run --horovod train.py\n"
        "  srun -N 2 -n 8 unisono run --horovod train.py\n"
        "signals: SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to every rank; a second Ctrl-C kills them.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    run.add_argument("-n", type=_whole, metavar="N", help="processes on this node (the same on every node)")
    run.add_argument(
        "--horovod",
        action="store_true",
        help="`import horovod` gives unisono.horovod, HOROVOD_RANK and the like are set, every process sees all GPUs; without -n "
        "inside srun, mpirun or torchrun",
    )
    run.add_argument("--timestamps", action="store_true", help="put the time in front of every line")
    run.add_argument("--on-nodes", type=_counts, default=(), metavar="L", help=argparse.SUPPRESS)  # of other launchers of ours
    run.add_argument("--told-by-stdin", action="store_true", help=argparse.SUPPRESS)
    run.add_argument("--engine", metavar="E", help="how they talk: auto, single, shm, gloo or nccl (mpi is for mpirun)")
    run.add_argument(
        "--allreduce", metavar="A", help="auto, ring, recursive_doubling, rabenseifner, node_aware or engine (the library's)"
    )
    run.add_argument("--time-limit-s", type=_seconds, metavar="S", help="how long a collective waits for a missing rank")
    run.add_argument("--nodes", type=_whole, metavar="K", help="hosts that run this command together (default 1)")
    run.add_argument("--node-rank", type=_whole, metavar="I", help="which of them this is: 0..K-1; rank 0 runs on node 0")
    run.add_argument("--rendezvous", metavar="HOST:PORT", help="where node 0 is met by the others")
    run.add_argument("--job", metavar="NAME", help="name of the job, for messages; alike on all nodes")
    run.add_argument("--log-dir", type=Path, metavar="DIR", help="also write the lines of each rank to DIR/rank-N.log")
    run.add_argument(
        "--on-failure",
        metavar="POLICY",
        help="end (default): all end; continue: the others go on; restart: all start again; elastic: each ends alone, and rank 0 "
        "starts again if it was killed",
    )
    run.add_argument("--restarts", type=_whole, metavar="R", help=f"with restart: at most R times (default {DEFAULT_RESTARTS})")
    run.add_argument(
        "--threads", type=_whole, metavar="T", help="threads for each process (default: the CPUs we may use / N, at least 1)"
    )
    run.add_argument("--bind", metavar="HOW", help="cpus (default): each process keeps its share of the CPUs; none: it may move")


def _add_doctor(verbs: argparse._SubParsersAction[_Parser]) -> None:
    doctor = verbs.add_parser(
        "doctor",
        help="say what a job would find on this machine and what usually goes wrong",
        description="Says which launcher started this process and why, and checks threads, shared memory, GPUs, host names,\n"
        "network and MPI, with the remedy for each thing found.",
        epilog="examples:\n"
        "  unisono doctor\n"
        "  unisono doctor -n 8 --json > doctor.json\n"
        "  srun -N 2 --ntasks-per-node 1 unisono doctor --no-bandwidth",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    doctor.add_argument("-n", type=_whole, metavar="N", help="processes there should be; alone, as many are started to look")
    doctor.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    doctor.add_argument("--no-bandwidth", action="store_true", help="do not measure the network between two ranks")


def _run(args: argparse.Namespace, program: tuple[str, ...]) -> int:
    from unisono.cluster.launch import LaunchConfig, launch

    if args.node_rank is not None and args.nodes is None:
        raise UsageError(f"--node-rank {args.node_rank} needs --nodes, the number of hosts; add it or leave both out")
    if args.nodes is not None and args.nodes > 1 and args.node_rank is None:
        raise UsageError(f"--nodes {args.nodes} needs --node-rank on each host: 0..{args.nodes - 1}, a different one on each")
    horovod = _for_horovod(program) if args.horovod else None
    if args.n is None:
        return _run_as_one(args, program, horovod)
    restarts = DEFAULT_RESTARTS if args.restarts is None and args.on_failure == "restart" else args.restarts
    return launch(
        LaunchConfig(
            program=program,
            num_local=args.n,
            engine=args.engine,
            allreduce=args.allreduce,
            time_limit_s=args.time_limit_s,
            num_nodes=1 if args.nodes is None else args.nodes,
            node_rank=args.node_rank or 0,
            rendezvous=args.rendezvous,
            job=args.job,
            log_dir=args.log_dir,
            on_failure="end" if args.on_failure is None else args.on_failure,
            restarts=restarts or 0,
            threads=args.threads,
            bind="cpus" if args.bind is None else args.bind,
            horovod=horovod,
            num_on_nodes=args.on_nodes,
            timestamps=args.timestamps,
            told_by_stdin=args.told_by_stdin,
        )
    )


def _for_horovod(program: Sequence[str]) -> HorovodStart:
    from unisono.compat.horovod.launching.start import horovod_start

    return horovod_start(program)


def _run_as_one(args: argparse.Namespace, program: tuple[str, ...], horovod: HorovodStart | None) -> int:
    """Without -n: another launcher has started several of us, and each becomes the program."""
    from unisono.cluster.horovod_start import be_rank
    from unisono.cluster.launch import LaunchConfig
    from unisono.cluster.wishes import wishes_of

    if horovod is None:
        raise UsageError("-n, the number of processes, is missing; see unisono run --help")
    for option in ("nodes", "node_rank", "rendezvous", "job", "log_dir", "on_failure", "restarts", "threads", "bind", "timestamps"):
        if getattr(args, option) not in (None, False):
            shown = option.replace("_", "-")
            raise UsageError(f"--{shown} is read only with -n; add -n, or leave it to the launcher that starts the processes")
    asked = LaunchConfig(program, 1, engine=args.engine, allreduce=args.allreduce, time_limit_s=args.time_limit_s)
    be_rank(program, horovod, wishes_of(asked))


def _doctor(args: argparse.Namespace) -> int:
    from unisono import doctor

    return doctor.main(args)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number; received {text!r}") from None


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_whole(number) for number in text.split(","))


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number of seconds; received {text!r}") from None


if __name__ == "__main__":
    sys.exit(main())
