"""The page, the raw data and the figure of `bench.algorithms`, all from one result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from bench.blocks import Effort
from bench.crossings import BySize, clear_ratios, crossings, fastest, loss
from bench.plot import draw
from bench.record import write_json
from bench.report import disturbances, page, provenance, section, warnings
from bench.rounds import markdown_table, ratio, restored
from bench.sizes import show_size
from unisono.comm.allreduce import auto

OWN = ("ring", "recursive_doubling", "rabenseifner")
ENGINE = "engine"


def publish(result: Mapping[str, Any], out: Path) -> str:
    """Local: write the three files; returns tables and recommendations as text."""
    by_hosts: dict[int, dict[int, Any]] = {}
    for block in result["blocks"].values():
        by_hosts.setdefault(block["ranks"], {})[block["bytes"]] = restored(block["times_us"])
    tables = [part for num_hosts, by_size in by_hosts.items() for part in _tables(num_hosts, by_size)]
    crossed = [line for num_hosts, by_size in by_hosts.items() for line in _crossings(num_hosts, by_size)]
    advice = [line for num_hosts, by_size in by_hosts.items() for line in _advice(num_hosts, by_size)]
    versions = {name: version for block in result["blocks"].values() for name, version in block["versions"].items()}
    text = page(
        "# Where the all-reduce algorithms cross",
        warnings(result),
        "Sum of float32 vectors in place, one rank with one thread on each host, hosts joined by links of 1 Gbit/s. Each\n"
        "algorithm has its own processes, asleep unless it is their turn. Sums are checked before and after the timing.",
        *tables,
        "![time against size](algorithms.png)",
        section("Where they cross", crossed),
        section("What this says about `auto`", advice),
        section("Contenders", [f"`{name}`: {about}" for name, about in result["algorithms"].items()]),
        section("How to read it", _reading(Effort(**result["settings"]["effort"])) + disturbances(result["blocks"].values())),
        provenance(result["command"], result["machine"], result["sittings"], versions),
        section("What was not measured", list(result["not_measured"])),
        "Raw data: [algorithms.json](algorithms.json), `times_us[algorithm][rank][round][call]`.",
    )
    write_json(out / "algorithms.json", result)
    (out / "algorithms.md").write_text(text)
    panels = {f"{num_hosts} hosts": _lines(by_size) for num_hosts, by_size in by_hosts.items()}
    note = f"{result['machine']['CPU']}, gloo over network namespaces; medians; {result['sittings'][-1]['at']}; lower is better"
    draw(out / "algorithms.png", "All-reduce between hosts at 1 Gbit/s", panels, (), note)
    return page(*tables, "\n".join(crossed), "\n".join(advice))


def _reading(effort: Effort) -> list[str]:
    return [
        f"Up to {show_size(effort.short_bytes)} there are {effort.short_rounds} rounds of {effort.short_calls} calls, above "
        f"{effort.long_rounds} rounds of {effort.long_calls}. In each round all have their turn, in a shuffled order, which "
        "begins with one call that is not timed. The time of a call is that of its slowest rank.",
        "A ratio is the median over rounds of the ratio in the same round; the interval is a bootstrap over rounds.",
        "A difference is clear when the interval of the ratio does not hold 1. A crossing lies between two sizes with clear and "
        "opposite differences and is interpolated on logarithmic scales.",
    ]


def _tables(num_hosts: int, by_size: BySize) -> list[str]:
    header = [f"{num_hosts} hosts", *map(show_size, by_size)]
    names = list(next(iter(by_size.values())))
    medians = [[name, *(f"{samples[name].median:.0f}" for samples in by_size.values())] for name in names]
    ratios = [
        [name, *(str(ratio(samples[name], samples[ENGINE])) for samples in by_size.values())] for name in names if name != ENGINE
    ]
    return [
        f"Median time of a call in microseconds:\n\n{markdown_table(header, medians)}",
        f"How many times as long as gloo's own, with the 95 % interval:\n\n{markdown_table(header, ratios)}",
    ]


def _crossings(num_hosts: int, by_size: BySize) -> list[str]:
    lines = []
    for first, second in combinations((*OWN, ENGINE), 2):
        found = crossings(by_size, first, second)
        if found:
            shown = ", ".join(f"{winner} is faster from {_about(size)} on" for size, winner in found)
        elif clear := clear_ratios(by_size, first, second):
            faster = first if clear[0][1] > 1 else second
            shown = f"{faster} is faster wherever there is a clear difference ({', '.join(show_size(size) for size, _ in clear)})"
        else:
            shown = "no clear difference at any size"
        lines.append(f"{num_hosts} hosts, {first} and {second}: {shown}")
    return lines


def _advice(num_hosts: int, by_size: BySize) -> list[str]:
    """What the measured sizes would choose, beside what `auto` chooses now."""
    losses = loss(by_size, auto.choose, (*OWN, ENGINE))
    worst = max(losses, key=lambda size: losses[size])
    return [
        f"{num_hosts} hosts, fastest of all: {_fastest(by_size, (*OWN, ENGINE))}",
        f"{num_hosts} hosts: as it chooses now ({auto.in_words()}), `auto` takes at worst {losses[worst]:.2f} times as long as the "
        f"fastest ({auto.choose(worst)} at {show_size(worst)})",
    ]


def _fastest(by_size: BySize, among: Sequence[str]) -> str:
    return ", ".join(f"{show_size(size)} {fastest(samples, among)}" for size, samples in by_size.items())


def _lines(by_size: BySize) -> dict[str, dict[int, float]]:
    names = [name for name in next(iter(by_size.values())) if not name.endswith("A/A")]
    return {name: {size: samples[name].median for size, samples in by_size.items()} for name in names}


def _about(num_bytes: int) -> str:
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.3g} {unit}"
    return f"{num_bytes} B"
