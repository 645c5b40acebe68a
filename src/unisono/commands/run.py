"""`unisono run`: a program as several processes of this machine that find each other."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from unisono.cluster.resolve import environment
from unisono.errors import UsageError
from unisono.launch.launch import LaunchConfig
from unisono.task.options import add_options, options_for, options_of

DESCRIPTION = """Starts N processes of a program on this machine and sets the variables with which they connect to each other.
Each line of their output begins with the rank. When a process fails, the others are ended, and the command exits with its code.
A .py file or a module runs with the same Python as unisono; any other program is looked up on PATH."""
EPILOG = """examples:
  unisono run -n 4 train.py --epochs 3
  unisono run -n 4 --engine gloo --log-dir logs -m package.train --epochs 3
  unisono run -n 8 --on-failure restart --restarts 5 train.py
on two hosts without a scheduler, the same command except for --node-rank:
  node01$ unisono run -n 4 --nodes 2 --node-rank 0 --rendezvous node01:29400 train.py
  node02$ unisono run -n 4 --nodes 2 --node-rank 1 --rendezvous node01:29400 train.py
a program written for Horovod, unchanged (`import horovod.torch as hvd`), started here or by another launcher:
  unisono run --horovod -n 4 train.py
  mpirun -n 4 unisono run --horovod train.py
  srun -N 2 -n 8 unisono run --horovod train.py
signals: SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to every rank; a second Ctrl-C kills them."""

WITHOUT_N = ("horovod", "engine", "allreduce", "time_limit_s")
"""Options that have an effect where another launcher starts the processes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Local: adds the options of the verb."""
    parser.usage = "unisono run -n N [options] program [arguments ...]\n       unisono run -n N [options] -m module [arguments ...]"
    parser.add_argument(
        "--horovod",
        action="store_true",
        help="for Horovod programs: `import horovod` gives unisono.horovod, HOROVOD_RANK etc. are set, a process sees all GPUs; "
        "inside srun, mpirun or torchrun leave -n out",
    )
    add_options(parser, LaunchConfig)


def split(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Pure: splits the command line into our options with the verb, and the program with its own: all of ours but the switches
    take one value, so the program is what follows."""
    switches = {"-h", "--help", "--horovod", *(one.flag for one in options_of(LaunchConfig) if one.kind == "bool")}
    position = 1
    while position < len(argv):
        word = argv[position]
        if word == "--":
            return list(argv[:position]), tuple(argv[position + 1 :])
        if word == "-m" or not word.startswith("-") or word == "-":
            break
        position += 1 if word in switches or "=" in word or (word[1] != "-" and len(word) > 2) else 2
    return list(argv[:position]), tuple(argv[position:])


def main(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Local, blocking: starts the processes and waits for them; returns the exit code."""
    from unisono.launch.launch import launch

    _, program = split(argv)
    given = options_for(LaunchConfig, vars(args))
    if "node_rank" in given and "num_nodes" not in given:
        raise UsageError(f"--node-rank {args.node_rank} needs --nodes, the number of hosts; add --nodes, or leave both out")
    if "node_rank" not in given and isinstance(num := given.get("num_nodes"), int) and num > 1:
        raise UsageError(f"--nodes {num} needs --node-rank on each host: 0..{num - 1}, a different one on each")
    if "num_local" not in given:
        return _become_rank(args, program, given)
    config = LaunchConfig(program, **given)
    if args.horovod:
        from unisono.horovod._impl.launching.rank_start import horovod_start, with_horovod

        config = with_horovod(config, horovod_start(program), environment())
    return launch(config)


def _become_rank(args: argparse.Namespace, program: tuple[str, ...], given: dict[str, Any]) -> int:
    """Replaces this process by the program: without -n another launcher has started several of them."""
    from unisono.launch.launch_options import launch_options

    if not args.horovod:
        raise UsageError("-n, the number of processes, is missing; see unisono run --help")
    for name in vars(args):
        if name not in WITHOUT_N:
            shown = name.replace("_", "-")
            raise UsageError(f"--{shown} has no effect without -n; add -n, or leave --{shown} out")
    from unisono.horovod._impl.launching.rank_start import be_rank, horovod_start

    be_rank(program, horovod_start(program), launch_options(LaunchConfig(program, 1, **given)))
