"""What a checkpoint costs the training: Unisono against torch.save in the loop, Lightning's callback and DCP's async_save.

    python -m bench.checkpoint               # everything; about five minutes on cores that do nothing else
    python -m bench.checkpoint --quick       # a look whether it works: few saves, no judgement

Writes checkpoint.md (tables, bound, how it was measured) and checkpoint.json (every step).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from bench.blocks import idle_shares, prepare, start_all, take_turns
from bench.checkpoint_page import publish, show_threads
from bench.contenders.contender import Contender
from bench.contenders.saving import BY_HAND, OURS, WAYS
from bench.groups import ROOT, Conductor, Group, GroupFailed
from bench.machine import stolen_s
from bench.options import parse
from bench.progress import Progress
from bench.record import Record
from bench.report import one_line
from bench.rounds import Stopwatch, rounded
from bench.saving_case import ABOUT, STATE_BYTES
from bench.session import guarded, open_record, result_of
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
    if args.figure:
        print(publish(json.loads((args.out / "checkpoint.json").read_text()), args.out))
        return
    progress, watch = Progress(), Stopwatch()
    rounds = QUICK_ROUNDS if args.quick else ROUNDS
    settings = {"about": ABOUT, "state_bytes": STATE_BYTES, "rounds": rounds, "quiet": QUIET, "period": PERIOD}
    record = open_record("checkpoint", args, {**settings, "threads": args.threads}, progress)
    absent: dict[str, str] = {}
    for threads in args.threads:
        with folder_for_files() as folder:
            able, missing = prepare([way.contender(threads, folder, PERIOD) for way in WAYS if way.name not in absent], progress)
            absent |= missing
            measure(record, threads, able, rounds, progress)
    result = result_of(
        args,
        record,
        watch,
        ours=OURS,
        by_hand=BY_HAND,
        contenders={way.name: {"kind": way.kind, "about": way.about, "synced": way.synced} for way in WAYS},
        absent=absent,
        file_system=file_system(FILES.parent),
        not_measured=NOT_MEASURED,
        blocks={show_threads(threads): record.blocks[show_threads(threads)] for threads in args.threads},
    )
    print(publish(result, args.out))
    record.finish()
    progress.keep(f"written to {args.out}/checkpoint.md and .json after {watch}")


def measure(record: Record, threads: int, contenders: Sequence[Contender], num_rounds: int, progress: Progress) -> None:
    """Blocking: one block that `record` does not have yet, in processes of its own."""
    key = show_threads(threads)
    if key in record.blocks:
        return
    failed: dict[str, str] = {}
    with Conductor() as conductor:
        groups = start_all(conductor, contenders, 1, (OURS,), failed, progress)
        idle = idle_shares(groups)
        before = stolen_s()
        samples, dropped = take_turns(
            groups,
            opening=(("time", {"num_steps": PERIOD - QUIET}),),  # what comes before the first step counts as one
            turn=("time", {"num_steps": PERIOD}),
            closing=(),
            num_rounds=num_rounds,
            progress=progress,
            where=key,
            essential=(OURS,),
        )
        failed |= {name: one_line(reason) for name, reason in dropped.items()}
        record.add(
            key,
            {
                "threads": threads,
                "versions": {name: groups[name].versions for name in samples},
                "idle_share_of_a_core": idle,
                "stolen_cpu_s": round(stolen_s() - before, 2),
                "failed": failed,
                "saves": {name: saves_of(groups[name], threads, num_rounds) for name in samples},
                "times_us": rounded(samples),
            },
        )
    progress.keep(f"{key}: done")


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
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(
        prog="python -m bench.checkpoint",
        description="How long a save of 100 MB keeps one worker from training, and how long until it is on the disk: Unisono\n"
        "against torch.save, Lightning and torch.distributed.checkpoint. What they need is installed under .venv-bench/.",
        epilog="examples:\n"
        "  python -m bench.checkpoint                         the whole measurement, into docs/results/\n"
        "  python -m bench.checkpoint --quick                 few saves, into runs/bench/\n"
        "  python -m bench.checkpoint --threads 1             with one thread only\n"
        "  python -m bench.checkpoint --figure                the page again from docs/results/checkpoint.json\n"
        "An interrupted run goes on where it stopped when the same command is given again.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--threads",
        type=lambda text: [int(part) for part in text.split(",")],
        default=sorted({1, cores}),
        metavar="N,N",
        help=f"of the worker (default 1 and all cores, here {cores})",
    )
    return parse(parser)


if __name__ == "__main__":
    sys.exit(guarded(main))
