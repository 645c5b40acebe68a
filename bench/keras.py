"""A step of a Keras model, one thread in each worker: `model.fit` through `un.keras.Strategy` against plain `model.fit`, two
workers against one, and against tf.distribute, on each backend, interleaved in one run.

    python -m bench.keras                    # everything; about a quarter of an hour on two cores that do nothing else
    python -m bench.keras --quick            # a look whether it works: few epochs, no judgement
    python -m bench.keras --cases mlp --backends jax --out runs/look

Writes keras.md (tables, bounds, how it was measured) and keras.json (every epoch).
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.blocks import measure_apart
from bench.contenders.keras import OURS, PLAIN, WAYS, Way, missing
from bench.groups import FOLDERS, Group, GroupFailed
from bench.keras_cases import BACKENDS, CASES, write_data
from bench.keras_page import page_of
from bench.measurement import begin, guarded
from bench.options import parse, parser_of, some_of
from bench.progress import Progress
from bench.record import Record
from bench.train import LEARNED, Effort
from bench.training_cases import Case

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
    args = _arguments()
    measurement = begin("keras", args, page_of)
    effort = QUICK if args.quick else FULL
    absent = {backend: why for backend in args.backends if (why := missing(backend))}
    blocks = [(CASES[name], backend) for name in args.cases for backend in args.backends if backend not in absent]
    wanted = [way for way in WAYS if way.name in args.only]
    settings = {
        "effort": {name: dataclasses.asdict(effort[name]) for name in args.cases},
        "cases": {name: dataclasses.asdict(CASES[name]) for name in args.cases},
        "contenders": [way.name for way in wanted],
    }
    record = measurement.record(settings)
    # Named as the conductor names its folder, which removes what killed runs left.
    with tempfile.TemporaryDirectory(prefix=f"{FOLDERS}{os.getpid()}-") as folder:
        for case, backend in blocks:
            data = Path(folder) / f"{case.name}.npz"
            write_data(case, data)
            measure(record, case, backend, wanted, data, effort[case.name], measurement.progress)
    measurement.finish(
        contenders={way.name: {"kind": way.kind, "about": way.about, "workers": way.workers} for way in wanted},
        absent=absent,
        not_measured=NOT_MEASURED,
        blocks={block_key(case, backend): record.blocks[block_key(case, backend)] for case, backend in blocks},
    )


def measure(
    record: Record, case: Case, backend: str, wanted: Sequence[Way], data: Path, effort: Effort, progress: Progress
) -> None:
    """Blocking: one block that `record` does not have yet."""
    ways = [way for way in wanted if case.name in way.cases and backend in way.backends]

    def after(groups: Mapping[str, Group]) -> Mapping[str, Any]:
        return {"after": {name: state_after(group) for name, group in groups.items()}, "copies": groups[OURS].ask("count")[0]}

    measure_apart(
        record,
        block_key(case, backend),
        {"case": case.name, "backend": backend},
        {
            num: [way.contender(backend, case, data) for way in ways if way.workers == num]
            for num in sorted({way.workers for way in ways})
        },
        ("time", {"num_epochs": effort.warm_up}),
        ("time", {"num_epochs": effort.epochs}),
        effort.rounds,
        progress,
        ESSENTIAL,
        after,
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


def _arguments() -> argparse.Namespace:
    parser, names = parser_of("keras", __doc__), [way.name for way in WAYS]
    parser.add_argument("--cases", type=some_of(list(CASES), ","), default=list(CASES), metavar="C,C", help=", ".join(CASES))
    parser.add_argument("--backends", type=some_of(BACKENDS, ","), default=list(BACKENDS), metavar="B,B", help=", ".join(BACKENDS))
    parser.add_argument("--only", type=some_of(names, ";", ESSENTIAL), default=names, metavar="NAME;NAME", help="; ".join(names))
    return parse(parser)


if __name__ == "__main__":
    sys.exit(guarded(main))
