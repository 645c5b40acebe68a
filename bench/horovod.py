"""Programs written for Horovod: a training step with `DistributedOptimizer` against DistributedDataParallel, and 200 small tensors
in flight against 200 all-reduces of gloo, interleaved in one run. Horovod itself takes part where it can be built.

    python -m bench.horovod                  # everything; about ten minutes on two cores that do nothing else
    python -m bench.horovod --quick          # a look whether it works

Writes horovod.md (tables, bounds, how it was measured) and horovod.json (every turn).
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from bench.blocks import Ask, idle_shares, prepare, start_all, take_turns
from bench.contenders.contender import Contender
from bench.contenders.horovod import (
    ITSELF,
    NUM_TENSORS,
    OURS,
    TENSORS,
    TENSORS_ITSELF,
    TRAINING,
    TRAINING_ITSELF,
)
from bench.contenders.training import Way
from bench.groups import FOLDERS, Conductor
from bench.horovod_page import page_of
from bench.machine import stolen_s
from bench.measurement import begin, guarded
from bench.options import parse, parser_of
from bench.page import one_line
from bench.progress import Progress
from bench.record import Record
from bench.rounds import rounded
from bench.train import Effort, loss_after
from bench.training_cases import MNIST_CNN, write_data

WORKERS = 2
TENSOR_BYTES = 4000
EFFORT, QUICK = Effort(60, 1, 5), Effort(1, 1, 8)
ROUNDS, QUICK_ROUNDS, CALLS = 60, 3, 3
PARTS: Mapping[str, Sequence[Contender] | Sequence[Way]] = {
    "tensors": TENSORS,
    "training": TRAINING,
    "tensors, Horovod": TENSORS_ITSELF,
    "training, Horovod": TRAINING_ITSELF,
}
Asks = Sequence[Ask]

NOT_MEASURED = (
    "More workers than 2, more than one thread in a worker, more than one machine, GPUs.",
    "Real images: they are ten patterns with noise, of MNIST's shape, which every contender learns at once; only time is compared.",
    "Horovod over MPI or NCCL; tensors of other lengths than 4 kB.",
)


def main() -> None:
    """Local, blocking: measure and publish."""
    args = parse(parser_of("horovod", __doc__))
    measurement = begin("horovod", args, page_of)
    progress = measurement.progress
    effort, num_rounds = (QUICK, QUICK_ROUNDS) if args.quick else (EFFORT, ROUNDS)
    settings = {
        "training": asdict(effort),
        "case": asdict(MNIST_CNN),
        "tensors": {"rounds": num_rounds, "calls": CALLS, "number": NUM_TENSORS, "bytes": TENSOR_BYTES},
    }
    record = measurement.record(settings)
    absent: dict[str, str] = {}
    # Named as the conductor names its folder, which removes what killed runs left.
    with tempfile.TemporaryDirectory(prefix=f"{FOLDERS}{os.getpid()}-") as folder:
        data = Path(folder) / "data.npz"
        write_data(MNIST_CNN, data)
        for part, ways in PARTS.items():
            wanted = [way.contender(MNIST_CNN, data) if isinstance(way, Way) else way for way in ways]
            able, missing = prepare([one for one in wanted if one.name not in absent], progress)
            absent |= missing
            if part in record.blocks or (ITSELF in part.lower() and ITSELF in absent):
                continue
            if isinstance(ways[0], Way):
                opening: Asks = [("time", {"num_epochs": effort.warm_up})]
                measure(record, part, able, opening, ("time", {"num_epochs": effort.epochs}), (), effort.rounds, progress)
            else:
                opening = [("prepare", {"num_bytes": NUM_TENSORS * TENSOR_BYTES}), ("verify", {}), ("time", {"num_calls": 5})]
                closing: Asks = [("verify", {}), ("drop", {})]
                measure(record, part, able, opening, ("time", {"num_calls": CALLS}), closing, num_rounds, progress)
    measurement.finish(
        ours=OURS,
        contenders={part: {one.name: {"kind": one.kind, "about": one.about} for one in PARTS[part]} for part in record.blocks},
        absent=absent,
        not_measured=NOT_MEASURED,
        blocks={part: record.blocks[part] for part in PARTS if part in record.blocks},
    )


def measure(
    record: Record,
    part: str,
    contenders: Sequence[Contender],
    opening: Asks,
    turn: Ask,
    closing: Asks,
    num_rounds: int,
    progress: Progress,
) -> None:
    """Blocking: one part, in processes of its own."""
    failed: dict[str, str] = {}
    with Conductor() as conductor:
        groups = start_all(conductor, contenders, WORKERS, (OURS,), failed, progress)
        idle, before = idle_shares(groups), stolen_s()
        samples, dropped = take_turns(groups, opening, turn, closing, num_rounds, progress, part, (OURS,))
        block = {
            "versions": {name: groups[name].versions for name in samples},
            "idle_share_of_a_core": idle,
            "stolen_cpu_s": round(stolen_s() - before, 2),
            "failed": {name: one_line(reason) for name, reason in (failed | dropped).items()},
            "times_us": rounded(samples),
        }
        if part.startswith("training"):
            block["loss_after"] = {name: loss_after(groups[name]) for name in samples}
        record.add(part, block)
    progress.keep(f"{part}: {', '.join(f'{name} {sample.median:.0f}' for name, sample in samples.items())} us")


if __name__ == "__main__":
    sys.exit(guarded(main))
