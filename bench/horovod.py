"""Programs written for Horovod: a training step with `DistributedOptimizer` against DistributedDataParallel, and 200 small tensors
in flight against 200 all-reduces of gloo, interleaved in one run. Horovod itself takes part where it can be built.

    python -m bench.horovod                  # everything; about ten minutes on two cores that do nothing else
    python -m bench.horovod --quick          # a look whether it works

Writes horovod.md (tables, bounds, how it was measured) and horovod.json (every turn).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from bench.blocks import CLOSING, Ask, Blocks, described
from bench.bounds import Requirement, told
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
from bench.groups import temporary_folder
from bench.measurement import begin, guarded
from bench.options import parse, parser_of
from bench.page import INTERLEAVED, Page, Result, Table, compared
from bench.rounds import Samples, restored
from bench.train import Effort, losses_after
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

NOT_MEASURED = (
    "More workers than 2, more than one thread in a worker, more than one machine, GPUs.",
    "Real images: they are ten patterns with noise, of MNIST's shape, which every contender learns at once; only time is compared.",
    "Horovod over MPI or NCCL; tensors of other lengths than 4 kB.",
)


def main() -> None:
    """Local, blocking: measure and publish."""
    args = parse(parser_of("horovod", __doc__))
    effort, num_rounds = (QUICK, QUICK_ROUNDS) if args.quick else (EFFORT, ROUNDS)
    settings = {
        "training": asdict(effort),
        "case": asdict(MNIST_CNN),
        "tensors": {"rounds": num_rounds, "calls": CALLS, "number": NUM_TENSORS, "bytes": TENSOR_BYTES},
    }
    blocks = Blocks(begin("horovod", args, page_of), settings, (OURS,))
    with temporary_folder() as folder:
        data = folder / "data.npz"
        write_data(MNIST_CNN, data)
        for part, ways in PARTS.items():
            able = {WORKERS: blocks.able(way.given(MNIST_CNN.name, data) if isinstance(way, Way) else way for way in ways)}
            if ITSELF in part.lower() and ITSELF in blocks.absent:
                continue
            if isinstance(ways[0], Way):
                opening: list[Ask] = [("time", {"num_epochs": effort.warm_up})]
                turn = ("time", {"num_epochs": effort.epochs})
                blocks.apart(part, {}, able, opening, turn, effort.rounds, after=losses_after)
            else:
                opening = [("prepare", {"num_bytes": NUM_TENSORS * TENSOR_BYTES}), ("verify", {}), ("time", {"num_calls": 5})]
                blocks.apart(part, {}, able, opening, ("time", {"num_calls": CALLS}), num_rounds, CLOSING)
    measured = blocks.record.asked()
    blocks.finish(ours=OURS, contenders={part: described(PARTS[part]) for part in measured}, not_measured=NOT_MEASURED)


BOUNDS: Mapping[str, Requirement] = {
    "training": Requirement("ddp", times_as_fast=1.0),
    "tensors": Requirement("gloo", times_as_fast=5.0),
}


def page_of(result: Result) -> Page:
    """Pure: the page of these raw data."""
    blocks, settings = result["blocks"], result["settings"]
    samples = {part: restored(block["times_us"]) for part, block in blocks.items()}
    kinds = {part: {name: one["kind"] for name, one in of_part.items()} for part, of_part in result["contenders"].items()}
    bounds = [asked.judge(part, samples[part], kinds[part], result["ours"]) for part, asked in BOUNDS.items() if part in samples]
    training, tensors = settings["training"], settings["tensors"]
    return Page(
        question="How fast are programs written for Horovod, against DistributedDataParallel, gloo and Horovod itself?",
        answer=f"With `unisono.horovod`: {told(bounds)}.",
        result=result,
        setup="Every contender has its own processes, one thread in each, all alive during a part and, but for Horovod's, asleep "
        "unless it is their turn. Horovod's look for work all the time, which disturbs the others; so it is measured apart. That "
        "sums are right, that trainings learn, and that the replicas of one hold equal weights, is checked.",
        tables=[_table(result, part, found) for part, found in samples.items()],
        bounds=bounds,
        reading=[
            f"Training: {training['warm_up']} epochs to warm up, then {training['rounds']} rounds; a turn is one epoch that is not "
            f"timed and {training['epochs']} timed of {settings['case']['steps']} steps.",
            f"Tensors: {tensors['rounds']} rounds of {tensors['calls']} timed calls; a call sums all {tensors['number']} tensors.",
            "The time is that of the slowest rank. Where two contenders are of the kind that a bound names, the faster one counts.",
            INTERLEAVED,
        ],
        versions={f"{name} ({part})": found for part, block in blocks.items() for name, found in block["versions"].items()},
        raw="`times_us[contender][rank][round][turn]`",
    )


def _table(result: Result, part: str, samples: Mapping[str, Samples]) -> Table:
    case, tensors = result["settings"]["case"], result["settings"]["tensors"]
    about = f"{tensors['number']} tensors of {tensors['bytes']} bytes summed, 2 workers."
    if part.startswith("training"):
        about = f"A step of `{case['name']}`: {case['about']}; global batch {case['global_batch']}, {case['optimizer']}, 2 workers."
    return compared(part, samples, result["ours"], about)


if __name__ == "__main__":
    sys.exit(guarded(main))
