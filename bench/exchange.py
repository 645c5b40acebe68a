"""A server and its workers on one machine: ours over each carrier, against a parameter server written by hand with gloo.

    python -m bench.exchange                 # everything; about twenty minutes on two cores that do nothing else
    python -m bench.exchange --quick         # a look whether it works: few calls, no judgement

Writes exchange.md (tables, bounds, how it was measured) and exchange.json (every turn).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence

from bench.blocks import Effort, idle_shares, prepare, start_all, take_turns
from bench.contenders.contender import Contender
from bench.contenders.exchange import CONTENDERS, PEER, SHM
from bench.exchange_page import publish
from bench.groups import Conductor, Group, GroupFailed
from bench.machine import stolen_s
from bench.options import add_sizes, parse, sizes
from bench.progress import Progress
from bench.record import Record
from bench.report import one_line
from bench.rounds import Stopwatch, orders, rounded
from bench.session import guarded, open_record, result_of
from bench.sizes import show_size
from bench.training_bounds import show_workers

OURS = SHM.name
ESSENTIAL = (SHM.name, PEER.name)
SIZES, QUICK_SIZES = "10KB,1MB,100MB", "10KB,1MB"
WORKERS, QUICK_WORKERS = (1, 2, 4, 8), (1, 2)
MOST_BYTES = 400_000_000
"""Of all workers' vectors together: every contender holds them several times."""
FULL = Effort(4_200_000, 30, 50, 10, 2)
QUICK = Effort(4_200_000, 3, 40, 2, 1)
SEED = 20


@dataclasses.dataclass(frozen=True)
class Sharing:
    """How the shares of equal workers are measured."""

    workers: int
    num_bytes: int
    rounds: int
    seconds: float


FULL_SHARING = Sharing(8, 1_000_000, 15, 1.0)
QUICK_SHARING = Sharing(3, 1_000_000, 2, 0.3)

NOT_MEASURED = (
    "More than one machine; more than one server; more cores than ranks, as here the ranks of the larger groups share the cores.",
    "Other peers than gloo's send and receive, e.g. torch.distributed.rpc, which pickles and has a thread pool.",
    "Work of the server other than one addition, and workers that compute between calls: here they call without a pause.",
    "Workers that join or die, which only the carrier over ZeroMQ allows.",
)


def main() -> None:
    """Local, blocking: measure what is asked for and publish it."""
    args = _arguments()
    if args.figure:
        print(publish(json.loads((args.out / "exchange.json").read_text()), args.out))
        return
    progress, watch = Progress(), Stopwatch()
    effort, sharing = (QUICK, QUICK_SHARING) if args.quick else (FULL, FULL_SHARING)
    wanted = [contender for contender in CONTENDERS if not args.only or contender.name in args.only]
    contenders, absent = prepare(wanted, progress)
    settings = {
        "effort": dataclasses.asdict(effort),
        "sharing": dataclasses.asdict(sharing),
        "contenders": [contender.name for contender in contenders],
    }
    record = open_record("exchange", args, settings, progress)
    keys = []
    for workers in args.workers:
        lengths = [size for size in args.sizes if size * workers <= MOST_BYTES]
        keys += [block_key(workers, size) for size in lengths]
        measure(record, contenders, workers, lengths, effort, progress)
    measure_shares(record, contenders, sharing, progress)
    result = result_of(
        args,
        record,
        watch,
        ours=OURS,
        peer=PEER.name,
        contenders={contender.name: {"kind": contender.kind, "about": contender.about} for contender in contenders},
        absent=absent,
        not_measured=NOT_MEASURED,
        blocks={key: record.blocks[key] for key in keys},
        shares=record.blocks["shares"],
    )
    print(publish(result, args.out))
    record.finish()
    progress.keep(f"written to {args.out}/exchange.md and .json after {watch}")


