"""JEDI-net on one worker and on two, against a loop without any communication layer; and its accuracy, against the best there is.

    python -m bench.jets                 # speed; about eight minutes on two cores that do nothing else
    python -m bench.jets --accuracy      # whole trainings in PyTorch and in Keras on each backend; about seven minutes
    python -m bench.jets --quick         # a look whether it works; with --accuracy too

Each turn is one `unisono train examples/jedi_net.py`, or one plain loop. Writes jets.md, jets.json (every run) and jets.png; what
the other of the two parts has left there stays.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from typing import Any

from bench.groups import Conductor, GroupFailed, Launch, Seat
from bench.jets_cases import FORMS, FULL, LOOPS, PLAIN, QUICK, ROWS, WORKERS, Case
from bench.jets_page import last_loss, page_of
from bench.machine import stolen_s
from bench.measurement import Measurement, begin, guarded
from bench.options import parse, parser_of
from bench.record import Record
from bench.rounds import orders
from bench.trainings import on_this_machine, trained
from examples.jets import best_accuracy

TORCH, KERAS = "examples/jedi_net.py", "examples/jedi_net_keras.py"
LIMIT_S, SEED = 900.0, 20
SAME_LOSS = 0.05
"""Relative difference that float noise may make in so few steps."""
NUM_WORKERS = 2
WHOLE: Mapping[str, Any] = {"num_jets": 50_000, "bound_jets": 5000, "options": ()}
"""Jets to learn and to be judged by, as the example has them; jets that the bound is estimated from."""
QUICK_WHOLE: Mapping[str, Any] = {"num_jets": 1280, "bound_jets": 300, "options": ("--epochs", "2")}
PACKAGES = ("keras", "torch", "tensorflow-cpu", "jax")

SPEED_NOT_MEASURED = (
    "Speed: more workers than 2, more than one thread in a worker, several machines, GPUs; batches that grow with the workers.",
    "Start, evaluations and checkpoints, which a loop without them does not have: only steps are timed, and few of them.",
    "The speed of the form in Keras (what a step of a Keras model costs: keras.md), of jets that must be read from files.",
)
ACCURACY_NOT_MEASURED = (
    "Accuracy: one run of each form with one seed; how far it moves from seed to seed is not known.",
    "Accuracy at the published size of 100 particles, where an epoch takes about 40 times as long; with real jets, whose best "
    "accuracy nobody knows.",
    "Longer trainings, more jets and larger networks, which may come closer to the bound.",
)


def main() -> None:
    """Local, blocking: measure one of the two parts, and publish what is known of both."""
    parser = parser_of("jets", __doc__)
    parser.add_argument("--accuracy", action="store_true", help="whole trainings against the best accuracy, instead of speed")
    args = parse(parser)
    measurement = begin("jets", args, page_of)
    if args.accuracy:
        blocks = _accuracies(args, measurement).blocks
        measurement.finish(
            "accuracy",
            not_measured=ACCURACY_NOT_MEASURED,
            versions={name: version(name) for name in PACKAGES},
            bound=blocks["bound"],
            runs=[blocks[form] for form in FORMS],
        )
    else:
        measurement.finish("speed", not_measured=SPEED_NOT_MEASURED, runs=list(_speeds(args, measurement).blocks.values()))


def _speeds(args: argparse.Namespace, measurement: Measurement) -> Record:
    """Local, blocking: samples per second of every row, at each size."""
    cases = QUICK if args.quick else FULL
    record = measurement.record({"cases": [asdict(case) for case in cases], "same_loss": SAME_LOSS}, "speed")
    for case in cases:
        for number, order in enumerate(orders(ROWS, case.rounds, SEED)):
            keys = {row: f"{case.name}, {row}, round {number}" for row in order}
            for row, key in keys.items():
                if record.lacks(key):
                    record.add(key, turn(row, case))
            check_same([record.blocks[keys[row]] for row in (PLAIN, *WORKERS)])
    return record


def turn(row: str, case: Case) -> dict[str, Any]:
    """Local, blocking: one training by `unisono train`, or the plain loops of the row."""
    before, found = stolen_s(), {"particles": case.particles, "row": row}
    if row in WORKERS:
        run = trained(["-n", str(WORKERS[row]), *case.options()], LIMIT_S, task=TORCH)
        found |= {"samples_per_s": after_first([epoch["samples_per_s"] for epoch in run["epochs"]]), **run}
    else:
        loops = run_loops((case.particles, case.num_jets, case.epochs), LOOPS[row], LIMIT_S)
        found |= {"samples_per_s": sum(loop["samples_per_s"] for loop in loops), "loops": loops}
    return {**found, "stolen_cpu_s": round(stolen_s() - before, 2)}


def run_loops(sizes: Sequence[int], num_loops: int, limit_s: float) -> list[dict[str, Any]]:
    """Local, blocking: plain loops that are let go at the same moment, each with its part of a batch; what each of them says."""

    def launches(num_ranks: int, seat: Seat) -> list[Launch]:
        program = [sys.executable, "-m", "bench.ranks.jets_plain", *seat.arguments, *map(str, sizes)]
        return [Launch([*program, str(part), str(num_ranks)]) for part in range(num_ranks)]

    with Conductor() as conductor:
        group = conductor.start("plain loops", num_loops, launches)
        group.ask("warm_up", limit_s)
        return group.ask("time", limit_s)


def after_first(of_epochs: Sequence[float]) -> float:
    """Pure: samples per second of all epochs but the first together; all have as many samples."""
    timed = of_epochs[1:]
    return len(timed) / sum(1 / value for value in timed)


def check_same(runs: Sequence[Mapping[str, Any]]) -> None:
    """Pure: refuses a loop that did not learn what the workers of the same round did."""
    losses = {run["row"]: last_loss(run) for run in runs}
    if max(losses.values()) > (1 + SAME_LOSS) * min(losses.values()):
        shown = ", ".join(f"{row} {loss:.4f}" for row, loss in losses.items())
        raise GroupFailed(f"validation losses at the end differ by more than float noise: {shown}; this is not the same training")


def _accuracies(args: argparse.Namespace, measurement: Measurement) -> Record:
    """Local, blocking: one whole training of each form, and what the best classifier reaches."""
    effort = QUICK_WHOLE if args.quick else WHOLE
    options = ["-n", str(NUM_WORKERS), "--set", f"data.num_jets={effort['num_jets']}", *effort["options"]]
    record = measurement.record({**effort, "workers": NUM_WORKERS}, "accuracy")
    if record.lacks("bound"):
        record.add("bound", dict(zip(("best", "error"), best_accuracy(num_jets=effort["bound_jets"]), strict=True)))
    for form, backend in FORMS.items():
        if record.lacks(form):
            found = trained(options, LIMIT_S, partial(_commands, backend), TORCH if backend is None else KERAS)
            record.add(form, {"form": form, **found})
            measurement.progress.keep(
                f"{form}: {100 * found['metrics']['test_accuracy']:.2f} % of the test jets after {measurement.watch}"
            )
    return record


def _commands(backend: str | None, command: Sequence[str]) -> list[Sequence[str]]:
    variables = [] if backend is None else ["env", f"KERAS_BACKEND={backend}"]
    return [[*variables, *one] for one in on_this_machine(command)]


if __name__ == "__main__":
    sys.exit(guarded(main))
