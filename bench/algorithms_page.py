"""The page of `bench.algorithms`."""

from __future__ import annotations

from itertools import combinations

from bench.blocks import Effort
from bench.by_size import BySize, picture, samples_of, tables
from bench.crossings import clear_ratios, crossings, fastest, loss
from bench.page import INTERLEAVED, Page, Result
from bench.sizes import show_size
from unisono.comm.allreduce import auto

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
