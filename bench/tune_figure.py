"""The picture of `bench.tune`: gaps, busy blocks, and the best value so far."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.plot import COLOURS, MARKERS
from bench.tune_blocks import ENOUGH
from bench.tune_overhead import gaps_of
from bench.tune_page import by_contender, by_problem
from bench.tune_quality import curve

Result = Mapping[str, Any]
POINTS = 60


def draw(result: Result, path: Path) -> None:
    """Local: only what there is."""
    from matplotlib.figure import Figure

    top = [name for name in ("overhead", "blocks") if name in result]
    problems = by_problem(result["quality"]) if "quality" in result else {}
    if not top and not problems:
        return
    figure = Figure(figsize=(13.0, 4.2 * (bool(top) + bool(problems))), layout="constrained")
    rows = figure.subfigures(bool(top) + bool(problems), 1, squeeze=False)[:, 0]
    for axes, name in zip(rows[0].subplots(1, len(top), squeeze=False)[0] if top else (), top, strict=True):
        {"overhead": _draw_gaps, "blocks": _draw_blocks}[name](axes, result[name])
        _finish(axes)
    for axes, (name, runs) in zip(
        rows[-1].subplots(1, len(problems), squeeze=False)[0] if problems else (), problems.items(), strict=True
    ):
        end = max(run["optuna"][-1][0] for run in runs)
        times = np.linspace(end / POINTS, end, POINTS)
        for at, (who, label) in enumerate((("unisono", "unisono, 4 blocks"), ("optuna", "optuna, one by one"))):
            last = max(run[who][-1][0] for run in runs)
            shown = times[times <= last * 1.01]
            axes.plot(shown / 60, curve(runs, who, shown), color=COLOURS[3 * at], linewidth=1.6, label=label)
        axes.set(title=name, xlabel="virtual minutes", ylabel="mean of the best value so far")
        _finish(axes)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, metadata={"Software": None})


def _finish(axes: Any) -> None:
    axes.grid(color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=8)


def _draw_gaps(axes: Any, part: Result) -> None:
    found = {name: 1e3 * np.concatenate([gaps_of(run["waits"]) for run in runs]) for name, runs in by_contender(part).items()}
    for place, (name, gaps) in enumerate(found.items()):
        aside = np.random.default_rng(0).uniform(-0.25, 0.25, len(gaps))
        look = COLOURS[0] if name.startswith("unisono") else COLOURS[7]
        axes.plot(gaps, place + aside, ".", color=look, markersize=3, alpha=0.5)
        axes.plot([np.median(gaps)] * 2, [place - 0.4, place + 0.4], color="black", linewidth=2)
    axes.set_yticks(range(len(found)), list(found))
    axes.invert_yaxis()
    axes.set(title="gaps between trials; the bar is the median", xlabel="ms", xscale="log")


def _draw_blocks(axes: Any, part: Result) -> None:
    runs = [run for run in part["runs"].values() if "series" in run and "error" not in run]
    for at, name in enumerate(dict.fromkeys(run["series"] for run in runs)):
        mine = [run for run in runs if run["series"] == name]
        shares = [100 * run["busy_share"] for run in mine]
        axes.plot([run["blocks"] for run in mine], shares, color=COLOURS[at], marker=MARKERS[at], linewidth=1.4, label=name)
    axes.axhline(100 * ENOUGH, color="0.4", linewidth=1, linestyle=":", label=f"{100 * ENOUGH:g} %")
    axes.set(title="busy blocks of one coordinator, simulated", xlabel="blocks", ylabel="busy, %", xscale="log")
