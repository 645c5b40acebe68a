"""The page, the picture and the raw data of `bench.jets`, all from one result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from bench.curves import can_draw
from bench.jets_cases import AGAIN, APART, ONE, PLAIN, ROWS, TWO
from bench.plot import COLOURS, MARKERS
from bench.record import write_json
from bench.report import page, provenance, section, warnings
from bench.rounds import Estimate, Floats, estimate, markdown_table

TRAIN_SHARE, TEST_SHARE = 0.8, 0.1
"""Of all jets; as many as for the test are for validation."""
BATCH = 128
"""The example's own."""
PARTS = ("speed", "accuracy")
"""Each is measured by a command of its own; a result has one of them or both."""

Result = Mapping[str, Any]


def publish(result: Result, out: Path) -> str:
    """Local: write all files; returns the tables as text. Without matplotlib the picture is left out."""
    tables = {"speed": _speed_tables, "accuracy": _accuracy_table}
    shown = [tables[name](part) for name, part in result.items()]
    write_json(out / "jets.json", result)
    (out / "jets.md").write_text(_page(result))
    no_picture = ""
    if can_draw():
        draw(result, out / "jets.png")
    else:
        no_picture = "No picture, as matplotlib is not installed here; --figure draws it later from the raw data."
    return page(*shown, no_picture)


def by_size(part: Result) -> dict[int, list[Result]]:
    """Pure: the runs of each number of particles."""
    runs: dict[int, list[Result]] = {}
    for run in part["runs"]:
        runs.setdefault(run["particles"], []).append(run)
    return runs


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


def _speed_tables(part: Result) -> str:
    tables = []
    for particles, runs in by_size(part).items():
        found, of_plain, of_one = speeds(runs), speed_ups(runs), speed_ups(runs, ONE)
        rows = []
        for row, values in found.items():
            loss = "-" if row == APART else f"{np.median([last_loss(run) for run in runs if run['row'] == row]):.4f}"
            one = str(of_one[row]) if row in (AGAIN, TWO) else "-"
            rows.append([row, f"{np.median(values):.0f}", str(of_plain.get(row, 1)), one, loss])
        header = [f"{particles} particles", "samples/s", f"times {PLAIN}", f"times {ONE}", "validation loss at the end"]
        num_parameters = next(run["num_parameters"] for run in runs if run["row"] == ONE)
        tables.append(f"{particles} particles, {num_parameters:,} parameters:\n\n{markdown_table(header, rows)}")
    return page(*tables).rstrip()


def error_of(accuracy: float, num_jets: int) -> float:
    """Pure: the standard error of an accuracy on so many jets."""
    return sqrt(accuracy * (1 - accuracy) / num_jets)


def _accuracy_table(part: Result) -> str:
    best, rows = part["bound"]["best"], []
    for run in part["runs"]:
        test, last = run["metrics"]["test_accuracy"], run["epochs"][-1]
        error = error_of(test, round(TEST_SHARE * part["settings"]["num_jets"]))
        below = f"{100 * (best - test):.2f} ± {100 * hypot(error, part['bound']['error']):.2f}"
        validation = f"{100 * last['val_accuracy']:.2f}"
        rows.append([run["form"], validation, f"{100 * test:.2f} ± {100 * error:.2f}", below, f"{run['wall_s']:.0f} s"])
    rows.append(["the best classifier", "-", f"{100 * best:.2f} ± {100 * part['bound']['error']:.2f}", "0", "-"])
    return markdown_table(["accuracy, %", "validation", "test", "points below the best", "whole run"], rows)


