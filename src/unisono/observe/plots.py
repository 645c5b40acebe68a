"""Draws the curves of a run: loss and metrics over epochs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unisono.files.atomic import explain_os_errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES: Mapping[str, tuple[str, str, str]] = {
    "": ("train", "#0072B2", "-"),
    "val_": ("validation", "#D55E00", "--"),
    "test_": ("test", "#009E73", "-."),
}
"""Begin of a metric's name -> what it was measured on, and how it is drawn: of the Okabe-Ito colours, which the colour-blind tell
apart, and apart in black and white too."""
STEPS, BEST, TARGET = "#56B4E9", "#000000", "#CC79A7"
MOST_COLUMNS = 3
WIDTH, HEIGHT, TITLE = 4.7, 3.3, 0.4
"""Inches of a panel with its margins, and of the title above all."""
LEFT, RIGHT, BELOW, ABOVE = 0.75, 0.15, 0.55, 0.35
"""The margins of a panel in inches."""
MOST_MARKERS = 40
"""With more epochs than this the points would hide the line."""
MOST_STEPS = 4000
"""More points than a picture of this width can show are averaged."""
LOG_FROM = 50.0
"""Ratio of the largest to the smallest loss from which on its axis is logarithmic."""


def draw_curves(
    epochs: Sequence[Mapping[str, Any]],
    path: Path,
    title: str,
    steps: Sequence[Mapping[str, Any]] = (),
    target: tuple[str, float] | None = None,
) -> bool:
    """Local, blocking: writes a PNG with a panel for the loss and one for each metric. No display is needed, and no state is kept.

    `epochs` and `steps` are rows of `metrics.jsonl` (or `vars(EpochDone)`); the last epoch with `is_best` is marked. With `steps`
    the loss of each batch stands behind that of the epochs. `target` is drawn where its metric is. Without an epoch (a run that
    failed in its first) there is nothing to draw: gives whether there was.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not any(row["metrics"] for row in epochs):
        return False
    panels = _panels(epochs)
    num_columns = min(MOST_COLUMNS, len(panels))
    num_rows = -(-len(panels) // num_columns)
    width, height = WIDTH * num_columns, HEIGHT * num_rows + TITLE
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    # By hand: matplotlib's own layouts draw everything twice, which takes longer than many a training of a first try.
    figure.subplots_adjust(
        left=LEFT / width,
        right=1 - RIGHT / width,
        bottom=BELOW / height,
        top=1 - (TITLE + ABOVE) / height,
        wspace=(LEFT + RIGHT) / (WIDTH - LEFT - RIGHT),
        hspace=(BELOW + ABOVE) / (HEIGHT - BELOW - ABOVE),
    )
    figure.suptitle(title, fontsize=11, y=1 - 0.1 / height, parse_math=False)
    best = next((row["epoch"] for row in reversed(epochs) if row.get("is_best")), None)
    for place, (name, names) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(num_rows, num_columns, place)
        if name == "loss" and steps:
            _draw_steps(axes, epochs, steps)
        for whole_name in names:
            _draw_metric(axes, epochs, whole_name, name, best)
        if target is not None and target[0] in names:
            axes.axhline(target[1], color=TARGET, linewidth=1.5, linestyle=":", label=f"target {target[1]:g}")
        _finish(axes, name, epochs)
    with explain_os_errors(path):
        figure.savefig(path, dpi=140, format="png")
    return True


def _panels(epochs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The panels: metric -> the names under which it is recorded, the loss first and each in the order of `STYLES`."""
    names = list(dict.fromkeys(name for row in epochs for name in row["metrics"]))
    panels: dict[str, list[str]] = {"loss": []} if any(_begin_of(name, "loss") is not None for name in names) else {}
    for name in names:
        begin = next((begin for begin in STYLES if begin and name.startswith(begin)), "")
        panels.setdefault(name.removeprefix(begin), []).append(name)
    for base, found in panels.items():
        found.sort(key=lambda name: list(STYLES).index(_begin_of(name, base) or ""))
    return panels


def _begin_of(name: str, base: str) -> str | None:
    """Returns the prefix of a metric's name ('val_', ...) before its base name; None if it is another metric."""
    return next((begin for begin in STYLES if name == begin + base), None)


def _draw_metric(axes: Axes, epochs: Sequence[Mapping[str, Any]], name: str, base: str, best: int | None) -> None:
    """Draws the curve of one metric over the epochs, and marks the best epoch if it is the last curve of its panel."""
    label, colour, line = STYLES[_begin_of(name, base) or ""]
    numbers = [row["epoch"] + 1 for row in epochs]
    values = [_number(row["metrics"].get(name)) for row in epochs]
    marker = "o" if len(epochs) <= MOST_MARKERS else ""
    axes.plot(numbers, values, color=colour, linestyle=line, marker=marker, markersize=3.5, linewidth=1.5, label=label)
    last_of_all = name == _curve_of_best(epochs, base)
    if best is not None and last_of_all:
        value = values[numbers.index(best + 1)]
        if math.isfinite(value):
            text = f"best epoch {best + 1}: {value:.4g}"
            axes.plot(
                [best + 1],
                [value],
                marker="o",
                markersize=9,
                color=BEST,
                markerfacecolor="none",
                linestyle="",
                label=text,
                zorder=5,
            )


def _curve_of_best(epochs: Sequence[Mapping[str, Any]], base: str) -> str:
    """The curve on which the best epoch is marked: that of the validation if there is one."""
    recorded = epochs[-1]["metrics"]
    return next((begin + base for begin in ("val_", "test_", "") if begin + base in recorded), base)


def _draw_steps(axes: Axes, epochs: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]) -> None:
    """Draws the loss of the steps, averaged over several if there are many."""
    import numpy as np

    done = [row["step"] for row in epochs]
    numbers = [row["epoch"] + 1 for row in epochs]
    per_epoch = (done[-1] - done[0]) / (numbers[-1] - numbers[0]) if len(epochs) > 1 else done[0] / numbers[0]
    before = max(0.0, done[0] - per_epoch)
    at = np.interp([row["step"] + 1 for row in steps], [before, *done], [numbers[0] - 1, *numbers])
    losses = np.array([_number(row["loss"]) for row in steps])
    size = -(-len(losses) // MOST_STEPS)
    if size > 1:
        whole = len(losses) // size * size
        at, losses = at[:whole].reshape(-1, size).mean(1), losses[:whole].reshape(-1, size).mean(1)
    axes.plot(
        at,
        losses,
        color=STEPS,
        linewidth=0.6,
        alpha=0.7,
        label="train, each batch" if size == 1 else f"train, mean of {size} batches",
    )


def _finish(axes: Axes, name: str, epochs: Sequence[Mapping[str, Any]]) -> None:
    """Adds axes, title and legend to a panel; the loss gets a logarithmic axis where its range is wide."""
    from matplotlib.ticker import MaxNLocator

    if name == "loss":
        low, high = axes.dataLim.intervaly
        if 0 < LOG_FROM * low < high:
            axes.set_yscale("log")
    first, last = epochs[0]["epoch"] + 1, epochs[-1]["epoch"] + 1
    if first == last:
        axes.set_xlim(first - 1, last + 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axes.set_xlabel("epoch")
    axes.set_title(name.replace("_", " "), fontsize=10, parse_math=False)
    axes.grid(visible=True, linewidth=0.4, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)


def _number(value: float | None) -> float:
    """A value for the curve; null in the file was not finite and becomes a gap."""
    return math.nan if value is None else value if math.isfinite(value) else math.nan
