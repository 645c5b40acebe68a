"""`unisono horovodrun`: starts programs written for Horovod, with the flags of horovodrun."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from unisono.version import __version__

DESCRIPTION = """Starts a program written for Horovod as several processes. In these processes, and only there, `import horovod`
gives unisono.horovod. They start on this machine as with `unisono run`, inside a SLURM allocation of several nodes through
srun, on other hosts (-H, --hostfile) over ssh, and with --mpi through mpirun. The flags are those of horovodrun."""
EPILOG = """examples:
  unisono horovodrun -np 4 python train.py --epochs 3
  unisono horovodrun -np 8 -H node01:4,node02:4 python train.py
  unisono horovodrun --min-np 2 --max-np 8 --host-discovery-script ./hosts.sh python train.py
  unisono horovodrun -np 4 --config-file horovod.yaml --timeline-filename t.json python train.py
  sbatch -N 2 --ntasks-per-node 4 --wrap "unisono horovodrun python train.py"
other launchers: mpirun -n 4 unisono run --horovod train.py; srun -n 8 unisono run --horovod train.py
if a real Horovod is installed, the command refuses to start and says where it is"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Local: adds the flags of horovodrun."""
    from unisono.horovod._impl.launching import command_line

    parser.usage = "unisono horovodrun -np N [flags] program [arguments ...]"
    command_line.add_arguments(parser)
    parser.add_argument(command_line.CONTROL_STDIN, action="store_true", help=argparse.SUPPRESS)


def split(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Pure: splits the command line into our arguments with the verb, and the program with its own."""
    from unisono.horovod._impl.launching import command_line

    flags, program = command_line.split(argv[1:])
    return [*argv[:1], *flags], program


def main(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Local, blocking: runs the program on the requested processes; returns the exit code."""
    from unisono.horovod._impl.interface_version import INTERFACE
    from unisono.horovod._impl.launching import command_line

    if args.version:
        print(f"{INTERFACE} (unisono {__version__})")
        return 0
    if args.check_build:
        from unisono.horovod._impl.launching.build_report import build_report

        print(build_report(__version__, INTERFACE))
        return 0
    from unisono.horovod._impl.launching.program_start import ProgramLaunch
    from unisono.horovod._impl.launching.settings_file import controller_of, read_settings

    settings = {} if args.config_file is None else read_settings(Path(args.config_file))
    values = command_line.values_of(args, settings)
    if not values["gloo"] and not values["mpi"]:
        values["mpi"] = controller_of(settings) == "mpi" or None
    for remark in command_line.remarks_of(values):
        _say(remark)
    values["control_stdin"] = args.control_stdin
    return ProgramLaunch(split(argv)[1], values, _say).start()


def _say(text: str) -> None:
    """Prints a line on standard error, after the name of the command."""
    print(f"unisono horovodrun: {text}", file=sys.stderr, flush=True)
