"""The page of `bench.jets`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot, sqrt

import numpy as np

from bench.figure import COLOURS, MARKERS, Line, Panel, Picture
from bench.jets_cases import AGAIN, APART, ONE, PLAIN, ROWS, TWO
from bench.page import INTERLEAVED, Page, Result, Table
from bench.rounds import Estimate, Floats, estimate

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
