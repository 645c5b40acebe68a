"""`unisono doctor`: examines this machine or a job, and names problems with their remedies."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

DESCRIPTION = """Shows which launcher started this process, and checks threads, memory, GPUs, host names, network and MPI.
Each problem is shown with its remedy."""
EPILOG = """examples:
  unisono doctor
  unisono doctor -n 8 --json > doctor.json
  srun -N 2 --ntasks-per-node 1 unisono doctor --no-bandwidth"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Local: adds the options of the verb."""
    parser.add_argument(
        "-n",
        type=int,
        metavar="N",
        help="number of processes that the job should have; if started alone, doctor starts N itself",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--no-bandwidth", action="store_true", help="do not measure the network between two ranks")


def main(args: argparse.Namespace, argv: Sequence[str] = ()) -> int:  # noqa: ARG001 - as every verb is called
    """Local or collective, blocking: prints the report; returns the exit code."""
    from unisono import doctor

    return doctor.main(args)
