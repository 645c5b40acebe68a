"""Runs the contract on training algorithms, and is the program that does so: `python -m unisono.testing.algorithm_contract`."""

from __future__ import annotations

import argparse
import faulthandler
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import NamedTuple

from unisono.algorithms.base import find_algorithm, known_algorithms
from unisono.cluster.resolve import current_topology
from unisono.comm.base import Communicator
from unisono.comm.connect import connect
from unisono.errors import UnisonoError, UsageError, join_ranks
from unisono.testing.checks import algorithm_checks
from unisono.testing.checks.algorithm_trainings import Case, NotApplicable

Check = Callable[[Communicator, Case, Path], None]

CHECKS: Mapping[str, Check] = MappingProxyType(
    {name.removeprefix("check_"): found for name, found in vars(algorithm_checks).items() if name.startswith("check_")}
)
SIZES = (1, 2, 4)
TIME_LIMIT_S = 20.0
"""Limit of each collective: a rank that fails a check keeps the others waiting at most this long."""
STUCK_S = 60.0
"""A check that takes longer is a deadlock: every stack is printed and the process ends."""

HELP = """
Runs the contract of training algorithms: each check with each example of the algorithm (`examples` of its class).

  python -m unisono.testing.algorithm_contract                        all algorithms of Unisono on 1, 2 and 4 ranks of this machine
  python -m unisono.testing.algorithm_contract slowmo gem --ranks 2   two of them
  python -m unisono.testing.algorithm_contract my_package.my_rule     your own, by its module ...
  python -m unisono.testing.algorithm_contract folder/my_rule.py      ... or its file
  srun -n 4 python -m unisono.testing.algorithm_contract slowmo       on the ranks of a job, with any launcher

Prints a line for each check: ok, FAILED with the error, or a dash with the reason why it does not apply to this size.
The exit code is 0 if none failed, 1 if one did, 2 for a wrong option.
"""


class Item(NamedTuple):
    """One check of one case."""

    case: Case
    check: str


class Verdict(NamedTuple):
    """The result of one check on this rank."""

    item: Item
    seconds: float
    error: str = ""
    not_applicable: str = ""


def items(names: Sequence[str], checks: Sequence[str], first_example: bool = False) -> Iterator[Item]:
    """Local: the checks of all cases, in the order in which they are run."""
    for name in names:
        numbers = range(1 if first_example else len(find_algorithm(name).examples))
        yield from (Item(Case(name, number), check) for number, check in product(numbers, checks))


def run_items(todo: Sequence[Item]) -> int:
    """Collective over the job, blocking: runs each check on a new communicator, so that a failure does not affect the next.
    Returns how many failed on some rank."""
    num_failed = 0
    for item in todo:
        faulthandler.dump_traceback_later(STUCK_S, exit=True)
        verdict = _run(item)
        with connect(time_limit_s=TIME_LIMIT_S, quiet=True) as comm:
            num_failed += _report(comm, verdict)
    faulthandler.cancel_dump_traceback_later()
    return num_failed


def _run(item: Item) -> Verdict:
    """Runs one check on a new communicator and a temporary folder that all ranks share; returns its verdict, also if it raised."""
    began, error, not_applicable = monotonic(), "", ""
    try:
        with connect(time_limit_s=TIME_LIMIT_S, quiet=True) as comm, tempfile.TemporaryDirectory(prefix="unisono-contract-") as own:
            folder = Path(comm.broadcast_object(own))
            CHECKS[item.check](comm, item.case, folder)
            if not comm.is_spent:
                comm.barrier()  # the folder goes with the first rank
    except NotApplicable as reason:
        not_applicable = str(reason)
    except (Exception, SystemExit):  # noqa: BLE001 - shown where all are compared
        error = traceback.format_exc()
    return Verdict(item, monotonic() - began, error, not_applicable)


