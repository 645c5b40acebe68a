"""Runs the contract on a communicator, and is the program that does so under any launcher: `python -m unisono.testing.contract`."""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from types import ModuleType
from typing import TextIO

from unisono.cluster.topology import ENGINES
from unisono.comm.base import Communicator
from unisono.comm.connect import connect
from unisono.errors import CommError, UsageError
from unisono.testing.checks import (
    collectives,
    faults,
    groups,
    lifetime,
    objects,
    ordered_sums,
    outstanding,
    point_to_point,
    refusals,
    server_exchange,
    started,
)
from unisono.testing.thread_communicator import run_threads

PARTS = (collectives, ordered_sums, groups, point_to_point, outstanding, started, objects, refusals, server_exchange, lifetime)

Body = Callable[[Communicator], int]
World = Callable[[Body], list[int]]
"""Opens a communicator, runs a body on the ranks that are in this process, and gives what each of them returned."""

TIME_LIMIT_S = 20.0
"""Limit of each collective: a member that fails a check keeps the others waiting at most this long."""
STUCK_S = 60.0
"""A check that takes longer is a deadlock: every stack is printed and the process ends."""

HELP = """
Runs the contract of the communicator, checks against the results of NumPy, on all processes of the job.
Start it like any program:

  unisono run -n 4 -m unisono.testing.contract --engine gloo
  srun -N 2 -n 4 python -m unisono.testing.contract
  mpirun -n 4 python -m unisono.testing.contract --engine mpi
  torchrun --nproc-per-node 4 -m unisono.testing.contract

Rank 0 prints one JSON object for each check: {"check", "engine", "size", "ok", "seconds", "errors": {rank: traceback}}.
With --results every rank also writes its own results to DIR/rank-N.jsonl, one line after each check.
The exit code is 0 if all passed, 1 if one failed, 2 for a wrong option.

A fault (--only fault_...) ends the communicator of the whole job; the processes then open another one (not under MPI:
run each fault in a separate job). A check that takes longer than 60 s counts as a deadlock: the process prints all stacks
and ends.
"""


@dataclass(frozen=True)
class Verdict:
    """The result of one check on one rank. `error` is empty if it passed; `raised` is the error that a fault raised on this
    rank."""

    check: str
    engine: str
    size: int
    rank: int
    seconds: float
    error: str = ""
    raised: str = ""

    @property
    def ok(self) -> bool:
        """Whether the check passed."""
        return not self.error


def check_names() -> tuple[str, ...]:
    """The names of the checks, which one group runs one after another."""
    return tuple(name for part in PARTS for name in _functions(part, "check_"))


def fault_names() -> tuple[str, ...]:
    """The names of the faults. Each needs a new group and at least two ranks."""
    return tuple(_functions(faults, "fault_"))


def run_body(comm: Communicator, names: Iterable[str]) -> Iterator[tuple[Verdict, list[str]]]:
    """Collective, blocking: runs the checks in order; yields for each this rank's verdict and the errors of all ranks.

    Each check gets a new duplicate, so that a failed one leaves no message to the next. If members cannot even
    agree on the verdict, the communicator is unusable and the remaining checks are not run.
    """
    for name in names:
        verdict = _run_check(comm, name)
        try:
            everybody = comm.allgather_object(verdict.error)
        except CommError as error:
            everybody = [""] * comm.size
            everybody[comm.rank] = verdict.error or f"the ranks do not agree that the check is over: {error}"
            yield Verdict(**{**asdict(verdict), "error": everybody[comm.rank]}), everybody
            return
        yield verdict, everybody


def run_fault(comm: Communicator, name: str) -> Verdict:
    """Collective, blocking: runs one fault; afterwards the communicator is unusable."""
    began = monotonic()
    fault: Callable[[Communicator], str] = getattr(faults, name)
    raised = error = ""
    try:
        raised = fault(comm)
    except Exception:  # noqa: BLE001 -- the verdict carries it to the comparison
        error = traceback.format_exc()
    return Verdict(name, comm.engine, comm.size, comm.rank, monotonic() - began, error, raised)


def main() -> int:
    """Collective over the job, blocking: runs the command and returns its exit code."""
    args = _arguments()
    if args.list:
        print("\n".join((*check_names(), *fault_names())))
        return 0
    names = tuple(args.only.split(",")) if args.only else check_names()
    try:
        _refuse_unknown(names)
        world = partial(_in_threads, args.threads) if args.threads else partial(_run_connected, args.engine, args.allreduce)
        return (_run_faults if _are_faults(names) else _run_checks)(world, names, args.results)
    except UsageError as error:
        print(f"unisono.testing.contract: error: {error}", file=sys.stderr)
        return 2
    finally:
        faulthandler.cancel_dump_traceback_later()


def _run_connected(engine: str | None, allreduce: str | None, body: Body) -> list[int]:
    """Connects this process as a rank of the launched job and runs `body`; returns its exit code in a list."""
    with connect(engine=engine, allreduce=allreduce, time_limit_s=TIME_LIMIT_S) as comm:
        return [body(comm)]


def _in_threads(size: int, body: Body) -> list[int]:
    """Runs `body` on `size` ranks that are threads of this process; returns their exit codes."""
    return run_threads(size, body, TIME_LIMIT_S)