def measure(
    record: Record, contenders: Sequence[Contender], workers: int, lengths: Sequence[int], effort: Effort, progress: Progress
) -> None:
    """Blocking: all sizes at one number of workers that `record` does not have yet, with processes started once for all."""
    lengths = [size for size in lengths if block_key(workers, size) not in record.blocks]
    if not lengths:
        return
    failed: dict[str, str] = {}
    with Conductor() as conductor:
        groups = start_all(conductor, contenders, workers + 1, ESSENTIAL, failed, progress)
        for num_bytes in lengths:
            key, before = block_key(workers, num_bytes), stolen_s()
            _prepare_all(groups, num_bytes, failed, progress, key)
            idle = idle_shares(groups)
            num_rounds, num_calls = effort.at(num_bytes)
            samples, dropped = take_turns(
                groups,
                opening=(("verify", {}), ("time", {"num_calls": 2})),
                turn=("time", {"num_calls": num_calls}),
                closing=(("verify", {}), ("drop", {})),
                num_rounds=num_rounds,
                progress=progress,
                where=key,
                essential=ESSENTIAL,
            )
            for name, reason in dropped.items():
                failed[name] = one_line(reason)
                del groups[name]
            record.add(
                key,
                {
                    "workers": workers,
                    "bytes": num_bytes,
                    "versions": {name: group.versions for name, group in groups.items()},
                    "idle_share_of_a_core": idle,
                    "stolen_cpu_s": round(stolen_s() - before, 2),
                    "failed": dict(failed),
                    "times_us": rounded(samples),
                },
            )
            progress.keep(f"{key}: {', '.join(f'{name} {sample.median:.0f}' for name, sample in samples.items())} us")


def measure_shares(record: Record, contenders: Sequence[Contender], sharing: Sharing, progress: Progress) -> None:
    """Blocking: how often each of several equal workers is served in a fixed time, in every round."""
    if "shares" in record.blocks:
        return
    failed: dict[str, str] = {}
    served: dict[str, list[list[int]]] = {}
    with Conductor() as conductor:
        groups = start_all(conductor, contenders, sharing.workers + 1, ESSENTIAL, failed, progress)
        _prepare_all(groups, sharing.num_bytes, failed, progress, "shares")
        for number, order in enumerate(orders(list(groups), sharing.rounds, SEED)):
            progress.say(f"shares: round {number + 1} of {sharing.rounds}")
            for name in order:
                served.setdefault(name, []).append(groups[name].ask("share", seconds=sharing.seconds)[0])
        for group in groups.values():
            group.ask("drop")
    in_order = {contender.name: served[contender.name] for contender in contenders if contender.name in served}
    record.add("shares", {**dataclasses.asdict(sharing), "failed": failed, "served": in_order})


def _prepare_all(groups: dict[str, Group], num_bytes: int, failed: dict[str, str], progress: Progress, where: str) -> None:
    for name, group in list(groups.items()):
        progress.say(f"{where}: {name} opens its exchange")
        try:
            group.ask("prepare", num_bytes=num_bytes)
        except GroupFailed as error:
            if name in ESSENTIAL:
                raise
            failed[name] = one_line(error)
            progress.keep(f"{where}: {error}")
            groups.pop(name).close()


def block_key(workers: int, num_bytes: int) -> str:
    """Pure: what a block is called in the raw data."""
    return f"{show_workers(workers)}, {show_size(num_bytes)}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.exchange",
        description="Round trips between one server and its workers on this machine: Unisono's exchange over shared memory, MPI,\n"
        "gloo and ZeroMQ against a parameter server written by hand with torch.distributed, interleaved in one run.",
        epilog="examples:\n"
        "  python -m bench.exchange                              the whole measurement, into docs/results/\n"
        "  python -m bench.exchange --quick                      a few calls, into runs/bench/\n"
        "  python -m bench.exchange --workers 2 --sizes 1MB --only 'unisono-shm,torch gloo' --out runs/look\n"
        "  python -m bench.exchange --figure                     the page again from docs/results/exchange.json\n"
        "An interrupted run goes on where it stopped when the same command is given again.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    usual, quick = ",".join(map(str, WORKERS)), ",".join(map(str, QUICK_WORKERS))
    parser.add_argument("--workers", type=_counts, metavar="N,N", help=f"default {usual}; with --quick {quick}")
    parser.add_argument("--only", type=_names, metavar="NAME,NAME", help=f"some of {', '.join(c.name for c in CONTENDERS)}")
    add_sizes(parser, SIZES, QUICK_SIZES)
    args = parse(parser)
    args.sizes = args.sizes or sizes(QUICK_SIZES if args.quick else SIZES)
    args.workers = args.workers or list(QUICK_WORKERS if args.quick else WORKERS)
    return args


def _counts(text: str) -> list[int]:
    found = [int(part) if part.isdigit() else 0 for part in text.split(",")]
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"must be numbers from 1 on with commas between them, e.g. 1,4; received {text!r}")
    return found


def _names(text: str) -> set[str]:
    names, known = set(text.split(",")), [contender.name for contender in CONTENDERS]
    if not set(ESSENTIAL) <= names or not names <= set(known):
        needed = " and ".join(ESSENTIAL)
        raise argparse.ArgumentTypeError(f"names {needed} and any others of {', '.join(known)}; received {text!r}")
    return names


if __name__ == "__main__":
    sys.exit(guarded(main))