def draw(result: Result, path: Path) -> None:
    """Local: speed-up over workers on the left, accuracy over epochs on the right; only what there is."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6 * len(result), 4.4), layout="constrained")
    panels = {"speed": _draw_speed, "accuracy": _draw_accuracy}
    for axes, (name, part) in zip(figure.subplots(1, len(result), squeeze=False)[0], result.items(), strict=True):
        panels[name](axes, part)
        axes.grid(color="#dddddd", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.legend(fontsize=8, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, metadata={"Software": None})


def _draw_speed(axes: Any, part: Result) -> None:
    axes.axhline(1, color="0.3", linewidth=1.2, linestyle="--", label=f"{PLAIN} (plain PyTorch loop)")
    axes.plot([1, 2], [1, 2], color="0.6", linewidth=1, linestyle=":", label="ideal")
    for at, (particles, runs) in enumerate(by_size(part).items()):
        found, look = speed_ups(runs), {"color": COLOURS[3 * at], "marker": MARKERS[at]}
        aside = 0.03 * (2 * at - 1)  # so that one does not hide the other
        _points(axes, [1 + aside, 2 + aside], [found[ONE], found[TWO]], label=f"{particles} particles", linewidth=1.4, **look)
        _points(axes, [1 + 3 * aside], [found[AGAIN]], label="_", markerfacecolor="white", linestyle="", **look)
        label = f"{particles} particles, {APART}"
        _points(axes, [2 + 3 * aside], [found[APART]], label=label, linestyle="", color=look["color"], marker="x")
    axes.set(xlabel="workers, one thread each (open: 1 worker A/A)", xticks=[1, 2], xlim=(0.7, 2.3), ylim=(0, None))
    axes.set(ylabel=f"samples/s, times {PLAIN}", title="Speed-up of training at the same global batch")


def _points(axes: Any, x: Sequence[float], estimates: Sequence[Estimate], **look: Any) -> None:
    medians = np.array([one.median for one in estimates])
    reach = [medians - [one.low for one in estimates], [one.high for one in estimates] - medians]
    axes.errorbar(x, medians, yerr=reach, capsize=3, markersize=6, **look)


def _draw_accuracy(axes: Any, part: Result) -> None:
    best, error = 100 * part["bound"]["best"], 100 * part["bound"]["error"]
    axes.axhline(best, color="0.3", linewidth=1.2, linestyle="--", label=f"the best classifier, {best:.1f} ± {error:.1f}")
    axes.axhspan(best - error, best + error, color="0.85", zorder=0)
    for at, run in enumerate(part["runs"]):
        values = [100 * row["val_accuracy"] for row in run["epochs"]]
        epochs = [row["epoch"] for row in run["epochs"]]
        axes.plot(epochs, values, color=COLOURS[at], marker=MARKERS[at], markersize=4, linewidth=1.3, label=run["form"])
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="epochs", ylabel="accuracy on the validation jets, %", title=f"Accuracy, {part['settings']['workers']} workers")


def _page(result: Result) -> str:
    of_part = {"speed": _speed_sections, "accuracy": _accuracy_sections}
    points = [point for part in result.values() for point in part["not_measured"]]
    points += [f"{name.capitalize()}: not measured yet ({_COMMANDS[name]})." for name in PARTS if name not in result]
    return page(
        "# JEDI-net: speed-up, and accuracy against the best there is",
        "A graph network that tells jets apart ([what it is](../how-to/jets.md)), on made-up jets whose best reachable accuracy is "
        "known.",
        "![speed-up over workers, and accuracy over epochs](jets.png)",
        *(text for name, part in result.items() for text in of_part[name](part)),
        section("What was not measured", points),
        "Raw data: [jets.json](jets.json), `speed.runs[]` and `accuracy.runs[]`, with every epoch.",
    )


_COMMANDS: Mapping[str, str] = {"speed": "`python -m bench.jets`", "accuracy": "`python -m bench.jets --accuracy`"}


def _speed_sections(part: Result) -> list[str]:
    versions = {"trainings": next(run["versions"] for run in part["runs"] if run["row"] == ONE)}
    return [
        "## Speed",
        warnings(part),
        "`unisono train examples/jedi_net.py` with one and two workers of one thread each, against the same training in a plain\n"
        "PyTorch loop that loads nothing of Unisono that talks or trains. Model, jets, initial weights, batches, learning rates\n"
        f"and Adam are the same for all, and the global batch is {BATCH} for any number of workers.",
        _speed_tables(part),
        _points_of("How to read it", _reading_speed(part)),
        _told("speed", part, versions),
    ]


def _accuracy_sections(part: Result) -> list[str]:
    num_jets, epochs = part["settings"]["num_jets"], len(part["runs"][0]["epochs"])
    return [
        "## Accuracy",
        warnings(part) if part["quick"] else "",
        f"Whole trainings with the settings of the example: {TRAIN_SHARE * num_jets:,.0f} jets of 16 particles, {epochs} epochs, "
        f"{part['settings']['workers']} workers. Chance is 20 %.",
        _accuracy_table(part),
        _points_of("How to read it", _reading_accuracy(part)),
        _told("accuracy", part, {"packages": part["versions"]}),
    ]


def _points_of(title: str, points: Sequence[str]) -> str:
    """A section inside one of the two."""
    return section(title, points).replace("## ", "### ", 1)


def _told(name: str, part: Result, versions: Mapping[str, Mapping[str, str]]) -> str:
    told = provenance(part["command"], part["machine"], part["sittings"], versions)
    return told.replace("## How it was measured", f"### How {name} was measured", 1)


def _reading_speed(part: Result) -> list[str]:
    efforts = []
    for case in part["settings"]["cases"]:
        steps = -(-round(TRAIN_SHARE * case["num_jets"]) // BATCH)
        timed = (case["epochs"] - 1) * steps
        efforts.append(f"{case['particles']} particles: rounds {case['rounds']}, steps to warm up {steps}, timed {timed}")
    stolen_s = sum(run["stolen_cpu_s"] for run in part["runs"])
    return [
        f"{'; '.join(efforts)}. In each round every row is one training in processes of its own, in a shuffled order. Ratios are "
        "medians over rounds, each of two rows in the same round, with the 95 % interval of a bootstrap; the A/A row against "
        f"{ONE} shows the noise. There is no bound.",
        f"`{PLAIN}` is the dashed line of the picture. It does not know its loss and accuracy on the way; Unisono follows both in "
        "every step. Times are those of steps, without start and evaluations.",
        f"`{APART}`: two plain loops at the same time, each on its part of the cores and with its half of every batch. They share "
        "the memory of the machine and nothing else: two workers that agree in every step cannot be expected to be faster.",
        "The loss shows that the rows have learned the same; where it differs by more than "
        f"{100 * part['settings']['same_loss']:.0f} % in a round, the measurement ends with an error.",
        f"CPU time that the host of a virtual machine took away during the measurement: {stolen_s:.1f} s.",
    ]


def _reading_accuracy(part: Result) -> list[str]:
    num_jets = part["settings"]["num_jets"]
    return [
        "The best classifier names the class of the largest likelihood, which is known for these jets; how often it is right is "
        f"estimated from {part['settings']['bound_jets']:,} others (`jets.best_accuracy`), with its standard error. Nothing that "
        "learns can be better but by chance.",
        f"Validation and test: {TEST_SHARE * num_jets:,.0f} jets each, after the last epoch, not the best. The standard error is "
        "that of so many jets; the same jets judge every form.",
        "Forms differ in how their weights are drawn, so also in where they end. Times hold the start of the frameworks' "
        "compilers and the evaluations.",
    ]
