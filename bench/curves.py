"""Learning curves: accuracy against samples, epochs or time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from bench.plot import COLOURS, MARKERS

SHOWN = (10.0, 50.0, 80.0, 90.0, 95.0, 97.0, 98.0, 99.0, 99.5)
"""Accuracies on the axis: the share of errors is logarithmic, so that 10 % and 99 % have their place."""


@dataclass(frozen=True)
class Curve:
    """One line. Those of the same name look alike and are named once."""

    name: str
    x: Sequence[float]
    accuracy: Sequence[float]
    """In percent."""


@dataclass(frozen=True)
class Panel:
    """Lines that share their axes."""

    title: str
    x_label: str
    curves: Sequence[Curve]
    log_x: bool = False
    marks: Sequence[float] = field(default=())
    """Accuracies that are asked for."""


def can_draw() -> bool:
    """Local: whether matplotlib is there."""
    return find_spec("matplotlib") is not None


def draw(path: Path, title: str, panels: Sequence[Panel], note: str) -> None:
    """Local: a picture with the panels side by side."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    names = list(dict.fromkeys(curve.name for panel in panels for curve in panel.curves))
    figure = Figure(figsize=(5.2 * len(panels) + 2.6, 5.0), layout="constrained")
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, panel in zip(all_axes, panels, strict=True):
        named: set[str] = set()
        for curve in panel.curves:
            at = names.index(curve.name)
            axes.plot(
                curve.x,
                [_error(value) for value in curve.accuracy],
                color=COLOURS[at % len(COLOURS)],
                marker=MARKERS[at % len(MARKERS)],
                linestyle=("-", "--")[at // len(COLOURS) % 2],
                markersize=3.5,
                linewidth=1.3,
                label="_" if curve.name in named else curve.name,
            )
            named.add(curve.name)
        for mark in panel.marks:
            axes.axhline(100 - mark, color="0.4", linewidth=1, linestyle=":", label=f"{mark:g} %")
        axes.set(title=panel.title, xlabel=panel.x_label, yscale="log", xscale="log" if panel.log_x else "linear")
        errors = [_error(value) for curve in panel.curves for value in curve.accuracy]
        axes.set_ylim(min(95.0, 1.1 * max(errors)), 0.9 * min(errors))  # the best on top
        axes.yaxis.set_major_locator(FixedLocator([100 - value for value in SHOWN]))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda error, _: f"{100 - error:g}"))
        axes.grid(color="#dddddd", linewidth=0.8)
        axes.set_axisbelow(True)
    all_axes[0].set_ylabel("accuracy on the test images, %")
    handles, labels = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9)
    figure.suptitle(f"{title}\n", fontsize=13, x=0.02, ha="left")
    figure.supxlabel(note, fontsize=8, color="#555555", x=0.02, ha="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, metadata={"Software": None})


def _error(accuracy: float) -> float:
    """In percent; a logarithmic axis has no place for none."""
    return max(100 - accuracy, 0.01)
