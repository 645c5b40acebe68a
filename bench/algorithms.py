"""Where the all-reduce algorithms cross: gloo's own, ring, recursive doubling and Rabenseifner between hosts at 1 Gbit/s, one rank
on each of several test hosts (network namespaces of this machine), interleaved in one run. Needs root, ip and tc.

    python -m bench.algorithms               # 4 and 3 hosts, 1 KiB to 16 MiB
    python -m bench.algorithms --quick       # a look whether it works
    python -m bench.algorithms --hosts 4 --sizes 32KiB,64KiB,128KiB --out runs/look

Writes algorithms.md (tables, crossings, thresholds for `auto`), algorithms.json (every call) and algorithms.png.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

from bench.blocks import QUICK, Blocks, Effort, about_sizes
from bench.by_size import BySize, picture, samples_of, tables
from bench.contenders.contender import Contender
from bench.hosts import LIMITS, Across, test_hosts
from bench.measurement import begin, guarded
from bench.options import counts, parse, parser_of, sizes
from bench.page import INTERLEAVED, Page, Result
from bench.rounds import Samples, ratio
from bench.sizes import show_size
from unisono.comm.allreduce import auto

SIZES = "1KiB,4KiB,16KiB,64KiB,128KiB,256KiB,1MiB,4MiB,16MiB"
QUICK_SIZES = "1KiB,256KiB"
FULL = Effort(short_bytes=1 << 20, short_rounds=60, short_calls=5, long_rounds=20, long_calls=2)

ALGORITHMS = {
    "engine": "gloo's own",
    "engine A/A": "the same again in other processes: its distance from it is the noise",
    "ring": "comm/allreduce/ring.py over gloo's messages",
    "recursive_doubling": "comm/allreduce/recursive_doubling.py over gloo's messages",
    "rabenseifner": "comm/allreduce/rabenseifner.py over gloo's messages",
}

NOT_MEASURED = (
    LIMITS,
    "Other engines between the hosts than gloo, faster networks, more hosts than 4, several ranks on a host (node_aware).",
)


def main() -> None:
    """Local, blocking: measure what is asked for and publish it."""
    parser = parser_of("algorithms", __doc__)
    parser.add_argument("--hosts", type=counts, default=[4, 3], metavar="N,N", help="numbers of hosts (default 4,3)")
    parser.add_argument("--sizes", type=sizes, default=SIZES, metavar="S,S", help=f"default {SIZES}; with --quick {QUICK_SIZES}")
    args = parse(parser, sizes=QUICK_SIZES)
    effort = QUICK if args.quick else FULL
    settings = {"effort": dataclasses.asdict(effort), "contenders": list(ALGORITHMS)}
    blocks = Blocks(begin("algorithms", args, page_of), settings, ALGORITHMS)
    for num_hosts in args.hosts:
        with test_hosts(num_hosts) as hosts:
            across = Across(hosts)
            contenders = [
                Contender(name, "ours", text, across.starter(name.partition(" ")[0], "allreduce", "plain"))
                for name, text in ALGORITHMS.items()
            ]
            blocks.at_sizes(contenders, num_hosts, about_sizes(num_hosts, args.sizes), effort)
    blocks.finish(contenders=ALGORITHMS, not_measured=NOT_MEASURED)


ENGINE = "engine"
ALL = ("ring", "recursive_doubling", "rabenseifner", ENGINE)


def page_of(result: Result) -> Page:
    """Pure: the page of these raw data."""
    effort, found, names = Effort(**result["settings"]["effort"]), samples_of(result), list(result["contenders"])
    shown = [name for name in names if not name.endswith("A/A")]
    note = f"{result['machine']['CPU']}, gloo over network namespaces; {result['sittings'][-1]['at']}"
    advice = [f"{num} hosts: {text}" for num, by_size in found.items() for text in _advice(by_size)]
    return Page(
        question="Where do the all-reduce algorithms cross?",
        answer=f"{'; '.join(advice)}.",
        result=result,
        setup="Sum of float32 vectors in place, one rank with one thread on each host, hosts joined by links of 1 Gbit/s. Each "
        "algorithm has its own processes, asleep unless it is their turn. Sums are checked before and after the timing.",
        tables=[one for num, by_size in found.items() for one in tables(f"{num} hosts", by_size, names, ENGINE, 0)],
        picture=picture("All-reduce between hosts at 1 Gbit/s", "hosts", found, shown, "", note),
        lists={"Where they cross": [f"{num} hosts, {text}" for num, by_size in found.items() for text in _crossings(by_size)]},
        reading=[
            f"Up to {show_size(effort.short_bytes)} there are {effort.short_rounds} rounds of {effort.short_calls} calls, above "
            f"{effort.long_rounds} rounds of {effort.long_calls}. A turn begins with one call that is not timed. The time of a "
            "call is that of its slowest rank.",
            INTERLEAVED,
            "A difference is clear when the interval of the ratio does not hold 1. A crossing lies between two sizes with clear "
            "and opposite differences and is interpolated on logarithmic scales.",
        ],
        raw="`times_us[algorithm][rank][round][call]`",
    )


def _crossings(by_size: BySize) -> list[str]:
    lines = []
    for first, second in combinations(ALL, 2):
        if found := crossings(by_size, first, second):
            shown = ", ".join(f"{winner} is faster from {_about(size)} on" for size, winner in found)
        elif clear := clear_ratios(by_size, first, second):
            faster = first if clear[0][1] > 1 else second
            shown = f"{faster} is faster wherever there is a clear difference ({', '.join(show_size(size) for size, _ in clear)})"
        else:
            shown = "no clear difference at any size"
        lines.append(f"{first} and {second}: {shown}")
    return lines


def _advice(by_size: BySize) -> list[str]:
    """What the measured sizes would choose, beside what `auto` chooses now."""
    losses = loss(by_size, auto.choose, ALL)
    worst = max(losses, key=lambda size: losses[size])
    quickest = ", ".join(f"{show_size(size)} {fastest(samples, ALL)}" for size, samples in by_size.items())
    return [
        f"the fastest of all is {quickest}",
        f"as it chooses now ({auto.description()}), `auto` takes at worst {losses[worst]:.2f} times as long as the fastest "
        f"({auto.choose(worst)} at {show_size(worst)})",
    ]


def _about(num_bytes: int) -> str:
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.3g} {unit}"
    return f"{num_bytes} B"


def clear_ratios(by_size: BySize, first: str, second: str) -> list[tuple[int, float]]:
    """Local: how many times as long the second takes, at the sizes where the interval of that does not hold 1."""
    found = [(size, ratio(samples[second], samples[first])) for size, samples in sorted(by_size.items())]
    return [(size, times.value) for size, times in found if times.low > 1 or times.high < 1]


def crossings(by_size: BySize, first: str, second: str) -> list[tuple[int, str]]:
    """Local: at which sizes the order of two algorithms changes, and who is faster from there on.

    Between two sizes with a clear difference the logarithm of the ratio is taken as a straight line over that of the size.
    """
    points = [(size, math.log(times)) for size, times in clear_ratios(by_size, first, second)]
    found = []
    for (low, below), (high, above) in itertools.pairwise(points):
        if (below < 0) != (above < 0):
            share = below / (below - above)
            found.append((round(low * (high / low) ** share), first if above > 0 else second))
    return found


def fastest(samples: Mapping[str, Samples], among: Sequence[str]) -> str:
    """Local: who has the smallest median."""
    return min(among, key=lambda name: samples[name].median)


def loss(by_size: BySize, choose: Callable[[int], str], among: Sequence[str]) -> dict[int, float]:
    """Local: how many times as long as the fastest the chosen algorithm takes at each size."""
    return {
        size: samples[choose(size)].median / samples[fastest(samples, among)].median for size, samples in sorted(by_size.items())
    }


if __name__ == "__main__":
    sys.exit(guarded(main))