def _run_checks(world: World, names: Sequence[str], results: Path | None) -> int:
    """Runs the checks; returns 1 if one failed on a rank, else 0."""

    def body(comm: Communicator) -> int:
        failed = 0
        with _verdict_file(results, comm.rank) as file:
            for verdict, everybody in run_body(comm, names):
                _watch()
                _write(file, verdict)
                errors = {str(rank): error for rank, error in enumerate(everybody) if error}
                failed += bool(errors)
                if comm.rank == 0:
                    _print(verdict, errors)
        return failed

    _watch()
    return 1 if any(world(body)) else 0


def _run_faults(world: World, names: Sequence[str], results: Path | None) -> int:
    """Runs the faults; returns 1 if one was not reported as it should be, else 0. A process outlives the faults of its
    communicator (except under MPI): each time it opens another one."""

    def body(name: str, comm: Communicator) -> int:
        if comm.engine == "mpi" and len(names) > 1:
            raise UsageError("MPI cannot be used again after a fault (--only); run each fault in a separate job")
        with _verdict_file(results, comm.rank) as file:
            verdict = run_fault(comm, name)
            _write(file, verdict)
            _print(verdict, {str(verdict.rank): verdict.error} if verdict.error else {})
        if results is not None and comm.engine != "threads":
            _await_verdicts(results, verdict)
        return not verdict.ok

    failed = 0
    for name in names:
        _watch()
        failed += any(world(partial(body, name)))
    return 1 if failed else 0


def _watch() -> None:
    """Restarts the timer that ends a stuck process."""
    faulthandler.dump_traceback_later(STUCK_S, exit=True)


def _await_verdicts(results: Path, own: Verdict) -> None:
    """Blocking: waits until all ranks have written their verdicts, as some launchers end the others when the first is gone."""
    deadline = monotonic() + TIME_LIMIT_S
    files = [results / f"rank-{rank}.jsonl" for rank in range(own.size)]
    while not all(file.exists() and own.check in file.read_text() for file in files) and monotonic() < deadline:
        sleep(0.02)


def _run_check(comm: Communicator, name: str) -> Verdict:
    """Collective: runs one check on a duplicate of the communicator and returns its verdict."""
    check: Callable[[Communicator], None] = next(getattr(part, name) for part in PARTS if hasattr(part, name))
    began = monotonic()
    error = ""
    copy = comm.duplicate()
    try:
        check(copy)
    except Exception:  # noqa: BLE001 -- the verdict carries it to the comparison
        error = traceback.format_exc()
    copy.close()
    return Verdict(name, comm.engine, comm.size, comm.rank, monotonic() - began, error)


def _functions(part: ModuleType, prefix: str) -> list[str]:
    """Returns the names in a module that begin with the prefix."""
    return [name for name in vars(part) if name.startswith(prefix)]


def _are_faults(names: Sequence[str]) -> bool:
    """Whether one of the names is a fault."""
    return any(name in fault_names() for name in names)


def _refuse_unknown(names: Sequence[str]) -> None:
    """Refuses names that are neither check nor fault, and lists that mix both."""
    for name in names:
        if name not in (*check_names(), *fault_names()):
            raise UsageError(f"there is no check {name!r} (--only); --list shows all")
    if _are_faults(names) and not all(name in fault_names() for name in names):
        raise UsageError("after a fault the communicator is unusable (--only); run faults and checks in different jobs")


def _verdict_file(results: Path | None, rank: int) -> TextIO:
    """Opens this rank's file of verdicts in the folder `results` for appending; /dev/null without a folder."""
    if results is None:
        return Path("/dev/null").open("w")
    results.mkdir(parents=True, exist_ok=True)
    return (results / f"rank-{rank}.jsonl").open("a")


def _write(file: TextIO, verdict: Verdict) -> None:
    """Appends a verdict to a file as a line of JSON."""
    print(json.dumps(asdict(verdict)), file=file, flush=True)


def _print(verdict: Verdict, errors: dict[str, str]) -> None:
    """Prints one line of JSON on a check, with the errors of all ranks."""
    shown = {name: getattr(verdict, name) for name in ("check", "engine", "size")}
    seconds = round(verdict.seconds, 3)
    line = json.dumps({**shown, "seconds": seconds, "ok": not errors, "errors": errors})
    print(f"{line}\n", end="", flush=True)  # one write: ranks may be threads


def _arguments() -> argparse.Namespace:
    """Parses this command's arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m unisono.testing.contract",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--engine", choices=ENGINES, help="engine (default: that of the launcher, UNISONO_ENGINE, else auto)")
    parser.add_argument("--threads", type=int, metavar="N", help="run N ranks as threads of this process, without a launcher")
    parser.add_argument(
        "--allreduce", help="algorithm of the all-reduce (default: that of the launcher, UNISONO_ALLREDUCE, else auto)"
    )
    parser.add_argument("--only", metavar="NAMES", help="run only these checks or faults, separated by commas")
    parser.add_argument("--results", type=Path, metavar="DIR", help="each rank writes its results to DIR/rank-N.jsonl")
    parser.add_argument("--list", action="store_true", help="print the names of all checks and faults and stop")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
