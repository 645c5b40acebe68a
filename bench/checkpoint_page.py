"""The page and the raw data of `bench.checkpoint`, both from one result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.record import write_json
from bench.report import disturbances, page, provenance, section, warnings
from bench.rounds import Estimate, estimate, markdown_table
from bench.save_costs import SaveCosts, save_costs, verdict

Blocks = Sequence[tuple[Mapping[str, Any], Mapping[str, SaveCosts]]]


def publish(result: Mapping[str, Any], out: Path) -> str:
    """Local: write both files; returns tables and bounds as text."""
    save_at = result["settings"]["quiet"]
    blocks = [
        (
            block,
            {name: save_costs(times[0], block["saves"][name], save_at) for name, times in block["times_us"].items()},
        )
        for block in result["blocks"].values()
    ]
    tables = [_table(result, block, costs) for block, costs in blocks]
    found = []
    for block, costs in blocks if not result["quick"] else ():
        text, judgement = verdict(costs[result["ours"]], result["settings"]["state_bytes"])
        found.append(f"**{judgement}**: {show_threads(block['threads'])}: {text}")
    write_json(out / "checkpoint.json", result)
    (out / "checkpoint.md").write_text(_page(result, blocks, tables, found))
    return page(*tables, "\n".join(found))


def show_threads(threads: int) -> str:
    """Pure."""
    return f"{threads} thread{'' if threads == 1 else 's'}"


def _table(result: Mapping[str, Any], block: Mapping[str, Any], costs: Mapping[str, SaveCosts]) -> str:
    header = [
        show_threads(block["threads"]),
        "a step",
        "blocked by a save",
        "longest",
        "by the first",
        "slower steps while it is written",
        "both",
        "the whole save",
        "synced",
    ]
    rows = [
        [
            name,
            f"{np.median(cost.step):.1f}",
            _whole(estimate(cost.blocked[1:])),
            f"{cost.blocked[1:].max():.0f}",
            f"{cost.blocked[0]:.0f}",
            _whole(estimate(cost.slower[1:])) if block["saves"][name]["whole_us"] else "-",
            _whole(estimate(cost.both[1:])),
            _whole(estimate(cost.whole[1:])),
            "yes" if result["contenders"][name]["synced"] else "no",
        ]
        for name, cost in costs.items()
    ]
    return markdown_table(header, rows)


def _whole(found: Estimate) -> str:
    return f"{found.median:.0f} [{found.low:.0f}, {found.high:.0f}]"


def _page(result: Mapping[str, Any], blocks: Blocks, tables: Sequence[str], found: Sequence[str]) -> str:
    settings = result["settings"]
    versions = {name: version for block, _ in blocks for name, version in block["versions"].items()}
    failed = {
        f"{name}` with `{show_threads(block['threads'])}": why for block, _ in blocks for name, why in block["failed"].items()
    }
    return page(
        "# What a checkpoint costs the training",
        warnings(result),
        f"One worker trains {settings['about']}. Weights and\noptimiser state are {settings['state_bytes'] / 1e6:.0f} MB, saved "
        f"every {settings['period']} steps to {result['file_system']}. All times in milliseconds.",
        *tables,
        section("Bounds", found),
        section("Contenders", [f"`{name}`: {contender['about']}" for name, contender in result["contenders"].items()]),
        section("Took no part", [f"`{name}`: {why}" for name, why in {**result["absent"], **failed}.items()]),
        section("How to read it", _reading(result, blocks)),
        provenance(result["command"], result["machine"], result["sittings"], versions),
        section("What was not measured", list(result["not_measured"])),
        "Raw data: [checkpoint.json](checkpoint.json), `times_us[contender][rank][round][step]`; `saves` holds how long each save "
        "took until it was done\nand, where the contender tells it, how long it kept the training waiting.",
    )


def _reading(result: Mapping[str, Any], blocks: Blocks) -> list[str]:
    settings = result["settings"]
    first = blocks[0][0]
    own = ", ".join(
        f"{np.median(block['saves'][result['ours']]['own_us'][1:]) / 1e3:.0f} ms with {show_threads(block['threads'])}"
        for block, _ in blocks
    )
    compared = [(block, costs[result["ours"]], costs[result["by_hand"]]) for block, costs in blocks if result["by_hand"] in costs]
    steps = " and ".join(
        f"{np.median(ours.step) / np.median(by_hand.step):.2f} times ({show_threads(block['threads'])})"
        for block, ours, by_hand in compared
    )
    sizes = ", ".join(f"{name} {saves['bytes'] / 1e6:.1f}" for name, saves in first["saves"].items())
    cut = sum(cost.num_cut for _, costs in blocks for cost in costs.values())
    return [
        f"{settings['rounds']} rounds in each table; in a round all contenders have their turn of {settings['period']} steps with "
        f"one save after the first {settings['quiet']}, in a shuffled order. Saves come every few seconds here, not every 30.",
        "`a step`: median of the steps without a save. `blocked by a save`: the step with the save in it, less that median. "
        "`slower steps while it is written`: the same difference summed over the steps that begin before a save in the background "
        "is done. `the whole save`: from its beginning until it is done; where the training waits for all of it, it blocks.",
        "Medians over rounds without the first save, in brackets the 95 % interval of a bootstrap over rounds; the bound is missed "
        "when the whole interval lies beyond it. The first save, for which memory is new, has a column of its own.",
        "`synced`: whether the bytes are on the disk when the save is done. Where it says no they are in the memory of the system, "
        "a failure of the machine loses them, and the time to bring them to the disk is not in the table. Each contender is as "
        "it is by default. After every turn all is synced, outside the times, so that nobody pays for another's writes.",
        "With as many threads as cores the writer has no core of its own: what it hashes and writes is time that the training does "
        "not get, so that `both` may be more than a save in the loop costs.",
        "Steps themselves are compared elsewhere ([train](train.md)). With this model, in which moving memory takes longer than "
        f"computing, one of Unisono takes {steps} as long as in the loop by hand.",
        f"By Unisono's own clock a save kept the training waiting for {own} (median).",
        f"Bytes of a save on the disk, MB: {sizes}.",
        *([f"{cut} writes ended after the last step of their turn: their slower steps are not all counted."] if cut else []),
        *disturbances(block for block, _ in blocks),
    ]
