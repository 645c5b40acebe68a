"""How long a save of 100 MB keeps one worker from training, and how long until it is on the disk: Unisono against torch.save in the
loop, Lightning's callback and DCP's async_save. What they need is installed under .venv-bench/.

    python -m bench.checkpoint               # everything; about five minutes on cores that do nothing else
    python -m bench.checkpoint --quick       # a look whether it works: few saves, no judgement
    python -m bench.checkpoint --threads 1   # with one thread only

Writes checkpoint.md (tables, bound, how it was measured) and checkpoint.json (every step).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.blocks import Blocks, described
from bench.bounds import Bound, judge, told
from bench.contenders.saving import BY_HAND, OURS, WAYS
from bench.groups import ROOT, Group, GroupFailed
from bench.measurement import begin, guarded
from bench.options import counts, parse, parser_of
from bench.page import INTERLEAVED, Page, Result, Table
from bench.rounds import Floats, estimate
from bench.saving_case import ABOUT, STATE_BYTES
from bench.sizes import show_count
from bench.train import LEARNED

QUIET = 6
"""Steps of a turn before the one with its save."""
PERIOD = 16
"""Steps of a turn."""
ROUNDS, QUICK_ROUNDS = 11, 3
FILES = ROOT / "runs" / "bench" / "checkpoint-files"
"""Beside the results of a quick run, as the folder of temporary files may be no disk."""

NOT_MEASURED = (
    "Several workers: only the first one saves, and the others wait for it in the next reduction.",
    "GPUs, where the state is copied over the bus into pinned memory.",
    "Network file systems, and disks that are busy with other things.",
    "A best model beside the state: where a run has validation data, its weights are written too whenever they are new.",
    "Lightning's `AsyncCheckpointIO`, DCP with a process of its own or a stager that keeps its memory: neither is the default.",
)


def main() -> None:
    """Local, blocking: measure what is asked for and publish it."""
    usual, threads = sorted({1, len(os.sched_getaffinity(0))}), partial(counts, least=1)
    parser, shown = parser_of("checkpoint", __doc__), ",".join(map(str, usual))
    parser.add_argument("--threads", type=threads, default=usual, metavar="N,N", help=f"of the worker (here {shown})")
    args = parse(parser)
    rounds = QUICK_ROUNDS if args.quick else ROUNDS
    settings = {"about": ABOUT, "state_bytes": STATE_BYTES, "rounds": rounds, "quiet": QUIET, "period": PERIOD}
    blocks = Blocks(begin("checkpoint", args, page_of), {**settings, "threads": args.threads}, (OURS,))
    # What comes before the first step counts as one.
    opening, turn = [("time", {"num_steps": PERIOD - QUIET})], ("time", {"num_steps": PERIOD})
    for threads in args.threads:

        def after(groups: Mapping[str, Group], threads: int = threads) -> Mapping[str, Any]:
            return {"saves": {name: saves_of(group, threads, rounds) for name, group in groups.items()}}

        with folder_for_files() as folder:
            able = blocks.able(way.given(threads, folder, PERIOD) for way in WAYS)
            blocks.apart(show_count(threads, "thread"), {"threads": threads}, {1: able}, opening, turn, rounds, after=after)
    blocks.finish(
        ours=OURS,
        by_hand=BY_HAND,
        contenders=described(WAYS, "synced"),
        file_system=file_system(FILES.parent),
        not_measured=NOT_MEASURED,
    )


def saves_of(group: Group, threads: int, num_saves: int) -> Mapping[str, Any]:
    """Blocking: what the contender knows of its saves; refuses one that did not learn or did not save what it should."""
    (saves,) = group.ask("saves")
    if saves["threads"] != threads:
        raise GroupFailed(f"{group.name}: it uses {saves['threads']} threads, not {threads}")
    if not saves["loss"] < LEARNED:
        raise GroupFailed(f"{group.name}: the loss is {saves['loss']:.3f} at the end; it did not learn")
    if saves["bytes"] < STATE_BYTES:
        raise GroupFailed(f"{group.name}: its last save has {saves['bytes']} bytes; the state has {STATE_BYTES}")
    if saves["whole_us"] and len(saves["whole_us"]) != num_saves:
        raise GroupFailed(f"{group.name}: it saved {len(saves['whole_us'])} times, not {num_saves}")
    return dict(saves)


@contextmanager
def folder_for_files() -> Iterator[Path]:
    """Local: an empty folder, removed at the end; what a killed run left there goes first."""
    shutil.rmtree(FILES, ignore_errors=True)
    FILES.mkdir(parents=True)
    try:
        yield FILES
    finally:
        shutil.rmtree(FILES, ignore_errors=True)


def file_system(path: Path) -> str:
    """Local: the kind of file system that holds a path."""
    held = [one for one in psutil.disk_partitions(all=True) if path.resolve().is_relative_to(one.mountpoint)]
    return max(held, key=lambda one: len(one.mountpoint)).fstype if held else "an unknown file system"


MOST_MS, EVERY_S = 50.0, 30.0
"""That a save may block the training, and how often it is saved."""


@dataclass(frozen=True)
class SaveCosts:
    """Milliseconds by round; the first round has the first save, for which memory and files are new."""

    step: Floats
    blocked: Floats
    slower: Floats
    """All steps during the write together."""
    whole: Floats
    """From the beginning of the save until it is done."""
    num_cut: int
    """Writes that ended after the last step of their turn, whose `slower` is not whole therefore."""

    @property
    def both(self) -> Floats:
        return self.blocked + self.slower


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
        {
            key: name,
            "a step": f"{np.median(cost.step):.1f}",
            "blocked by a save": f"{estimate(cost.blocked[1:]):.0f}",
            "longest": f"{cost.blocked[1:].max():.0f}",
            "by the first": f"{cost.blocked[0]:.0f}",
            "slower steps while it is written": f"{estimate(cost.slower[1:]):.0f}" if block["saves"][name]["whole_us"] else "-",
            "both": f"{estimate(cost.both[1:]):.0f}",
            "the whole save": f"{estimate(cost.whole[1:]):.0f}",
            "synced": "yes" if result["contenders"][name]["synced"] else "no",
        }
        for name, cost in costs.items()
    ]
    blocked = {name: estimate(cost.blocked[1:]) for name, cost in costs.items()}
    return Table.of(rows, drawn=blocked, drawn_label="ms blocked by a save")


def save_costs(times_us: Sequence[Sequence[float]], saves: Mapping[str, Sequence[float]], save_at: int) -> SaveCosts:
    """Pure: from the times of steps by round, with the save at the end of step `save_at` of each. `saves` has, where a save goes on
    in the background, how long each took until it was done (`whole_us`) and how long the training waited (`own_us`). The first step
    of a turn is not counted: it fetches what others pushed out of the caches."""
    in_background = bool(saves["whole_us"])
    rows, num_cut = [], 0
    for number, times in enumerate(np.asarray(times_us, dtype=np.float64) / 1e3):
        before, saving, after = times[1:save_at], times[save_at], times[save_at + 1 :]
        done = (saves["whole_us"][number] - saves["own_us"][number]) / 1e3 if in_background else 0.0
        written = np.cumsum(after) - after < done
        step = np.median(np.concatenate([before, after[~written]]))
        blocked = saving - step
        whole = saves["whole_us"][number] / 1e3 if in_background else blocked
        num_cut += int(done > after.sum())
        rows.append((step, blocked, (after[written] - step).sum(), whole))
    step_ms, blocked_ms, slower_ms, whole_ms = np.asarray(rows).T
    return SaveCosts(step_ms, blocked_ms, slower_ms, whole_ms, num_cut)


if __name__ == "__main__":
    sys.exit(guarded(main))
