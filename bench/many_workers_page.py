"""The page of `bench.many_workers`."""

from __future__ import annotations

from collections.abc import Sequence

from bench.bounds import Bound, judge, told
from bench.figure import Line, Picture, of_accuracy
from bench.page import Page, Result, Table
from bench.sizes import show_count
from bench.trainings import accuracy, best, staleness

LEAST, MANY = 99.3, 100
"""Percent that each run of gradient energy matching with so many workers must have after its last epoch."""
FEW, MORE = 5, 30
"""Workers between which Downpour must get worse."""
WORSE = 0.5
"""Points that count as worse than one worker."""
LOST = 50.0
"""Percent below which a run has not learned to read."""
MARKS = (1, 5, 10, 20)
"""Epochs that the table shows besides the last."""

Runs = Sequence[Result]


def page_of(result: Result) -> Page:
    """Pure: the page of these raw data."""
    settings, runs = result["settings"], result["runs"]
    bounds = [] if result["quick"] else verdicts(runs)  # a quick run lacks the single worker to compare with
    return Page(
        question="How many asynchronous workers can gradient energy matching and Downpour bear?",
        answer=f"Virtual workers on MNIST: {told(bounds)}.",
        result=result,
        measures_time=False,
        setup=f"Virtual workers on the {settings['num_train']:,} training images of MNIST, accuracy in percent of the "
        f"{settings['num_test']:,} test images. Each worker has batches of 64, the learning rate is 0.05 and never changes, "
        "momentum is 0.9: of the proxy for gradient energy matching, of the server's SGD for Downpour; rows without `momentum` "
        "have none. The network has 161,816 parameters, images are shifted by up to two pixels. An epoch uses every training image "
        "once, whatever the number of workers.",
        tables=[_table(runs)],
        bounds=bounds,
        picture=Picture(
            "Many asynchronous workers, virtual, on MNIST",
            [
                [
                    of_accuracy("at equal samples", "epochs", _lines(runs, "epoch"), LEAST),
                    of_accuracy("on the virtual clock", "virtual seconds", _lines(runs, "virtual_s"), LEAST, log_x=True),
                ]
            ],
            f"batch 64 of each worker, learning rate 0.05; {settings['num_train']} images; errors are logarithmic",
            is_shared=True,
        ),
        reading=[
            "The last epoch is quoted and judged, not the best: the test images are the validation images.",
            "Staleness: updates of the centre by others between taking it and using it, the mean over the run, and the largest.",
            "Virtual time is that of the simulated clock at the end, evaluations not counted. `sgd, momentum` is plain synchronous "
            "training in one process with the same batch, which has no such clock.",
            "Updates left out: those whose loss or gradient was not finite (`--on-nan skip`).",
            f"Downpour counts as worse from {WORSE:g} points below one worker on, and as diverged when its loss is not finite in "
            f"the end or its accuracy below {LOST:g} %.",
            "Each run: `unisono train bench/asynchronous_task.py --simulate N --algorithm A --local-batch 64 --lr 0.05`, with "
            "`--set optimizer.momentum=0.9` where it says momentum.",
        ],
        not_measured=result["not_checked"],
        raw="`runs[].epochs[]`",
    )


def verdicts(runs: Runs) -> list[Bound]:
    """Pure: each bound, with whether it holds."""
    unit, of_gem = "% after the last epoch", [run for run in runs if run["algorithm"] == "gem" and run["workers"] == MANY]
    bounds = [judge(f"gem with {MANY} workers, seed {run['seed']}", accuracy(run), unit, at_least=LEAST) for run in of_gem]
    downpour = {run["workers"]: run for run in runs if run["algorithm"] == "downpour, momentum"}
    fates = {workers: fate(run, downpour[1]) for workers, run in sorted(downpour.items()) if FEW <= workers <= MORE}
    found = ", ".join(f"{show_count(workers, 'worker')}: {text or 'as good as one'}" for workers, text in fates.items())
    verdict = "holds" if any(fates.values()) else "MISSED"
    return [*bounds, Bound("Downpour with momentum", found, f"gets worse between {FEW} and {MORE} workers", verdict)]


def fate(run: Result, one_worker: Result) -> str:
    """Pure: what became of a run, against the same with one worker; empty if it is as good."""
    if run["epochs"][-1].get("val_loss") is None or accuracy(run) < LOST:
        return f"diverges ({accuracy(run):.1f} %)"
    less = accuracy(one_worker) - accuracy(run)
    return f"{less:.2f} points worse" if less >= WORSE else ""


def _table(runs: Runs) -> Table:
    last = max(len(run["epochs"]) for run in runs)
    marks = [epoch for epoch in MARKS if epoch < last]
    rows = []
    for run in runs:
        stale, virtual_s = staleness(run), run["epochs"][-1].get("virtual_s")
        (top, epoch), num_epochs = best(run), len(run["epochs"])
        rows.append(
            [
                run["algorithm"],
                str(run["workers"]),
                str(run["seed"]),
                f"{stale[0]:.1f}" if stale else "-",
                str(stale[1]) if stale else "-",
                f"{virtual_s:.0f} s" if virtual_s else "-",
                *(f"{accuracy(run, mark):.2f}" if mark <= num_epochs else "-" for mark in marks),
                f"{accuracy(run):.2f}" if num_epochs == last else f"{accuracy(run):.2f} ({num_epochs})",
                f"{top:.2f} (epoch {epoch})",
                str(run["num_skipped_updates"]),
            ]
        )
    header = ["algorithm", "workers", "seed", "staleness", "largest", "virtual time", *(f"epoch {mark}" for mark in marks)]
    return Table([*header, f"epoch {last} (last)", "best", "updates left out"], rows)


def _lines(runs: Runs, x: str) -> list[Line]:
    return [
        Line(
            run["algorithm"] if run["algorithm"].startswith("sgd") else f"{run['algorithm']}, {run['workers']}",
            [row[x] for row in run["epochs"]],
            [100 * row["val_accuracy"] for row in run["epochs"]],
        )
        for run in runs
        if x in run["epochs"][-1]
    ]
