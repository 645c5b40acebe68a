"""A server and its workers on one machine: Unisono's exchange over shared memory, MPI, gloo and ZeroMQ against a parameter server
written by hand with torch.distributed, interleaved in one run.

    python -m bench.exchange                 # everything; about twenty minutes on two cores that do nothing else
    python -m bench.exchange --quick         # a look whether it works: few calls, no judgement
    python -m bench.exchange --workers 2 --sizes 1MB --only 'unisono-shm,torch gloo' --out runs/look

Writes exchange.md (tables, bounds, how it was measured) and exchange.json (every turn).
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from bench.blocks import Blocks, Effort, described
from bench.bounds import Requirement, judge, told
from bench.contenders.contender import Contender
from bench.contenders.exchange import CONTENDERS, PEER, SHM
from bench.groups import Conductor
from bench.measurement import begin, guarded
from bench.options import add_choice, counts, parse, parser_of, sizes
from bench.page import INTERLEAVED, Page, Result, Table
from bench.rounds import Samples, estimate, orders, ratio, restored
from bench.sizes import show_count, show_size

OURS = SHM.name
ESSENTIAL = (SHM.name, PEER.name)
SIZES, QUICK_SIZES = "10KB,1MB,100MB", "10KB,1MB"
WORKERS, QUICK_WORKERS = "1,2,4,8", "1,2"
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
    parser, whole = parser_of("exchange", __doc__), partial(counts, least=1)
    for option, kind, usual, quick in (("--workers", whole, WORKERS, QUICK_WORKERS), ("--sizes", sizes, SIZES, QUICK_SIZES)):
        parser.add_argument(option, type=kind, default=usual, metavar="N,N", help=f"default {usual}; with --quick {quick}")
    add_choice(parser, "--only", [one.name for one in CONTENDERS], needed=ESSENTIAL)
    args = parse(parser, sizes=QUICK_SIZES, workers=QUICK_WORKERS)
    effort, sharing = (QUICK, QUICK_SHARING) if args.quick else (FULL, FULL_SHARING)
    settings = {"effort": dataclasses.asdict(effort), "sharing": dataclasses.asdict(sharing), "contenders": args.only}
    blocks = Blocks(begin("exchange", args, page_of), settings, ESSENTIAL)
    able = blocks.able(one for one in CONTENDERS if one.name in args.only)
    for workers in args.workers:
        blocks.at_sizes(able, workers + 1, about_sizes(workers, args.sizes), effort, opens=True)
    of_sizes, shares = blocks.record.asked(), measure_shares(blocks, able, sharing)
    blocks.finish(ours=OURS, peer=PEER.name, contenders=described(able), not_measured=NOT_MEASURED, blocks=of_sizes, shares=shares)


def about_sizes(workers: int, lengths: Sequence[int]) -> dict[str, dict[str, int]]:
    """Pure: the blocks at one number of workers, by their key in the raw data."""
    fitting = [size for size in lengths if size * workers <= MOST_BYTES]
    return {f"{show_count(workers, 'worker')}, {show_size(size)}": {"workers": workers, "bytes": size} for size in fitting}


def measure_shares(blocks: Blocks, contenders: Sequence[Contender], sharing: Sharing) -> Mapping[str, Any]:
    """Blocking: how often each of several equal workers is served in a fixed time, in every round."""
    if blocks.record.lacks("shares"):
        served: dict[str, list[list[int]]] = {contender.name: [] for contender in contenders}
        with Conductor() as conductor:
            field = blocks.field(conductor)
            field.start(contenders, sharing.workers + 1)
            field.ask_each("shares", ("prepare", {"num_bytes": sharing.num_bytes}))
            for number, order in enumerate(orders(list(field.groups), sharing.rounds, SEED)):
                blocks.progress.say(f"shares: round {number + 1} of {sharing.rounds}")
                for name in order:
                    served[name].append(field.groups[name].ask("share", seconds=sharing.seconds)[0])
            for group in field.groups.values():
                group.ask("drop")
        in_order = {name: rounds for name, rounds in served.items() if rounds}
        blocks.record.add("shares", {**dataclasses.asdict(sharing), "failed": field.failed, "served": in_order})
    shares: Mapping[str, Any] = blocks.record.blocks["shares"]
    return shares


FASTER, FASTER_BYTES = Requirement("peer", times_as_fast=3.0), 1_000_000
MOST_UNEVEN = 1.2
"""What the busiest of equal workers may have been served, as a multiple of the least."""


def page_of(result: Result) -> Page:
    """Pure: the page of these raw data."""
    blocks = {key: (block, restored(block["times_us"])) for key, block in result["blocks"].items()}
    effort, shares = Effort(**result["settings"]["effort"]), result["shares"]
    kinds = {name: one["kind"] for name, one in result["contenders"].items()}
    bounds = [
        FASTER.judge(key, samples, kinds, result["ours"])
        for key, (block, samples) in blocks.items()
        if block["bytes"] == FASTER_BYTES
    ]
    where = f"{show_count(shares['workers'], 'worker')}, {show_size(shares['num_bytes'])}"
    uneven = estimate(unevenness(shares["served"][result["ours"]]))
    bounds.append(judge(where, uneven, "times as often is the busiest served as the least", at_most=MOST_UNEVEN))
    return Page(
        question="How many round trips a second does a server make with its workers, against a parameter server written by hand?",
        answer=f"Through shared memory: {told(bounds)}.",
        result=result,
        setup="Each worker sends a float32 vector; the server adds it to its centre and answers with the centre. One server, all "
        "on one machine, one thread in each rank, and no worker pauses between two calls. What comes back is checked before and "
        "after.",
        tables=[*(_table(result["peer"], key, *of_key) for key, of_key in blocks.items()), _shares_table(where, shares)],
        bounds=bounds,
        reading=[
            f"Up to 4 MB there are {effort.short_rounds} rounds of {effort.short_calls} calls of each worker, above "
            f"{effort.long_rounds} rounds of {effort.long_calls}; of the shares {shares['rounds']} rounds.",
            "A turn begins with a call of every worker that is not timed and is answered when all have called. Round trips/s are "
            "those of all workers together, until the slowest has done its calls; GB/s count both directions.",
            f"`times {result['peer']}` is how many times as fast.",
            INTERLEAVED,
        ],
        raw="`times_us[contender][rank][round][0]`, microseconds for each round trip at the server (0 for the server itself), and "
        "`shares.served[contender][round][worker]`",
    )


def unevenness(served: Sequence[Sequence[int]]) -> np.ndarray:
    """Pure: for each round the calls of the busiest worker as a multiple of the least's."""
    counts = np.asarray(served, dtype=np.float64)
    return np.asarray(counts.max(axis=1) / np.maximum(counts.min(axis=1), 1.0))


def _table(peer: str, key: str, block: Mapping[str, Any], samples: Mapping[str, Samples]) -> Table:
    times, rows = {name: ratio(samples[peer], sample) for name, sample in samples.items()}, []
    for name, sample in samples.items():
        per_s = 1e6 / sample.median
        row = {key: name, "round trips/s": f"{per_s:.0f}" if per_s >= 100 else f"{per_s:.1f}"}
        row |= {"GB/s": f"{2 * block['bytes'] * per_s / 1e9:.2f}", f"times {peer}": "1" if name == peer else str(times[name])}
        rows.append(row)
    return Table.of(rows, drawn=times, drawn_label=f"times as fast as {peer}")


def _shares_table(where: str, shares: Mapping[str, Any]) -> Table:
    rows = []
    for name, served in shares["served"].items():
        per_s = np.asarray(served).sum(axis=1) / shares["seconds"]
        rows.append([name, f"{np.median(per_s):.0f}", str(estimate(unevenness(served)))])
    return Table(
        [where, "round trips/s", "busiest / least"], rows, f"How evenly equal workers are served in {shares['seconds']:g} s:"
    )


if __name__ == "__main__":
    sys.exit(guarded(main))
