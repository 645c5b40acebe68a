"""The page of `bench.keras`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.bounds import Asked, told
from bench.contenders.keras import OURS, OURS_TWICE, PEER_TWICE, PLAIN
from bench.page import INTERLEAVED, Page, Result, Table, compared
from bench.rounds import Samples, ratio, restored
from bench.train_page import efforts

ASKED = Asked("plain", times_as_long=1.1)
"""On one worker, of every model on every backend."""

Blocks = Mapping[str, tuple[Mapping[str, Any], Mapping[str, Samples]]]


def page_of(result: Result) -> Page:
    """Pure: the page of these raw data."""
    blocks = {key: (block, restored(block["times_us"])) for key, block in result["blocks"].items()}
    kinds = {name: one["kind"] for name, one in result["contenders"].items()}
    bounds = [ASKED.judge(key, samples, kinds, OURS) for key, (_, samples) in blocks.items()]
    return Page(
        question="What does a step of `model.fit` through `un.keras.Strategy` cost on each backend, against plain Keras and "
        "tf.distribute?",
        answer=f"A step of Unisono on one worker: {told(bounds)}.",
        result=result,
        setup="The same model, optimiser, data in memory, global batch and number of steps for all, one thread to compute in each "
        "worker. Every contender has processes of its own on each backend, all alive during the whole block and asleep unless it "
        "is their turn. That they learn, and that the replicas of one training hold equal weights, is checked at the end.",
        tables=[*(_one_worker(result, key, *of_key) for key, of_key in blocks.items()), *_two_workers(blocks), *_copies(blocks)],
        bounds=bounds,
        reading=[
            *efforts(result),
            "What is timed is from the end of an epoch to the end of the next, as a callback sees it. What is done once an epoch "
            "counts more here than it would in longer epochs.",
            INTERLEAVED,
            "Cores: CPU time of the first worker's process divided by the time that passed. Above 1 Python works beside the "
            "framework, which one worker can do here on the second core; two workers have one core each.",
            "Arrays: *packed* are copies of our vectors that the framework may have; batches, and vectors where it shares memory, "
            "enter as they lie, or are copied again; its results are looked at where they lie, or copied on leaving; *stored* is "
            "what is copied from them into our gradients and statistics. The optimiser moves our own vector, in its place. What "
            "JAX does with an array of NumPy, whether it reads it there or copies it again, is not counted.",
        ],
        versions={
            f"{name}, {block['backend']}": of_name for block, _ in blocks.values() for name, of_name in block["versions"].items()
        },
        raw="`times_us[contender][rank][round][epoch]`, the time of an epoch divided by its steps; of several workers of Unisono "
        "the first one alone knows it, and the others say 0",
    )


def _one_worker(result: Result, key: str, block: Mapping[str, Any], samples: Mapping[str, Samples]) -> Table:
    """Against plain Keras."""
    case = result["settings"]["cases"][block["case"]]
    about = f"A step of `{block['case']}`: {case['about']}; global batch {case['global_batch']}, {case['optimizer']}; 1 worker."
    alone = {name: one for name, one in samples.items() if result["contenders"][name]["workers"] == 1}
    cores, loss = (lambda name: f"{block['after'][name]['cores']:.2f}"), (lambda name: f"{block['after'][name]['loss']:.3f}")
    return compared(key, alone, PLAIN, about, {"cores": cores, "loss at the end": loss})


def _two_workers(blocks: Blocks) -> list[Table]:
    """The same global batch on two workers, against one and against tf.distribute."""
    rows = []
    for key, (_, samples) in blocks.items():
        if OURS_TWICE in samples:
            medians = [f"{samples[name].median:.0f}" if name in samples else "-" for name in (OURS, OURS_TWICE, PEER_TWICE)]
            faster = [str(ratio(samples[name], samples[OURS_TWICE])) if name in samples else "-" for name in (OURS, PEER_TWICE)]
            rows.append([key, *medians, *faster])
    header = ["a step, us", "unisono, 1 worker", OURS_TWICE, PEER_TWICE, "2 times as fast as 1", "times as fast as tf.distribute"]
    return [Table(header, rows, "The same global batch on two workers (no bound):")] if rows else []


def _copies(blocks: Blocks) -> list[Table]:
    """Number of arrays and their bytes, of one step on one worker."""

    def amount(counted: Mapping[str, float]) -> str:
        return f"{counted['num']:.3g} ({counted['bytes'] / 1e3:.1f})" if counted["num"] else "0"

    rows = [[key, *map(amount, block["copies"].values())] for key, (block, _) in blocks.items()]
    names = next((list(block["copies"]) for block, _ in blocks.values()), [])
    return [Table(["arrays in a step (KB)", *names], rows, "What moves between our vectors and the framework:")] if rows else []
