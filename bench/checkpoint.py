"""How long a save of 100 MB keeps one worker from training, and how long until it is on the disk: Unisono against torch.save in the
loop, Lightning's callback and DCP's async_save. What they need is installed under .venv-bench/.

    python -m bench.checkpoint               # everything; about five minutes on cores that do nothing else
    python -m bench.checkpoint --quick       # a look whether it works: few saves, no judgement
    python -m bench.checkpoint --threads 1   # with one thread only

Writes checkpoint.md (tables, bound, how it was measured) and checkpoint.json (every step).
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from bench.blocks import measure_apart, prepare
from bench.checkpoint_page import page_of
from bench.contenders.saving import BY_HAND, OURS, WAYS
from bench.groups import ROOT, Group, GroupFailed
from bench.measurement import begin, guarded
from bench.options import counts, parse, parser_of
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
    args = _arguments()
    measurement = begin("checkpoint", args, page_of)
    rounds = QUICK_ROUNDS if args.quick else ROUNDS
    settings = {"about": ABOUT, "state_bytes": STATE_BYTES, "rounds": rounds, "quiet": QUIET, "period": PERIOD}
    record, absent = measurement.record({**settings, "threads": args.threads}), dict[str, str]()
    keys = {threads: show_count(threads, "thread") for threads in args.threads}
    for threads, key in keys.items():

        def after(groups: Mapping[str, Group], threads: int = threads) -> Mapping[str, Any]:
            return {"saves": {name: saves_of(group, threads, rounds) for name, group in groups.items()}}

        with folder_for_files() as folder:
            ways = [way.contender(threads, folder, PERIOD) for way in WAYS if way.name not in absent]
            able, missing = prepare(ways, measurement.progress)
            absent |= missing
            # What comes before the first step counts as one.
            first, turn = ("time", {"num_steps": PERIOD - QUIET}), ("time", {"num_steps": PERIOD})
            measure_apart(record, key, {"threads": threads}, {1: able}, first, turn, rounds, measurement.progress, (OURS,), after)
    measurement.finish(
        ours=OURS,
        by_hand=BY_HAND,
        contenders={way.name: {"kind": way.kind, "about": way.about, "synced": way.synced} for way in WAYS},
        absent=absent,
        file_system=file_system(FILES.parent),
        not_measured=NOT_MEASURED,
        blocks={key: record.blocks[key] for key in keys.values()},
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


def _arguments() -> argparse.Namespace:
    usual = sorted({1, len(os.sched_getaffinity(0))})
    parser, shown = parser_of("checkpoint", __doc__), ",".join(map(str, usual))
    parser.add_argument(
        "--threads", type=partial(counts, least=1), default=usual, metavar="N,N", help=f"of the worker (here {shown})"
    )
    return parse(parser)


if __name__ == "__main__":
    sys.exit(guarded(main))
