"""`unisono train`: trains one task file on any number of workers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from unisono.commands import on_workers
from unisono.errors import UsageError
from unisono.launch.lasting_import import import_to_stay
from unisono.launch.this_process import cap_instruction_set
from unisono.start_training import TRAIN_OPTIONS, exit_code, serve, train_config, work, work_for_call
from unisono.task.options import add_options
from unisono.task.task_file import PICKLED, check_file
from unisono.task.train_config import TrainConfig, monitor_remedy

DESCRIPTION = """Trains what a task file defines, on one worker or many; the number of workers does not change the mathematics.
With -n, unisono starts N workers on this machine; inside srun, mpirun or torchrun the workers exist already and -n is not needed.
The directory of a run holds all that it produces: settings, metrics, weights, curves, summary."""
EPILOG = """examples:
  unisono train examples/digits.py                             one worker
  unisono train examples/digits.py -n 4 --out runs/digits      four workers on this machine
  unisono train task.py -n 4 --set model.width=128 --set optimizer.momentum=0.9 --lr 0.05 --epochs 20
  unisono train task.py --best val_f1 --patience 5             the epoch with the best val_f1; stops when it no longer improves
  unisono train task.py --target 0.99 --timeline --monitor
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
  unisono train task.py --out runs/a --time-limit 2h           stops in time; run the same command to resume
  unisono train task.py --from-study studies/x                 the best settings of a search, on training and validation data
Ctrl-C, SIGTERM, SIGUSR1 and the time limit end the training after the current step, with everything saved. To resume, also after a
crash, run the same command with the same --out, on any number of workers. A second Ctrl-C ends the training at once.
all options, with their keywords in un.train and those of the algorithms (--set algorithm.NAME): docs/reference/options.md
exit codes: 0 done, 1 failed, 2 a mistake in the command, the task or its data,
  75 stopped, checkpoint saved; run the same command to resume"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Local: adds the options of the verb."""
    parser.add_argument("task", metavar="TASK.py", help="the file that defines `task = un.Task(...)`")
    add_options(parser, *TRAIN_OPTIONS)


def split(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Pure: all arguments are ours. Refuses a metric after --monitor, which takes no value."""
    for word, after in zip(argv, [*argv[1:], "-"], strict=True):
        if word.startswith("--monitor="):
            raise UsageError(monitor_remedy(word.partition("=")[2]))
        if word == "--monitor" and not after.startswith("-") and not after.endswith((".py", PICKLED)):
            raise UsageError(monitor_remedy(after))
    return list(argv), ()


def main(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Local or collective, blocking: starts the workers, or runs as one. `argv` is the command as typed, without `unisono`."""
    from unisono.cluster.resolve import current_topology

    start = on_workers.options(args)
    cap_instruction_set(start.portable)
    if args.task.endswith(PICKLED):
        import_to_stay("unisono.run")
        return work_for_call(Path(args.task))
    if current_topology().launcher == "local":
        config = configuration(args, argv)  # mistakes are reported here, before anything has started
        if config.comes_and_goes and config.elastic is not None and start.workers is None:
            start = replace(start, workers=config.elastic + 1)
        start.check_restarts(config.out)
        check_file(Path(args.task))
        if (code := on_workers.launch_if_requested(start, argv, Path(args.task).stem, config.comes_and_goes)) is not None:
            return code
    if "elastic" in args and "replay" not in args:
        config = configuration(args, argv)
        if current_topology().global_rank:
            from unisono.commands import join

            return join.be_worker(Path(config.out or ""), config.threads, config.device, join.LONG_S, as_rank=True)
        import_to_stay("unisono.run")
        ended = serve(config)
    else:
        import_to_stay("unisono.run")
        ended = work(lambda: configuration(args, argv), start)
    if "quiet" in args and ended.rank == 0:
        print(f"{ended.summary['reason']}; results in {ended.out}")
    return exit_code(ended)


def configuration(args: argparse.Namespace, argv: Sequence[str]) -> TrainConfig:
    """Local, blocking where a study must be read (--from-study): the configuration from parsed arguments."""
    return train_config(args.task, vars(args), ("unisono", *argv))
