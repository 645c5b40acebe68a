"""Does a started all-reduce really run while the program computes? Two test hosts (network namespaces of this machine), 1 Gbit/s,
one rank on each. Needs root, ip and tc.

    python -m bench.overlap                  # 60 rounds
    python -m bench.overlap --quick          # a look whether it works
    python -m bench.overlap --size 4MB --out runs/look

Times of the all-reduce alone, of the computation alone (made about as long), and of start + compute + wait, interleaved.
The last must be at most 1.2 times the longer of the other two. Writes overlap.md and overlap.json (every call).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench.bounds import judge, told
from bench.groups import Conductor, Group
from bench.hosts import LIMITS, Across, test_hosts
from bench.machine import stolen_s
from bench.measurement import begin, guarded
from bench.options import parse, parser_of, sizes
from bench.page import INTERLEAVED, Page, Result, Table, disturbances
from bench.progress import Progress
from bench.rounds import Estimate, estimate, interleave, restored, rounded
from bench.sizes import show_size

BOUND = 1.2
SEED = 20
ROUNDS, QUICK_ROUNDS = 60, 3
ROWS = ("auto", "auto A/A")
"""The same all-reduce twice, in processes of its own: what the rows differ in is noise."""
TURNS = {
    "allreduce": "all-reduce alone",
    "compute": "computation alone",
    "both": "start + compute + wait",
}

NOT_MEASURED = (
    LIMITS,
    "Other engines than gloo, more hosts than two, several vectors on the way at the same time, networks with cards that "
    "move data by themselves.",
)


def main() -> None:
    """Local, blocking: measure what is asked for and publish it."""
    parser = parser_of("overlap", __doc__)
    parser.add_argument("--size", type=sizes, default=[25_000_000], metavar="S", help="of the vector (default 25MB)")
    args = parse(parser)
    if len(args.size) > 1:
        parser.error("--size takes one size")
    (args.size,) = args.size
    measurement = begin("overlap", args, page_of)
    num_rounds = QUICK_ROUNDS if args.quick else ROUNDS
    record = measurement.record({"rounds": num_rounds, "seed": SEED, "bytes": args.size})
    if not record.blocks:
        with test_hosts(2) as hosts, Conductor() as conductor:
            across = Across(hosts)
            measurement.progress.say("starting")
            groups = [conductor.start(row, 2, across.starter("auto", "overlap")) for row in ROWS]
            for row, block in measure(groups, args.size, num_rounds, measurement.progress).items():
                record.add(row, block)
    measurement.finish(bound=BOUND, not_measured=NOT_MEASURED, blocks=record.blocks)


def measure(groups: Sequence[Group], num_bytes: int, num_rounds: int, progress: Progress) -> dict[str, Any]:
    """Blocking: all rows interleaved, with as many matrix products as take about the time of the all-reduce."""
    before = stolen_s()
    progress.say("the computation is made as long as the all-reduce")
    for group in groups:
        group.ask("prepare", num_bytes=num_bytes)

    def typical_us(name: str, products: int) -> float:
        return float(np.median([max(times[0] for times in groups[0].ask(name, products=products)) for _ in range(5)]))

    some = 200
    products = max(1, round(some * typical_us("allreduce", 0) / typical_us("compute", some)))
    asked = {f"{turn} of {group.name}": (group, turn) for group in groups for turn in TURNS}

    def take(name: str) -> list[list[float]]:
        group, turn = asked[name]
        return group.ask(turn, products=products)

    samples = interleave(list(asked), num_rounds, SEED, take, lambda number: progress.say(f"round {number + 1} of {num_rounds}"))
    stolen = round(stolen_s() - before, 2)
    return {
        group.name: {
            "versions": group.versions,
            "products": products,
            "stolen_cpu_s": stolen,
            "times_us": rounded({turn: samples[f"{turn} of {group.name}"] for turn in TURNS}),
        }
        for group in groups
    }


def overlap(block: Mapping[str, Any]) -> tuple[Estimate, Estimate]:
    """Local: start + compute + wait as a multiple of the longer part alone, and of both parts one after the other."""
    samples = restored(block["times_us"])
    alone, compute, both = (samples[name].by_round for name in TURNS)
    longer = max(samples["allreduce"].median, samples["compute"].median)
    longer_by_round = alone if samples["allreduce"].median == longer else compute
    return estimate(both / longer_by_round), estimate(both / (alone + compute))


def page_of(result: Result) -> Page:
    """Pure: the page of these raw data."""
    blocks, rows, bounds = result["blocks"], [], []
    for name, block in blocks.items():
        samples, (of_longer, of_sum) = restored(block["times_us"]), overlap(block)
        rows.append([name, *(f"{samples[turn].median / 1e3:.1f}" for turn in TURNS), str(of_longer), str(of_sum)])
        bounds.append(judge(f"all-reduce {name}", of_longer, "times the longer of the two", at_most=result["bound"]))
    first, header = next(iter(blocks.values())), ["all-reduce", *(f"{title}, ms" for title in TURNS.values())]
    drawn = {name: overlap(block)[0] for name, block in blocks.items()}
    return Page(
        question="Does communication overlap with computing, across two hosts at 1 Gbit/s?",
        answer=f"Start + compute + wait takes, for {told(bounds)}.",
        result={**result, "blocks": {}},  # both rows are measured together: what was taken away meanwhile counts once
        setup=f"A float32 vector of {show_size(result['settings']['bytes'])} is summed over two hosts with links of 1 Gbit/s, one "
        "rank with one thread on each, engine gloo, while the rank multiplies matrices. Started all-reduces are checked for their "
        "sums.",
        tables=[Table([*header, "of the longer", "of the sum"], rows, drawn=drawn, drawn_label="times the longer of the two")],
        bounds=bounds,
        reading=[
            f"{result['settings']['rounds']} rounds; in each all three of both rows are timed once, after a barrier. The time is "
            "that of the slower rank.",
            f"The computation is {first['products']} products of 256 x 256 matrices: as many as took the time of the all-reduce "
            "when they were tried out before.",
            "`of the longer` is (start + compute + wait) / (the part with the longer median), `of the sum` the same against both "
            "parts one after the other.",
            INTERLEAVED,
            *disturbances([first]),
        ],
        versions={name: block["versions"] for name, block in blocks.items()},
        raw="`times_us[turn][rank][round][call]`",
    )


if __name__ == "__main__":
    sys.exit(guarded(main))
