"""All-reduce of float32 vectors on this machine: Unisono's shared memory against gloo, Open MPI, MPICH, Intel MPI and DeepSpeed,
interleaved in one run. What they need is installed under .venv-bench/.

    python -m bench.collectives              # everything; about a quarter of an hour on two cores that do nothing else
    python -m bench.collectives --quick      # a look whether it works: few calls, no judgement
    python -m bench.collectives --ranks 2 --sizes 4KB,1MiB --only unisono-shm,gloo --out runs/look

Writes collectives.md (tables, bounds, how it was measured), collectives.json (every call) and collectives.png.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from bench.blocks import FULL, QUICK, Blocks, Effort, about_sizes, described
from bench.bounds import Bound, Requirement, judge, told
from bench.by_size import BySize, picture, samples_of, tables
from bench.contenders.collectives import CONTENDERS, OURS
from bench.measurement import begin, guarded
from bench.options import add_choice, counts, parse, parser_of, sizes
from bench.page import INTERLEAVED, Page, Result
from bench.rounds import estimate, ratio
from bench.sizes import show_size

SIZES = "4KB,400KB,4MB,40MB,100MB"
QUICK_SIZES = "4KB,4MB"

NOT_MEASURED = (
    "More than one machine, more than one NUMA node, ARM; more ranks than 4; more than one thread in a rank.",
    "Other types than float32, other operations than the sum, other collectives, non-blocking calls.",
    "MPI built for this machine by its site: here they are the wheels of PyPI with their own defaults, no tuning variables set.",
    "Calls among computation: here a rank does nothing between two calls, so caches and cores are at their best for everybody.",
)


def main() -> None:
    """Local, blocking: measure what is asked for and publish it."""
    parser = parser_of("collectives", __doc__)
    parser.add_argument("--ranks", type=counts, default=[2, 4], metavar="N,N", help="numbers of ranks (default 2,4)")
    parser.add_argument("--sizes", type=sizes, default=SIZES, metavar="S,S", help=f"default {SIZES}; with --quick {QUICK_SIZES}")
    add_choice(parser, "--only", [one.name for one in CONTENDERS], needed=(OURS.name,))
    args = parse(parser, sizes=QUICK_SIZES)
    effort, wanted = QUICK if args.quick else FULL, [one for one in CONTENDERS if one.name in args.only]
    settings = {"effort": dataclasses.asdict(effort), "contenders": args.only}
    blocks = Blocks(begin("collectives", args, page_of), settings, (OURS.name,))
    able = blocks.able(wanted)
    for num_ranks in args.ranks:
        blocks.at_sizes(able, num_ranks, about_sizes(num_ranks, args.sizes), effort)
    blocks.finish(ours=OURS.name, contenders=described(able), not_measured=NOT_MEASURED)


FASTER: Mapping[int, Collection[tuple[str, float, Collection[int]]]] = {
    2: (("gloo", 5.0, range(1 << 62)), ("mpi", 1.5, (400_000,)), ("mpi", 3.0, range(4_000_000, 1 << 62))),
    4: (("gloo", 3.0, range(1 << 62)),),
}
"""At each number of ranks: how many times as fast as the best of a kind ours must be, and at which sizes."""
SMALL_RANKS, SMALL_BYTES, SMALL_US = 2, 4_000, 50.0


def page_of(result: Result) -> Page:
    """Pure: the page of these raw data."""
    effort, ours, found = Effort(**result["settings"]["effort"]), result["ours"], samples_of(result)
    kinds = {name: one["kind"] for name, one in result["contenders"].items()}
    bounds = [bound for num_ranks, by_size in found.items() for bound in verdicts(num_ranks, by_size, kinds, ours)]
    shown, machine = [name for name in kinds if kinds[name] != "noise"], result["machine"]
    note = f"{machine['CPU']}, cores {machine['cores']}; {result['sittings'][-1]['at']}"
    return Page(
        question="How long does an all-reduce on one machine take, against gloo, three MPIs and DeepSpeed?",
        answer=f"All-reduce through shared memory: {told([bound for bound in bounds if bound.where.endswith(', 4 MB')])}.",
        result=result,
        setup="Sum of float32 vectors in place, on one machine, one thread in each rank. Every contender has its own processes, "
        "all alive during the whole run and asleep unless it is their turn. Sums are checked before and after the timing.",
        tables=[one for num, by_size in found.items() for one in tables(f"{num} ranks", by_size, list(kinds), ours, 1)],
        bounds=bounds,
        picture=picture("All-reduce on one machine", "ranks", found, shown, ours, note),
        reading=[
            f"Up to 4 MB there are {effort.short_rounds} rounds of {effort.short_calls} calls, above {effort.long_rounds} rounds "
            f"of {effort.long_calls}. A turn begins with one call that is not timed. The time of a call is that of its slowest "
            "rank.",
            INTERLEAVED,
            "The memory floor is what the memory of this machine allows: no all-reduce in place can be quicker than that loop, so "
            "no ratio can be higher than the one in brackets.",
        ],
        raw="`times_us[contender][rank][round][call]`",
    )


def verdicts(num_ranks: int, by_size: BySize, kinds: Mapping[str, str], ours: str) -> Iterator[Bound]:
    """Pure: each bound at each of its sizes, with what the memory would allow at most."""
    for kind, factor, judged in FASTER.get(num_ranks, ()):
        for size, samples in by_size.items():
            if size in judged:
                bound = Requirement(kind, times_as_fast=factor).judge(f"{num_ranks} ranks, {show_size(size)}", samples, kinds, ours)
                peers = [sample for name, sample in samples.items() if kinds[name] == kind]
                for floor in (name for name in samples if peers and kinds[name] == "floor"):
                    best = min(peers, key=lambda sample: sample.median)
                    bound = replace(bound, note=f" (the {floor}: {ratio(best, samples[floor])})")
                yield bound
    if num_ranks == SMALL_RANKS and SMALL_BYTES in by_size:
        took = estimate(by_size[SMALL_BYTES][ours].by_round)
        yield judge(f"{num_ranks} ranks, {show_size(SMALL_BYTES)}", took, "us", at_most=SMALL_US)


if __name__ == "__main__":
    sys.exit(guarded(main))
