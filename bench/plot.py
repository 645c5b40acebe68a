"""Time against size, both logarithmic, one line for each contender, one panel for each number of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.sizes import show_size

COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#D55E00", "#E69F00", "#CC79A7", "#882255", "#666666", "#000000")
"""Told apart by people who see colours differently, and on grey paper by their markers."""
MARKERS = "oPs^vDXhd"


def draw(
    path: Path,
    title: str,
    panels: Mapping[str, Mapping[str, Mapping[int, float]]],
    strong: Sequence[str],
    note: str,
) -> None:
    """Local: `panels[panel][name][bytes]` is a median in microseconds; the lines of `strong` are thicker."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    width = 5.4 * len(panels) + 2.2
    figure, axes = plt.subplots(1, len(panels), figsize=(width, 5.4), sharey=True, squeeze=False)
    for axis, (panel, lines) in zip(axes[0], panels.items(), strict=True):
        sizes = sorted({size for points in lines.values() for size in points})
        for name, points in lines.items():
            at = names.index(name)
            thick = name in strong
            axis.plot(
                list(points),
                list(points.values()),
                color=COLOURS[at % len(COLOURS)],
                marker=MARKERS[at % len(MARKERS)],
                markersize=7 if thick else 5,
                linewidth=2.8 if thick else 1.4,
                linestyle="--" if name.endswith("A/A") else "-",
                zorder=3 if thick else 2,
                label=name,
            )
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xticks(sizes, [show_size(size).replace(" ", "\u2009") for size in sizes], rotation=30)
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _duration(value)))
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.grid(which="major", color="#dddddd", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.set_title(panel, fontsize=11)
        axis.set_xlabel("size of the vector (float32)")
    axes[0][0].set_ylabel("median time of one all-reduce")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="center right", frameon=False, fontsize=10)
    figure.suptitle(title, fontsize=13, x=0.02, y=0.98, ha="left")
    figure.text(0.02, 0.012, note, fontsize=8, color="#555555")
    figure.tight_layout(rect=(0, 0.03, 1 - 2.0 / width, 1.0))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)


def _duration(microseconds: float) -> str:
    for limit, factor, unit in ((1e3, 1.0, "µs"), (1e6, 1e-3, "ms")):
        if microseconds < limit:
            return f"{microseconds * factor:g} {unit}"
    return f"{microseconds * 1e-6:g} s"
