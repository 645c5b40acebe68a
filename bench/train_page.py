"""The page of `bench.train`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.bounds import Asked, told
from bench.page import INTERLEAVED, Page, Result, Table, compared
from bench.rounds import Samples, difference, restored
from bench.sizes import show_count

BOUNDS: Mapping[str, tuple[Asked, ...]] = {
    "mnist_cnn, 1 worker": (Asked("hand", times_as_long=1.03),),
    "mnist_cnn, 2 workers": (Asked("ddp", times_as_fast=1.0),),
    "digits, 1 worker": (Asked("hand", longer_us=100.0),),
    "digits, 2 workers": (Asked("ddp", times_as_fast=2.0), Asked("lightning", times_as_fast=2.0)),
}


def page_of(result: Result) -> Page:
    """Pure: the page of these raw data."""
    blocks = {key: (block, restored(block["times_us"])) for key, block in result["blocks"].items()}
    kinds = {name: one["kind"] for name, one in result["contenders"].items()}
    bounds = [
        asked.judge(key, samples, kinds, result["ours"]) for key, (_, samples) in blocks.items() for asked in BOUNDS.get(key, ())
    ]
    return Page(
        question="What does a step of training cost, against loops by hand, DistributedDataParallel, Lightning and Accelerate?",
        answer=f"A step of Unisono: {told(bounds)}.",
        result=result,
        setup="The same model, optimiser, data in memory, global batch and number of steps for all, one thread in each worker. "
        "Every contender has its own processes, all alive during the whole block and asleep unless it is their turn. That they "
        "learn, and that the replicas of one training hold equal weights, is checked at the end.",
        tables=[_table(result, block, samples) for block, samples in blocks.values()],
        bounds=bounds,
        reading=[
            *efforts(result),
            "What is timed is from the end of an epoch to the end of the next: with Unisono also the line on the console, the "
            "lines of metrics.jsonl and the sums of the epoch. No evaluation. The time of an epoch is that of its slowest rank.",
            INTERLEAVED,
            "Where two contenders are of the kind that a bound names, the faster one counts.",
            "Numbers too small for float32's usual form count as zero in all processes (`torch.set_flush_denormal`): how many a "
            "training makes is chance, and they slow it down.",
        ],
        raw="`times_us[contender][rank][round][epoch]`, the time of an epoch divided by its steps",
    )


def efforts(result: Result) -> list[str]:
    """Pure: how often each case was timed."""
    cases = result["settings"]["cases"]
    return [
        f"{name}: {one['warm_up']} epochs to warm up, then {one['rounds']} rounds; a turn is one epoch that is not timed and "
        f"{one['epochs']} timed of {cases[name]['steps']} steps."
        for name, one in result["settings"]["effort"].items()
    ]


def _table(result: Result, block: Mapping[str, Any], samples: Mapping[str, Samples]) -> Table:
    """One worker is compared with the loop by hand, several with ours."""
    base = result["by_hand"] if result["by_hand"] in samples else result["ours"]

    def longer(name: str) -> str:
        return "0" if name == base else f"{difference(samples[name], samples[base]):.0f}"

    columns = {f"longer than {base}, us": longer, "loss at the end": lambda name: f"{block['loss_after'][name]:.3f}"}
    case = result["settings"]["cases"][block["case"]]
    about = f"A step of `{block['case']}`: {case['about']}; global batch {case['global_batch']}, {case['optimizer']}."
    return compared(show_count(block["workers"], "worker"), samples, base, about, columns)
