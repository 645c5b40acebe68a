"""The page of `bench.checkpoint`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from bench.bounds import Bound, judge, told
from bench.page import INTERLEAVED, Page, Result, Table
from bench.rounds import estimate
from bench.save_costs import SaveCosts, save_costs

MOST_MS, EVERY_S = 50.0, 30.0
"""That a save may block the training, and how often it is saved."""

Costs = Mapping[str, SaveCosts]


def page_of(result: Result) -> Page:
    """Pure: the page of these raw data."""
    settings, ours, by_hand = result["settings"], result["ours"], result["by_hand"]
    blocks = {key: (block, costs_of(block, settings["quiet"])) for key, block in result["blocks"].items()}
    bounds = [verdict(key, costs[ours], settings["state_bytes"]) for key, (_, costs) in blocks.items()]
    waited = [f"{np.median(block['saves'][ours]['own_us'][1:]) / 1e3:.0f} ms with {key}" for key, (block, _) in blocks.items()]
    steps = [
        f"{np.median(costs[ours].step) / np.median(costs[by_hand].step):.2f} times ({key})"
        for key, (_, costs) in blocks.items()
        if by_hand in costs
    ]
    sizes = [
        f"{name} {saves['bytes'] / 1e6:.1f}" for block, _ in list(blocks.values())[:1] for name, saves in block["saves"].items()
    ]
    cut = sum(cost.num_cut for _, costs in blocks.values() for cost in costs.values())
    return Page(
        question="How long does a save of 100 MB hold up the training, against torch.save, Lightning and "
        "torch.distributed.checkpoint?",
        answer=f"{told(bounds)}.",
        result=result,
        setup=f"One worker trains {settings['about']}. Weights and optimiser state are {settings['state_bytes'] / 1e6:.0f} MB, "
        f"saved every {settings['period']} steps to {result['file_system']}. All times in milliseconds.",
        tables=[_table(result, key, block, costs) for key, (block, costs) in blocks.items()],
        bounds=bounds,
        reading=[
            f"{settings['rounds']} rounds in each table; a turn has {settings['period']} steps with one save after the first "
            f"{settings['quiet']}. Saves come every few seconds here, not every {EVERY_S:g}.",
            "`a step`: median of the steps without a save. `blocked by a save`: the step with the save in it, less that median. "
            "`slower steps while it is written`: the same difference summed over the steps that begin before a save in the "
            "background is done. `the whole save`: from its beginning until it is done; where the training waits for all of it, it "
            "blocks.",
            INTERLEAVED,
            "The first save, for which memory is new, is in no median and has a column of its own.",
            "`synced`: whether the bytes are on the disk when the save is done. Where it says no they are in the memory of the "
            "system, a failure of the machine loses them, and the time to bring them to the disk is not in the table. Each "
            "contender is as it is by default. After every turn all is synced, outside the times, so that no contender pays for "
            "another's writes.",
            "With as many threads as cores the writer has no core of its own: what it hashes and writes is time that the training "
            "does not get, so that `both` may be more than a save in the loop costs.",
            "Steps themselves are compared elsewhere ([train](train.md)). With this model, in which moving memory takes longer "
            f"than computing, one of Unisono takes {' and '.join(steps)} as long as in the loop by hand.",
            f"By Unisono's own clock a save kept the training waiting for {', '.join(waited)} (median).",
            f"Bytes of a save on the disk, MB: {', '.join(sizes)}.",
            *([f"{cut} writes ended after the last step of their turn: their slower steps are not all counted."] if cut else []),
        ],
        raw="`times_us[contender][rank][round][step]`; `saves` holds how long each save took until it was done and, where the "
        "contender tells it, how long it kept the training waiting",
    )


def costs_of(block: Mapping[str, Any], save_at: int) -> Costs:
    """Pure: of each contender."""
    return {name: save_costs(times[0], block["saves"][name], save_at) for name, times in block["times_us"].items()}


def verdict(where: str, costs: SaveCosts, state_bytes: int) -> Bound:
    """Pure: the first save is judged by itself in the table."""
    share = estimate(costs.both[1:]).value / EVERY_S / 10
    blocked = judge(where, estimate(costs.blocked[1:]), f"ms blocked by a save of {state_bytes / 1e6:.0f} MB", at_most=MOST_MS)
    longest = f"the longest of {len(costs.blocked)}: {costs.blocked.max():.0f} ms"
    whole = f"with a save every {EVERY_S:g} s that, and the slower steps during the write, are {share:.2f} % of the time"
    return replace(blocked, note=f" ({longest}; {whole})")


def _table(result: Result, key: str, block: Mapping[str, Any], costs: Costs) -> Table:
    rows = [
        [
            name,
            f"{np.median(cost.step):.1f}",
            f"{estimate(cost.blocked[1:]):.0f}",
            f"{cost.blocked[1:].max():.0f}",
            f"{cost.blocked[0]:.0f}",
            f"{estimate(cost.slower[1:]):.0f}" if block["saves"][name]["whole_us"] else "-",
            f"{estimate(cost.both[1:]):.0f}",
            f"{estimate(cost.whole[1:]):.0f}",
            "yes" if result["contenders"][name]["synced"] else "no",
        ]
        for name, cost in costs.items()
    ]
    header = [key, "a step", "blocked by a save", "longest", "by the first", "slower steps while it is written", "both"]
    return Table([*header, "the whole save", "synced"], rows)
