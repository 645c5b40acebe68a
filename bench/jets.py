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
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from math import hypot, sqrt
from typing import Any

import numpy as np

from bench.figure import COLOURS, MARKERS, Line, Panel, Picture
from bench.groups import Conductor, GroupFailed, Launch, RankSlot, one_by_one
from bench.machine import stolen_s
from bench.measurement import Measurement, begin, guarded
from bench.options import parse, parser_of
from bench.page import INTERLEAVED, Page, Result, Table
from bench.record import Record
from bench.rounds import Estimate, Floats, estimate, orders
from bench.training_cases import BACKENDS
from bench.trainings import on_this_machine, trained
from examples.jets import best_accuracy

PLAIN, ONE, AGAIN, TWO, APART = "no communication layer", "1 worker", "1 worker A/A", "2 workers", "2 loops that never talk"
WORKERS: Mapping[str, int] = {ONE: 1, AGAIN: 1, TWO: 2}
LOOPS: Mapping[str, int] = {PLAIN: 1, APART: 2}
ROWS = (PLAIN, ONE, AGAIN, TWO, APART)

FORMS: Mapping[str, str | None] = {"PyTorch": None, **{f"Keras on {backend}": backend for backend in BACKENDS}}
"""Of the network, with the backend of Keras."""
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


@dataclass(frozen=True)
class Case:
    """One size. The first epoch is for warming up."""

    particles: int
    num_jets: int
    """Of which four fifths are for training."""
    epochs: int
    rounds: int

    @property
    def name(self) -> str:
        return f"{self.particles} particles"

    def options(self) -> list[str]:
        """Pure: of `unisono train`."""
        sizes = (f"model.particles={self.particles}", f"data.particles={self.particles}", f"data.num_jets={self.num_jets}")
        return ["--epochs", str(self.epochs), *(part for size in sizes for part in ("--set", size))]


FULL = (Case(particles=16, num_jets=6400, epochs=3, rounds=6), Case(particles=100, num_jets=320, epochs=3, rounds=5))
"""The default size of the example, and the published one, where a step takes 40 times as long."""
QUICK = (Case(particles=16, num_jets=640, epochs=2, rounds=1), Case(particles=100, num_jets=160, epochs=2, rounds=1))


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

    def launches(num_ranks: int, slot: RankSlot) -> list[Launch]:
        return one_by_one(slot.program("jets_plain", *map(str, sizes)), num_ranks)

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


TRAIN_SHARE, TEST_SHARE = 0.8, 0.1
"""Of all jets; as many as for the test are for validation."""
BATCH = 128
"""The example's own."""
COMMANDS = {"speed": "python -m bench.jets", "accuracy": "python -m bench.jets --accuracy"}
"""Each part is measured by a command of its own; a result has one of them or both."""


def page_of(result: Result) -> Page:
    """Pure: the page of these raw data."""
    pages = [page(result[name]) for name, page in (("speed", speed), ("accuracy", accuracy)) if name in result]
    panels = {"speed": _speed_panel, "accuracy": _accuracy_panel}
    return Page(
        question="How much faster are two workers with a graph network, and how near does it come to the best accuracy?",
        answer=" ".join(page.answer for page in pages),
        setup="JEDI-net tells jets apart ([what it is](../how-to/jets.md)), on made-up jets whose best reachable accuracy is "
        "known.",
        picture=Picture("JEDI-net: speed-up, and accuracy", [[panels[name](result[name]) for name in COMMANDS if name in result]]),
        parts=pages,
        not_measured=[
            f"{name.capitalize()}: not measured yet (`{command}`)." for name, command in COMMANDS.items() if name not in result
        ],
        raw="`speed.runs[]` and `accuracy.runs[]`, with every epoch",
    )


