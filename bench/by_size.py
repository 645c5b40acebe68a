"""Time against the size of the vector: tables and picture of the benchmarks that measure whole blocks of sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.figure import Line, Panel, Picture
from bench.page import Result, Table
from bench.rounds import Samples, ratio, restored
from bench.sizes import show_size

BySize = Mapping[int, Mapping[str, Samples]]
"""Samples by bytes and name."""


def samples_of(result: Result) -> Mapping[int, BySize]:
    """Pure: by number of ranks."""
    found: dict[int, dict[int, Mapping[str, Samples]]] = {}
    for block in result["blocks"].values():
        found.setdefault(block["ranks"], {})[block["bytes"]] = restored(block["times_us"])
    return found


def tables(title: str, by_size: BySize, names: Sequence[str], base: str, digits: int) -> tuple[Table, Table]:
    """Pure: medians in microseconds, then ratios to one of them."""
    header = [title, *map(show_size, by_size)]
    medians = [[name, *(f"{of[name].median:.{digits}f}" if name in of else "-" for of in by_size.values())] for name in names]
    ratios = [[name, *(str(ratio(of[name], of[base])) if name in of else "-" for of in by_size.values())] for name in names]
    return (
        Table(header, medians, "Median time of a call in microseconds:"),
        Table(header, [row for row in ratios if row[0] != base], f"How many times as long as {base}, with the 95 % interval:"),
    )


def picture(title: str, where: str, found: Mapping[int, BySize], names: Sequence[str], strong: str, note: str) -> Picture:
    """Pure: a panel for each number of ranks, both axes logarithmic; the line of `strong` is thicker."""
    panels = []
    for num_ranks, by_size in found.items():
        lines = []
        for name in names:
            points = {size: samples[name].median for size, samples in by_size.items() if name in samples}
            lines.append(Line(name, list(points), list(points.values()), look={"linewidth": 2.8} if name == strong else {}))
        settings = {"xscale": "log", "yscale": "log", "xticks": list(by_size), "xticklabels": list(map(show_size, by_size))}
        labels = ("size of the vector (float32)", "median time of one all-reduce, us")
        panels.append(Panel(f"{num_ranks} {where}", *labels, lines, settings=settings))
    return Picture(title, [panels], f"{note}; medians; lower is better", is_shared=True)
