"""The page, the raw data and the figure of `bench.collectives`, all from one result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.blocks import Effort
from bench.bounds import verdicts
from bench.plot import draw
from bench.record import write_json
from bench.report import disturbances, page, provenance, section, warnings
from bench.rounds import Samples, markdown_table, ratio, restored
from bench.sizes import show_size

Blocks = Sequence[tuple[Mapping[str, Any], Mapping[str, Samples]]]


def publish(result: Mapping[str, Any], out: Path) -> str:
    """Local: write the three files; returns tables and bounds as text."""
    blocks = [(block, restored(block["times_us"])) for block in result["blocks"].values()]
    kinds = {name: contender["kind"] for name, contender in result["contenders"].items()}
    tables = _tables(blocks, list(kinds), result["ours"])
    judged = verdicts([(block["ranks"], block["bytes"], samples) for block, samples in blocks], kinds, result["ours"])
    found = [] if result["quick"] else [f"**{verdict}**: {bound}" for bound, verdict in judged]
    write_json(out / "collectives.json", result)
    (out / "collectives.md").write_text(_page(result, blocks, tables, found))
    _draw(out / "collectives.png", result, blocks)
    return page(*tables, "\n".join(found))


def _tables(blocks: Blocks, names: Sequence[str], ours: str) -> list[str]:
    """For each number of ranks: medians in microseconds, then ratios to ours with their intervals."""
    tables = []
    for num_ranks in dict.fromkeys(block["ranks"] for block, _ in blocks):
        columns = {block["bytes"]: samples for block, samples in blocks if block["ranks"] == num_ranks}
        header = [f"{num_ranks} ranks", *map(show_size, columns)]
        medians, ratios = [], []
        for name in names:
            taking_part = [(samples.get(name), samples[ours]) for samples in columns.values()]
            medians.append([name, *(f"{peer.median:.1f}" if peer else "-" for peer, _ in taking_part)])
            ratios.append([name, *(str(ratio(peer, our)) if peer else "-" for peer, our in taking_part)])
        tables.append(f"Median time of a call in microseconds:\n\n{markdown_table(header, medians)}")
        others = [row for row in ratios if row[0] != ours]
        if others:
            tables.append(f"How many times as long as {ours}, with the 95 % interval:\n\n{markdown_table(header, others)}")
    return tables


def _page(result: Mapping[str, Any], blocks: Blocks, tables: Sequence[str], found: Sequence[str]) -> str:
    versions = {name: version for block, _ in blocks for name, version in block["versions"].items()}
    failed = {f"{name}` at `{block['ranks']} ranks": why for block, _ in blocks for name, why in block["failed"].items()}
    return page(
        "# All-reduce through shared memory, against its peers",
        warnings(result),
        "Sum of float32 vectors in place, on one machine, one thread in each rank. Every contender has its own processes, all\n"
        "alive during the whole run and asleep unless it is their turn. Sums are checked before and after the timing.",
        *tables,
        "![time against size](collectives.png)",
        section("Bounds", found),
        section("Contenders", [f"`{name}`: {contender['about']}" for name, contender in result["contenders"].items()]),
        section("Took no part", [f"`{name}`: {why}" for name, why in {**result["absent"], **failed}.items()]),
        section("How to read it", _reading(Effort(**result["settings"]["effort"]), blocks)),
        provenance(result["command"], result["machine"], result["sittings"], versions),
        section("What was not measured", list(result["not_measured"])),
        "Raw data: [collectives.json](collectives.json), `times_us[contender][rank][round][call]`.",
    )


def _reading(effort: Effort, blocks: Blocks) -> list[str]:
    return [
        f"Up to 4 MB there are {effort.short_rounds} rounds of {effort.short_calls} calls, above {effort.long_rounds} rounds of "
        f"{effort.long_calls}. In each round all contenders have their turn, in a shuffled order.",
        "A turn begins with one call that is not timed. The time of a call is that of its slowest rank (the raw data hold all).",
        "A ratio is the median over rounds of (median of the peer's calls / median of ours in the same round); the interval is "
        "a bootstrap over rounds. A bound is missed when the whole interval lies beyond it.",
        "The memory floor is what the memory of this machine allows: no all-reduce in place can be quicker than the loop, so no "
        "ratio can be higher than the one in brackets.",
        "The A/A row is the same engine against itself: what it differs from 1 is what the machine does, not the code.",
        *disturbances(block for block, _ in blocks),
    ]


def _draw(path: Path, result: Mapping[str, Any], blocks: Blocks) -> None:
    panels: dict[str, dict[str, dict[int, float]]] = {}
    for block, samples in blocks:
        panel = panels.setdefault(f"{block['ranks']} ranks", {})
        for name, contender in result["contenders"].items():
            if name in samples and contender["kind"] != "noise":
                panel.setdefault(name, {})[block["bytes"]] = samples[name].median
    machine = result["machine"]
    note = f"{machine['CPU']}, cores {machine['cores']}; medians; {result['sittings'][-1]['at']}; lower is better"
    draw(path, "All-reduce on one machine", panels, (result["ours"],), note)
