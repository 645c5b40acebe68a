"""Runs the contract on a communicator, and is the program that does so under any launcher: `python -m unisono.testing.contract`."""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import TextIO

from unisono.comm.base import Communicator
from unisono.comm.connect import ENGINES, connect
from unisono.comm.threads import run_threads
from unisono.errors import CommError, UsageError
from unisono.testing.checks import collectives, faults, groups, lifetime, messages, objects, refusals, started

PARTS = (collectives, groups, messages, started, objects, refusals, lifetime)

TIME_LIMIT_S = 20.0
"""Of each collective: a member that fails a check leaves the others waiting this long at most."""
STUCK_S = 60.0
"""A check that takes longer is a deadlock: every stack is printed and the process ends."""

HELP = """
Runs the contract of the communicator, one body of checks against numpy's answers, on all processes of the job.
Start it as any program of yours:

  unisono run -n 4 -m unisono.testing.contract --engine gloo
  srun -N 2 -n 4 python -m unisono.testing.contract
  mpirun -n 4 python -m unisono.testing.contract --engine mpi
  torchrun --nproc-per-node 4 -m unisono.testing.contract

Rank 0 prints one JSON object for each check: {"check", "engine", "size", "ok", "seconds", "errors": {rank: traceback}}.
With --results every rank writes its own verdicts to DIR/rank-N.jsonl, each line as soon as it is known.
The exit code is 0 if all passed, 1 if one failed, 2 for a wrong option.

A fault (--only fault_...) ends the communicator of the whole job, so it is run alone. A check that takes longer than
60 s is a deadlock: all stacks are printed and the process ends.
"""


@dataclass(frozen=True)
class Verdict:
    """What one rank found in one check. `error` is empty if it passed; `told` is what a fault told this rank."""

    check: str
    engine: str
    size: int
    rank: int
    seconds: float
    error: str = ""
    told: str = ""

    @property
    def ok(self) -> bool:
        return not self.error


def check_names() -> tuple[str, ...]:
    """The checks that one group runs one after another."""
    return tuple(name for part in PARTS for name in _functions(part, "check_"))


def fault_names() -> tuple[str, ...]:
    """Each needs a group of its own and at least two ranks."""
    return tuple(_functions(faults, "fault_"))


def run_body(comm: Communicator, names: Iterable[str]) -> Iterator[tuple[Verdict, list[str]]]:
    """Collective, blocking: run the checks in order; for each this rank's verdict and the errors of all ranks.

    Each check has a duplicate of its own, so that one that fails leaves no message to the next. If members cannot even
    agree on the verdict, the communicator is spent and the remaining checks are not run.
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
    """Collective, blocking: run one fault; afterwards the communicator is spent."""
    began = monotonic()
    fault: Callable[[Communicator], str] = getattr(faults, name)
    told = error = ""
    try:
        told = fault(comm)
    except Exception:  # noqa: BLE001 -- the verdict carries it to whoever compares
        error = traceback.format_exc()
    return Verdict(name, comm.engine, comm.size, comm.rank, monotonic() - began, error, told)


def run_in_threads(size: int, names: Sequence[str]) -> list[list[Verdict]]:
    """Local, blocking: the checks (or one fault) on ranks that are threads of this process; verdicts by rank."""

    def body(comm: Communicator) -> list[Verdict]:
        if names[0] in fault_names():
            return [run_fault(comm, names[0])]
        return [verdict for verdict, _ in run_body(comm, names)]

    return run_threads(size, body, TIME_LIMIT_S)


def main() -> int:
    """Collective over the job, blocking: the command."""
    args = _arguments()
    if args.list:
        print("\n".join((*check_names(), *fault_names())))
        return 0
    names = tuple(args.only.split(",")) if args.only else check_names()
    try:
        _refuse_unknown(names)
        faulthandler.dump_traceback_later(STUCK_S, exit=True)
        with connect(engine=args.engine, allreduce=args.allreduce, time_limit_s=TIME_LIMIT_S) as comm:
            return _run_and_report(comm, names, args.results)
    except UsageError as error:
        print(f"unisono.testing.contract: error: {error}", file=sys.stderr)
        return 2
    finally:
        faulthandler.cancel_dump_traceback_later()


def _run_and_report(comm: Communicator, names: Sequence[str], results: Path | None) -> int:
    failed = 0
    with _verdict_file(results, comm.rank) as file:
        if names[0] in fault_names():
            verdict = run_fault(comm, names[0])
            _write(file, verdict)
            return 0 if verdict.ok else 1
        for verdict, everybody in run_body(comm, names):
            faulthandler.dump_traceback_later(STUCK_S, exit=True)
            _write(file, verdict)
            errors = {str(rank): error for rank, error in enumerate(everybody) if error}
            failed += bool(errors)
            if comm.rank == 0:
                print(json.dumps({**_shown(verdict), "ok": not errors, "errors": errors}), flush=True)
    return 1 if failed else 0


def _run_check(comm: Communicator, name: str) -> Verdict:
    check: Callable[[Communicator], None] = next(getattr(part, name) for part in PARTS if hasattr(part, name))
    began = monotonic()
    error = ""
    copy = comm.duplicate()
    try:
        check(copy)
    except Exception:  # noqa: BLE001 -- the verdict carries it to whoever compares
        error = traceback.format_exc()
    copy.close()
    return Verdict(name, comm.engine, comm.size, comm.rank, monotonic() - began, error)


def _functions(part: ModuleType, prefix: str) -> list[str]:
    return [name for name in vars(part) if name.startswith(prefix)]


def _refuse_unknown(names: Sequence[str]) -> None:
    known = (*check_names(), *fault_names())
    for name in names:
        if name not in known:
            raise UsageError(f"there is no check {name!r} (--only); --list shows all")
    if len(names) > 1 and any(name in fault_names() for name in names):
        raise UsageError("a fault spends the communicator (--only); run it alone")


def _verdict_file(results: Path | None, rank: int) -> TextIO:
    if results is None:
        return Path("/dev/null").open("w")
    results.mkdir(parents=True, exist_ok=True)
    return (results / f"rank-{rank}.jsonl").open("w")


def _write(file: TextIO, verdict: Verdict) -> None:
    print(json.dumps(asdict(verdict)), file=file, flush=True)


def _shown(verdict: Verdict) -> dict[str, object]:
    return {
        "check": verdict.check,
        "engine": verdict.engine,
        "size": verdict.size,
        "seconds": round(verdict.seconds, 3),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m unisono.testing.contract",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--engine", choices=ENGINES, help="default: what the launcher asked for (UNISONO_ENGINE), else auto")
    parser.add_argument("--allreduce", help="algorithm of the all-reduce; default: what the launcher asked for, else auto")
    parser.add_argument("--only", metavar="NAMES", help="some checks, separated by commas, or one fault")
    parser.add_argument("--results", type=Path, metavar="DIR", help="each rank writes its verdicts to DIR/rank-N.jsonl")
    parser.add_argument("--list", action="store_true", help="print the names of all checks and faults and stop")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