def speed(part: Result) -> Page:
    """Pure: one and two workers, against plain loops."""
    faster = [f"{speed_ups(runs, ONE)[TWO]} times ({particles} particles)" for particles, runs in by_size(part).items()]
    efforts = []
    for case in part["settings"]["cases"]:
        steps = -(-round(TRAIN_SHARE * case["num_jets"]) // BATCH)
        timed = (case["epochs"] - 1) * steps
        efforts.append(f"{case['particles']} particles: rounds {case['rounds']}, steps to warm up {steps}, timed {timed}.")
    return Page(
        question="How much faster are two workers?",
        answer=f"Two workers are {' and '.join(faster)} as fast as one. There is no bound.",
        result=part,
        setup="`unisono train examples/jedi_net.py` with one and two workers of one thread each, against the same training in a "
        "plain PyTorch loop that loads nothing of Unisono that talks or trains. Model, jets, initial weights, batches, learning "
        f"rates and Adam are the same for all, and the global batch is {BATCH} for any number of workers.",
        tables=[_speed_table(particles, runs) for particles, runs in by_size(part).items()],
        reading=[
            *efforts,
            "In each round every row is one training in processes of its own. Times are those of steps, without start and "
            "evaluations.",
            INTERLEAVED,
            f"`{PLAIN}` is the dashed line of the picture. It does not know its loss and accuracy on the way; Unisono follows both "
            "in every step.",
            f"`{APART}`: two plain loops at the same time, each on its part of the cores and with its half of every batch. They "
            "share the memory of the machine and nothing else: two workers that agree in every step cannot be expected to be "
            "faster.",
            "The loss shows that the rows have learned the same; where it differs by more than "
            f"{100 * part['settings']['same_loss']:.0f} % in a round, the measurement ends with an error.",
        ],
        versions={"trainings": next(run["versions"] for run in part["runs"] if run["row"] == ONE)},
    )


def accuracy(part: Result) -> Page:
    """Pure: whole trainings, against the best classifier."""
    settings, best = part["settings"], 100 * part["bound"]["best"]
    tests = [100 * run["metrics"]["test_accuracy"] for run in part["runs"]]
    return Page(
        question="How near does it come to the best accuracy?",
        answer=f"It reaches {min(tests):.2f} to {max(tests):.2f} % of the test jets; the best classifier reaches {best:.2f} %.",
        result=part,
        measures_time=False,
        setup=f"Whole trainings with the settings of the example: {TRAIN_SHARE * settings['num_jets']:,.0f} jets of 16 particles, "
        f"{len(part['runs'][0]['epochs'])} epochs, {settings['workers']} workers. Chance is 20 %.",
        tables=[_accuracy_table(part)],
        reading=[
            "The best classifier names the class of the largest likelihood, which is known for these jets; how often it is right "
            f"is estimated from {settings['bound_jets']:,} others (`jets.best_accuracy`), with its standard error. Nothing that "
            "learns can be better but by chance.",
            f"Validation and test: {TEST_SHARE * settings['num_jets']:,.0f} jets each, after the last epoch, not the best. The "
            "standard error is that of so many jets; the same jets judge every form.",
            "Forms differ in how their weights are drawn, so also in where they end. Times hold the start of the frameworks' "
            "compilers and the evaluations.",
        ],
        versions={"packages": part["versions"]},
    )


def by_size(part: Result) -> dict[int, list[Result]]:
    """Pure: the runs of each number of particles."""
    sizes = dict.fromkeys(run["particles"] for run in part["runs"])
    return {size: [run for run in part["runs"] if run["particles"] == size] for size in sizes}


def speeds(runs: Sequence[Result]) -> dict[str, Floats]:
    """Pure: samples per second of each row, by round."""
    return {row: np.array([run["samples_per_s"] for run in runs if run["row"] == row]) for row in ROWS}


def speed_ups(runs: Sequence[Result], below: str = PLAIN) -> dict[str, Estimate]:
    """Pure: how many times as fast as one of them each of the others is, compared in each round."""
    found = speeds(runs)
    return {row: estimate(values / found[below]) for row, values in found.items() if row != below}


def last_loss(run: Result) -> float:
    """Pure: the loss on the validation jets after the last epoch; of several loops that of the first."""
    return float(run["loops"][0]["val_loss"] if "loops" in run else run["epochs"][-1]["val_loss"])


def _speed_table(particles: int, runs: Sequence[Result]) -> Table:
    of_plain, of_one, rows = speed_ups(runs), speed_ups(runs, ONE), []
    for row, values in speeds(runs).items():
        loss = "-" if row == APART else f"{np.median([last_loss(run) for run in runs if run['row'] == row]):.4f}"
        one = str(of_one[row]) if row in (AGAIN, TWO) else "-"
        rows.append([row, f"{np.median(values):.0f}", str(of_plain.get(row, 1)), one, loss])
    header = [f"{particles} particles", "samples/s", f"times {PLAIN}", f"times {ONE}", "validation loss at the end"]
    num_parameters = next(run["num_parameters"] for run in runs if run["row"] == ONE)
    return Table(header, rows, f"{particles} particles, {num_parameters:,} parameters:")


def _accuracy_table(part: Result) -> Table:
    best, error = part["bound"]["best"], part["bound"]["error"]
    num_jets, rows = round(TEST_SHARE * part["settings"]["num_jets"]), []
    for run in part["runs"]:
        test, validation = run["metrics"]["test_accuracy"], run["epochs"][-1]["val_accuracy"]
        its_error = sqrt(test * (1 - test) / num_jets)
        below = f"{100 * (best - test):.2f} ± {100 * hypot(its_error, error):.2f}"
        rows.append(
            [run["form"], f"{100 * validation:.2f}", f"{100 * test:.2f} ± {100 * its_error:.2f}", below, f"{run['wall_s']:.0f} s"]
        )
    rows.append(["the best classifier", "-", f"{100 * best:.2f} ± {100 * error:.2f}", "0", "-"])
    return Table(["accuracy, %", "validation", "test", "points below the best", "whole run"], rows)


def _speed_panel(part: Result) -> Panel:
    lines = [Line("ideal", [1, 2], [1, 2], look={"color": "0.6", "linestyle": ":", "marker": ""})]
    for at, (particles, runs) in enumerate(by_size(part).items()):
        found, look = speed_ups(runs), {"color": COLOURS[3 * at], "marker": MARKERS[at]}
        aside = 0.03 * (2 * at - 1)  # so that one does not hide the other
        name = f"{particles} particles"
        lines += [
            _points(name, {1 + aside: found[ONE], 2 + aside: found[TWO]}, look),
            _points(f"{name}, {AGAIN}", {1 + 3 * aside: found[AGAIN]}, {**look, "markerfacecolor": "white", "linestyle": ""}),
            _points(f"{name}, {APART}", {2 + 3 * aside: found[APART]}, {**look, "marker": "x", "linestyle": ""}),
        ]
    title, marks = "Speed-up of training at the same global batch", {f"{PLAIN} (plain PyTorch loop)": 1.0}
    settings = {"xticks": [1, 2], "xlim": (0.7, 2.3), "ylim": (0, None)}
    return Panel(title, "workers, one thread each", f"samples/s, times {PLAIN}", lines, marks, settings=settings)


def _points(name: str, found: Mapping[float, Estimate], look: Mapping[str, object]) -> Line:
    values = [one.value for one in found.values()]
    reach = [[one.value - one.low for one in found.values()], [one.high - one.value for one in found.values()]]
    return Line(name, list(found), values, reach, look)


def _accuracy_panel(part: Result) -> Panel:
    best, error = 100 * part["bound"]["best"], 100 * part["bound"]["error"]
    lines = [
        Line(run["form"], [row["epoch"] for row in run["epochs"]], [100 * row["val_accuracy"] for row in run["epochs"]])
        for run in part["runs"]
    ]
    title, marks = f"Accuracy, {part['settings']['workers']} workers", {f"the best classifier, {best:.1f} ± {error:.1f}": best}
    return Panel(title, "epochs", "accuracy on the validation jets, %", lines, marks)


if __name__ == "__main__":
    sys.exit(guarded(main))
