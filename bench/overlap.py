"""Does a started all-reduce really run while the program computes? Two hosts, 1 Gbit/s, one rank on each.

    python -m bench.overlap                  # everything; only as root, as it makes network namespaces
    python -m bench.overlap --quick          # a look whether it works

Times of the all-reduce alone, of the computation alone (made about as long), and of start + compute + wait, interleaved.
The last must be at most 1.2 times the longer of the other two. Writes overlap.md and overlap.json (every call).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.groups import Conductor, Group, Launch, Seat
from bench.hosts import LIMITS, Across, test_hosts
from bench.machine import stolen_s
from bench.options import parse, sizes
from bench.progress import Progress
from bench.record import write_json
from bench.report import page, provenance, section, warnings
from bench.rounds import Estimate, Stopwatch, estimate, interleave, judged, markdown_table, restored, rounded
from bench.session import guarded, open_record, result_of
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
    args = _arguments()
    if args.figure:
        print(publish(json.loads((args.out / "overlap.json").read_text()), args.out))
        return
    progress, watch = Progress(), Stopwatch()
    num_rounds = QUICK_ROUNDS if args.quick else ROUNDS
    record = open_record("overlap", args, {"rounds": num_rounds, "seed": SEED, "bytes": args.size}, progress)
    if not record.blocks:
        with test_hosts(2) as hosts, Conductor() as conductor:
            across = Across(hosts)
            progress.say("starting")
            groups = [conductor.start(row, 2, partial(start, across)) for row in ROWS]
            for row, block in measure(groups, args.size, num_rounds, progress).items():
                record.add(row, block)
    result = result_of(args, record, watch, bound=BOUND, not_measured=NOT_MEASURED, blocks=record.blocks)
    print(publish(result, args.out))
    record.finish()
    progress.keep(f"written to {args.out}/overlap.md and .json after {watch}")


def start(across: Across, num_ranks: int, seat: Seat) -> list[Launch]:  # noqa: ARG001 -- as many as hosts
    """Local: one rank on each host."""
    return across.launches("auto", "bench.ranks.overlap", seat)


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


def publish(result: Mapping[str, Any], out: Path) -> str:
    """Local: write page and raw data; returns table and judgement as text."""
    blocks = result["blocks"]
    rows: list[list[str]] = []
    found: list[str] = []
    for name, block in blocks.items():
        samples = restored(block["times_us"])
        of_longer, of_sum = overlap(block)
        rows.append([name, *(f"{samples[turn].median / 1e3:.1f}" for turn in TURNS), str(of_longer), str(of_sum)])
        if result["quick"]:
            continue
        verdict = judged(of_longer, result["bound"], at_least=False)
        found.append(
            f"**{verdict}**: all-reduce {name}: start + compute + wait takes {of_longer} times the longer of the two, "
            f"at most {result['bound']:g} asked"
        )
    header = ["all-reduce", *(f"{title}, ms" for title in TURNS.values()), "of the longer", "of the sum"]
    table = markdown_table(header, rows)
    text = page(
        "# Communication and computation at the same time",
        warnings(result),
        f"A float32 vector of {show_size(result['settings']['bytes'])} is summed over two hosts with links of 1 Gbit/s, one rank\n"
        "with one thread on each, engine gloo, while the rank multiplies matrices. Started all-reduces are checked for their sums.",
        table,
        section("Bounds", found),
        section("How to read it", _reading(result)),
        provenance(
            result["command"], result["machine"], result["sittings"], {name: block["versions"] for name, block in blocks.items()}
        ),
        section("What was not measured", list(result["not_measured"])),
        "Raw data: [overlap.json](overlap.json), `times_us[turn][rank][round][call]`.",
    )
    write_json(out / "overlap.json", result)
    (out / "overlap.md").write_text(text)
    return page(table, "\n".join(found))


def _reading(result: Mapping[str, Any]) -> list[str]:
    blocks = list(result["blocks"].values())
    return [
        f"{result['settings']['rounds']} rounds; in each all three of both rows are timed once, in a shuffled order, after a "
        "barrier. The time is that of the slower rank.",
        "The computation is products of 256 x 256 matrices, as many as took the time of the all-reduce when they were tried out "
        f"before: {blocks[0]['products']}.",
        "`of the longer` is the median over rounds of (start + compute + wait) / (the part with the longer median), `of the sum` "
        "the same against both parts one after the other; in brackets the 95 % interval of a bootstrap over rounds. The bound is "
        "missed when the whole interval lies beyond it.",
        f"CPU time that the host of a virtual machine took away during the measurement: {blocks[0]['stolen_cpu_s']:.1f} s.",
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.overlap",
        description="An all-reduce that is started, computing, and waiting for it, against each of the two alone; between two\n"
        "test hosts (network namespaces of this machine with links of 1 Gbit/s). Needs root, ip and tc.",
        epilog="examples:\n"
        "  python -m bench.overlap                  60 rounds, into docs/results/\n"
        "  python -m bench.overlap --quick          3 rounds, into runs/bench/\n"
        "  python -m bench.overlap --size 4MB --out runs/look\n"
        "An interrupted run goes on where it stopped when the same command is given again.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--size", type=sizes, default=[25_000_000], metavar="S", help="of the vector (default 25MB)")
    args = parse(parser)
    if len(args.size) > 1:
        parser.error("--size takes one size")
    (args.size,) = args.size
    return args


if __name__ == "__main__":
    sys.exit(guarded(main))