def _report(comm: Communicator, verdict: Verdict) -> bool:
    """Collective: rank 0 prints the verdicts of all ranks. Returns whether the check failed."""
    everybody = comm.allgather_object(verdict.error)
    is_failed = any(everybody)
    if comm.rank == 0:
        word = "FAILED" if is_failed else "-" if verdict.not_applicable else "ok"
        size = f"{comm.size} rank{'s' if comm.size > 1 else ''}"
        end = verdict.not_applicable or f"{verdict.seconds:.1f} s"
        print(f"{word:6}  {size:7}  {verdict.item.case}  {verdict.item.check}  {end}", flush=True)
        for error in dict.fromkeys(filter(None, everybody)):
            ranks = [rank for rank, other in enumerate(everybody) if other == error]
            print(f"{join_ranks(ranks)}: {error}", flush=True)
    return is_failed


def main(arguments: Sequence[str]) -> int:
    """Collective over the job, blocking: runs the command and returns its exit code."""
    args = _parser().parse_args(arguments)
    try:
        names = args.names or known_algorithms()
        todo = list(items(names, _selected_checks(args.only), args.first))
        if args.list:
            print("\n".join((*CHECKS, *dict.fromkeys(str(item.case) for item in todo))))
            return 0
        is_job = current_topology().launcher != "local"
        if is_job and args.ranks:
            raise UsageError("--ranks starts ranks on this machine, but a launcher has already started these; leave --ranks out")
        return _run_in_job(todo) if is_job else _start(arguments, args.ranks or SIZES)
    except UsageError as error:
        print(f"unisono.testing.algorithm_contract: error: {error}", file=sys.stderr)
        return 2


def _run_in_job(todo: Sequence[Item]) -> int:
    """Runs the checks as a rank of a job; returns the exit code: 1 if a check failed or an error of ours ended the run."""
    try:
        return 1 if run_items(todo) else 0
    except UnisonoError:
        traceback.print_exc()
        return 1


def _start(arguments: Sequence[str], sizes: Sequence[int]) -> int:
    """Local, blocking: runs the command on ranks of this machine, for each number of ranks in turn."""
    kept, codes = _without_ranks(arguments), []
    for size in sizes:
        program = [sys.executable, "-m", "unisono.cli", "run", "-n", str(size), "-m", "unisono.testing.algorithm_contract", *kept]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line.removeprefix("[0] "), end="", flush=True)
        codes.append(process.returncode)
    return max(codes)


def _without_ranks(arguments: Sequence[str]) -> list[str]:
    """Returns the command line without --ranks and its value."""
    found = list(arguments)
    for place, word in enumerate(arguments):
        if word == "--ranks":
            del found[place : place + 2]
        elif word.startswith("--ranks="):
            del found[place]
    return found


def _selected_checks(only: str | None) -> Sequence[str]:
    """Returns the names that --only lists, or all without it; refuses unknown names."""
    chosen = tuple(only.split(",")) if only else tuple(CHECKS)
    for name in chosen:
        if name not in CHECKS:
            raise UsageError(f"there is no check {name!r} (--only); --list shows all")
    return chosen


def _sizes(text: str) -> tuple[int, ...]:
    """Parses '1,2,4' into positive numbers of ranks; raises `ValueError` for anything else."""
    found = tuple(int(word) for word in text.split(","))
    if not all(size > 0 for size in found):
        raise ValueError(text)
    return found


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of this command's arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m unisono.testing.algorithm_contract",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="algorithms: names, modules or files; default: all of Unisono")
    parser.add_argument(
        "--ranks", type=_sizes, metavar="N,...", help="numbers of ranks to start on this machine, in turn (default 1,2,4)"
    )
    parser.add_argument("--only", metavar="CHECKS", help="run only these checks, separated by commas")
    parser.add_argument("--first", action="store_true", help="run only the first example of each algorithm")
    parser.add_argument("--list", action="store_true", help="print the checks and the examples, and stop")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
