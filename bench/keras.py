"""A step of a Keras model, one thread in each worker: `model.fit` through `un.keras.Strategy` against plain `model.fit`, two
workers against one, and against tf.distribute, on each backend, interleaved in one run.

    python -m bench.keras                    # everything; about a quarter of an hour on two cores that do nothing else
    python -m bench.keras --quick            # a look whether it works: few epochs, no judgement
    python -m bench.keras --cases mlp --backends jax --out runs/look

Writes keras.md (tables, bounds, how it was measured) and keras.json (every epoch).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from bench.blocks import Blocks, described
from bench.bounds import Requirement, told
from bench.contenders.contender import Contender
from bench.contenders.keras import OURS, OURS_TWICE, PEER_TWICE, PLAIN, WAYS, Way, missing
from bench.groups import Group, GroupFailed, temporary_folder
from bench.measurement import begin, guarded
from bench.options import add_choice, parse, parser_of
from bench.page import INTERLEAVED, Page, Result, Table, compared
from bench.rounds import Samples, ratio, restored
from bench.train import LEARNED, Effort, efforts, settings_of
from bench.training_cases import BACKENDS, KERAS_CASES, Case, write_data

ESSENTIAL = (OURS, PLAIN)
FULL: Mapping[str, Effort] = {"mlp": Effort(60, 1, 4), "mnist_cnn": Effort(24, 1, 2)}
QUICK: Mapping[str, Effort] = {"mlp": Effort(2, 1, 3), "mnist_cnn": Effort(1, 1, 5)}

NOT_MEASURED = (
    "More workers than 2, more than one thread in a worker, more than one machine, GPUs.",
    "Real images: all samples are ten patterns with noise, which every contender learns at once; only time is compared.",
    "Inputs other than arrays in memory (tf.data, PyDataset, DataLoader), validation, callbacks, backups, the progress bar.",
    "Start-up and compilation, models that XLA compiles on TensorFlow (`jit_compile=True`; on CPUs Keras leaves it out by itself), "
    "mixed precision, `steps_per_execution` above 1, which Keras has and we refuse.",
    "`tf.distribute` through `model.fit`, which ends with an error in this version of Keras; other ways to several workers: "
    "`keras.distribution` on JAX, DistributedDataParallel around a Keras model on PyTorch.",
    "Copies that a framework makes inside a compiled step, e.g. when it cuts our vectors into weights.",
)


def main() -> None:
    """Local, blocking: measure what is asked for and publish it."""
    parser = parser_of("keras", __doc__)
    add_choice(parser, "--cases", list(KERAS_CASES))
    add_choice(parser, "--backends", BACKENDS)
    add_choice(parser, "--only", [way.name for way in WAYS], ";", ESSENTIAL)
    args = parse(parser)
    effort, wanted = QUICK if args.quick else FULL, [way for way in WAYS if way.name in args.only]
    settings = {**settings_of((KERAS_CASES[name] for name in args.cases), effort), "contenders": args.only}
    blocks = Blocks(begin("keras", args, page_of), settings, ESSENTIAL)
    blocks.absent |= {backend: why for backend in args.backends if (why := missing(backend))}
    with temporary_folder() as folder:
        for name, backend in product(args.cases, args.backends):
            if backend not in blocks.absent:
                measure(blocks, KERAS_CASES[name], backend, wanted, effort[name], folder)
    blocks.finish(contenders=described(wanted, "workers"), not_measured=NOT_MEASURED)


def measure(blocks: Blocks, case: Case, backend: str, wanted: Sequence[Way], effort: Effort, folder: Path) -> None:
    """Blocking: one block, whose data are written into the folder."""
    data = folder / f"{case.name}.npz"
    write_data(case, data)
    contenders: dict[int, list[Contender]] = {}
    for way in sorted(wanted, key=lambda way: way.workers):
        if case.name in way.cases and backend in way.backends:
            contenders.setdefault(way.workers, []).append(way.given(backend, case.name, data))

    def after(groups: Mapping[str, Group]) -> Mapping[str, Any]:
        return {"after": {name: state_after(group) for name, group in groups.items()}, "copies": groups[OURS].ask("count")[0]}

    blocks.apart(
        block_key(case, backend),
        {"case": case.name, "backend": backend},
        contenders,
        [("time", {"num_epochs": effort.warm_up})],
        ("time", {"num_epochs": effort.epochs}),
        effort.rounds,
        after=after,
    )


def state_after(group: Group) -> dict[str, float]:
    """Blocking: the mean loss that the training has reached and the cores that its first worker used; refuses one that has not
    learned, or whose replicas differ."""
    states: list[dict[str, Any]] = group.ask("state")
    if len({state["weights"] for state in states}) > 1:
        raise GroupFailed(f"{group.name}: the ranks hold different weights, so they did not train together")
    loss = float(states[0]["loss"])
    if not loss < LEARNED:
        raise GroupFailed(f"{group.name}: the loss is {loss:.3f} at the end; it did not learn")
    return {"loss": loss, "cores": float(states[0]["cores"])}


def block_key(case: Case, backend: str) -> str:
    """Pure: what a block is called in the raw data."""
    return f"{case.name} on {backend}"


ASKED = Requirement("plain", times_as_long=1.1)
"""On one worker, of every model on every backend."""

Measured = Mapping[str, tuple[Mapping[str, Any], Mapping[str, Samples]]]


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


def _two_workers(blocks: Measured) -> list[Table]:
    """The same global batch on two workers, against one and against tf.distribute."""
    rows = []
    for key, (_, samples) in blocks.items():
        if OURS_TWICE in samples:
            medians = [f"{samples[name].median:.0f}" if name in samples else "-" for name in (OURS, OURS_TWICE, PEER_TWICE)]
            faster = [str(ratio(samples[name], samples[OURS_TWICE])) if name in samples else "-" for name in (OURS, PEER_TWICE)]
            rows.append([key, *medians, *faster])
    header = ["a step, us", "unisono, 1 worker", OURS_TWICE, PEER_TWICE, "2 times as fast as 1", "times as fast as tf.distribute"]
    return [Table(header, rows, "The same global batch on two workers (no bound):")] if rows else []


def _copies(blocks: Measured) -> list[Table]:
    """Number of arrays and their bytes, of one step on one worker."""

    def amount(counted: Mapping[str, float]) -> str:
        return f"{counted['num']:.3g} ({counted['bytes'] / 1e3:.1f})" if counted["num"] else "0"

    rows = [[key, *map(amount, block["copies"].values())] for key, (block, _) in blocks.items()]
    names = next((list(block["copies"]) for block, _ in blocks.values()), [])
    return [Table(["arrays in a step (KB)", *names], rows, "What moves between our vectors and the framework:")] if rows else []


if __name__ == "__main__":
    sys.exit(guarded(main))
