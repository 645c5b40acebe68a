"""The page of `bench.horovod`."""

from __future__ import annotations

from collections.abc import Mapping

from bench.bounds import Asked, told
from bench.page import INTERLEAVED, Page, Result, Table, compared
from bench.rounds import Samples, restored

BOUNDS: Mapping[str, Asked] = {"training": Asked("ddp", times_as_fast=1.0), "tensors": Asked("gloo", times_as_fast=5.0)}


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
