"""The pictures of the results pages: panels beside each other, lines told apart by colour and by marker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill
from typing import Any

from bench.rounds import Estimate, Floats

COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#D55E00", "#E69F00", "#CC79A7", "#882255", "#666666", "#000000")
"""Told apart by people who see colours differently, and on grey paper by their markers."""
MARKERS = "oPs^vDXhd"
TITLE_WIDTH = 48
"""Letters of a line of a title, for each panel below it."""
WIDE = 5.0
"""Largest value as a multiple of the smallest from which on an axis is logarithmic."""
ACCURACIES = (10.0, 50.0, 80.0, 90.0, 95.0, 97.0, 98.0, 99.0, 99.5)
"""On an axis on which the share of errors is logarithmic, so that 10 % and 99 % have their place."""


@dataclass(frozen=True)
class Line:
    """One line, or points. Lines of the same name look alike and are named once."""

    name: str
    x: Sequence[float] | Floats
    y: Sequence[float] | Floats
    reach: Any = None
    """Below and above each point, where there are intervals."""
    look: Mapping[str, Any] = field(default_factory=dict)
    """What differs from the usual, in matplotlib's words."""


@dataclass(frozen=True)
class Panel:
    """Lines that share their axes."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    marks: Mapping[str, float] = field(default_factory=dict)
    """Values on the y axis that are asked for or cannot be passed, by name."""
    shows_accuracy: bool = False
    """In percent, the best on top."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the axes, in matplotlib's words: scales, ticks, limits."""

    def draw(self, axes: Any, names: Sequence[str]) -> None:
        """Local: on these axes; the place of a line's name says how it looks."""
        errors = [max(100 - value, 0.01) for line in self.lines for value in line.y] if self.shows_accuracy else []
        for line in self.lines:
            at = names.index(line.name)
            look = {"color": COLOURS[at % len(COLOURS)], "marker": MARKERS[at % len(MARKERS)], "markersize": 4, "linewidth": 1.4}
            look["linestyle"] = ("-", "--")[at // len(COLOURS) % 2]
            y = [max(100 - value, 0.01) for value in line.y] if self.shows_accuracy else line.y
            axes.errorbar(line.x, y, yerr=line.reach, capsize=3, label=line.name, **{**look, **line.look})
        for number, (name, value) in enumerate(self.marks.items()):
            style = ("--", ":", "-.")[number % 3]
            axes.axhline(100 - value if self.shows_accuracy else value, color="0.4", linewidth=1, linestyle=style, label=name)
        axes.set(title=self.title, xlabel=self.x_label, ylabel=self.y_label, **self.settings)
        if self.shows_accuracy:
            shown = {100 - value: f"{value:g}" for value in ACCURACIES}
            axes.set(yscale="log", yticks=list(shown), yticklabels=list(shown.values()))
            axes.set_ylim(min(95.0, 1.1 * max(errors)), 0.9 * min(errors))
        if "xticklabels" in self.settings:
            axes.tick_params(axis="x", labelrotation=30)
        axes.minorticks_off()
        axes.grid(color="#dddddd", linewidth=0.8)
        axes.set_axisbelow(True)


def of_accuracy(title: str, x_label: str, lines: Sequence[Line], target: float | None = None, log_x: bool = False) -> Panel:
    """Pure: learning curves in percent, with the accuracy that is asked for."""
    marks = {} if target is None else {f"{target:g} %": target}
    settings = {"xscale": "log" if log_x else "linear"}
    return Panel(title, x_label, "accuracy on the test images, %", lines, marks, shows_accuracy=True, settings=settings)


def of_estimates(title: str, x_label: str, found: Mapping[str, Estimate]) -> Panel:
    """Pure: a point with its interval for each name, from above; on a logarithmic axis where they are far apart."""
    values, places = list(found.values()), list(range(len(found)))
    reach = [[one.value - one.low for one in values], [one.high - one.value for one in values]]
    lowest, highest = min(one.low for one in values), max(one.high for one in values)
    scale = "log" if 0 < WIDE * lowest < highest else "linear"
    settings = {"yticks": places, "yticklabels": list(found), "ylim": (len(found) - 0.5, -0.5), "xscale": scale}
    return Panel(
        title,
        x_label,
        "",
        [Line("", [one.value for one in values], places, look={"linestyle": "", "xerr": reach})],
        settings=settings,
    )


@dataclass(frozen=True)
class Picture:
    """Rows of panels with a title and a note. With `is_shared` all panels have one legend and one y axis."""

    title: str
    rows: Sequence[Sequence[Panel]]
    note: str = ""
    is_shared: bool = False

    def save(self, path: Path) -> None:
        """Local: as PNG, without the version of what drew it."""
        from matplotlib.figure import Figure

        widest = max(map(len, self.rows))
        figure = Figure(figsize=(min(5.2 * widest, 15.6) + 2.6 * self.is_shared, 4.6 * len(self.rows) + 0.4), layout="constrained")
        for part, panels in zip(figure.subfigures(len(self.rows), 1, squeeze=False)[:, 0], self.rows, strict=True):
            names = dict.fromkeys(line.name for panel in panels for line in panel.lines)
            named: dict[str, Any] = {}
            for axes, panel in zip(part.subplots(1, len(panels), sharey=self.is_shared, squeeze=False)[0], panels, strict=True):
                panel.draw(axes, list(names if self.is_shared else dict.fromkeys(line.name for line in panel.lines)))
                handles, labels = axes.get_legend_handles_labels()
                of_panel = dict(zip(labels, handles, strict=True))
                named |= of_panel
                if self.is_shared:
                    axes.label_outer()
                elif of_panel:
                    axes.legend(of_panel.values(), of_panel, fontsize=8)
            if self.is_shared:
                part.legend(named.values(), named, loc="outside right center", frameon=False, fontsize=9)
        figure.suptitle(f"{fill(self.title, TITLE_WIDTH * widest)}\n", fontsize=13, x=0.02, ha="left")
        figure.supxlabel(self.note, fontsize=8, color="#555555", x=0.02, ha="left")
        figure.savefig(path, dpi=120, metadata={"Software": None})
