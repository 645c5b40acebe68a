"""The page, the picture and the raw data of `bench.many_workers`, all from one result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.curves import Curve, Panel, can_draw, draw
from bench.record import write_json
from bench.report import page, provenance, section, warnings
from bench.rounds import markdown_table
from bench.training_bounds import show_workers
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

Run = Mapping[str, Any]


def publish(result: Mapping[str, Any], out: Path) -> str:
    """Local: write all files; returns table and bounds as text. Without matplotlib the picture is left out."""
    table, found = _table(result["runs"]), [] if result["quick"] else verdicts(result["runs"])
    write_json(out / "many_workers.json", result)
    (out / "many_workers.md").write_text(_page(result, table, found))
    no_picture = ""
    if can_draw():
        draw(out / "many_workers.png", "Many asynchronous workers, virtual, on MNIST", _panels(result["runs"]), _note(result))
    else:
        no_picture = "No picture, as matplotlib is not installed here; --figure draws it later from the raw data."
    return page(table, "\n".join(found), no_picture)


def verdicts(runs: Sequence[Run]) -> list[str]:
    """Pure: each bound in words, with whether it holds."""
    found = []
    for run in runs:
        if run["algorithm"] == "gem" and run["workers"] == MANY:
            verdict = "holds" if accuracy(run) >= LEAST else "MISSED"
            found.append(
                f"**{verdict}**: gem with {MANY} workers, seed {run['seed']}: {accuracy(run):.2f} % after the last epoch, at least "
                f"{LEAST:g} asked"
            )
    downpour = {run["workers"]: run for run in runs if run["algorithm"] == "downpour, momentum"}
    told = {workers: fate(run, downpour[1]) for workers, run in sorted(downpour.items()) if FEW <= workers <= MORE}
    verdict = "holds" if any(told.values()) else "MISSED"
    shown = "; ".join(f"{show_workers(workers)}: {text or 'as good as one'}" for workers, text in told.items())
    found.append(f"**{verdict}**: Downpour with momentum gets worse between {FEW} and {MORE} workers: {shown}")
    return found


def fate(run: Run, one_worker: Run) -> str:
    """Pure: what became of a run, against the same with one worker; empty if it is as good."""
    if run["epochs"][-1].get("val_loss") is None or accuracy(run) < LOST:
        return f"diverges ({accuracy(run):.1f} %)"
    less = accuracy(one_worker) - accuracy(run)
    return f"{less:.2f} points worse" if less >= WORSE else ""


def _table(runs: Sequence[Run]) -> str:
    last = max(len(run["epochs"]) for run in runs)
    marks = [epoch for epoch in MARKS if epoch < last]
    header = ["algorithm", "workers", "seed", "staleness", "largest", "virtual time", *(f"epoch {mark}" for mark in marks)]
    header += [f"epoch {last} (last)", "best", "updates left out"]
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
    return markdown_table(header, rows)


def _panels(runs: Sequence[Run]) -> list[Panel]:
    by_epoch, by_time = [], []
    for run in runs:
        name = run["algorithm"] if run["algorithm"].startswith("sgd") else f"{run['algorithm']}, {run['workers']}"
        values = [100 * row["val_accuracy"] for row in run["epochs"]]
        by_epoch.append(Curve(name, [row["epoch"] for row in run["epochs"]], values))
        if "virtual_s" in run["epochs"][-1]:
            by_time.append(Curve(name, [row["virtual_s"] for row in run["epochs"]], values))
    return [
        Panel("at equal samples", "epochs", by_epoch, marks=(LEAST,)),
        Panel("on the virtual clock", "virtual seconds", by_time, log_x=True, marks=(LEAST,)),
    ]


def _note(result: Mapping[str, Any]) -> str:
    return f"batch 64 of each worker, learning rate 0.05; {result['settings']['num_train']} images; errors are logarithmic"


def _page(result: Mapping[str, Any], table: str, found: Sequence[str]) -> str:
    settings = result["settings"]
    return page(
        "# Many asynchronous workers",
        warnings(result) if result["quick"] else "",
        f"Virtual workers on the {settings['num_train']:,} training images of MNIST, accuracy in percent of the "
        f"{settings['num_test']:,} test images. Each worker has\n"
        "batches of 64, the learning rate is 0.05 and never changes, momentum is 0.9: of the proxy for gradient energy matching, "
        "of the\n"
        "server's SGD for Downpour; rows without `momentum` have none. The network has 161,816 parameters, images are shifted by "
        "up to two\n"
        "pixels. An epoch uses every training image once, whatever the number of workers.",
        table,
        section("Bounds", found),
        "![learning curves](many_workers.png)",
        section("How to read it", _reading()),
        provenance(result["command"], result["machine"], result["sittings"], {"trainings": result["runs"][0]["versions"]}),
        section("What was not checked", list(result["not_checked"])),
        "Raw data: [many_workers.json](many_workers.json), `runs[].epochs[]`.",
    )


def _reading() -> list[str]:
    return [
        "The last epoch is quoted and judged, not the best: the test images are the validation images.",
        "Staleness: updates of the centre by others between taking it and using it, the mean over the run, and the largest.",
        "Virtual time is that of the simulated clock at the end, evaluations not counted. `sgd, momentum` is plain synchronous "
        "training in one process with the same batch, which has no such clock.",
        "Updates left out: those whose loss or gradient was not finite (`--on-nan skip`).",
        f"Downpour counts as worse from {WORSE:g} points below one worker on, and as diverged when its loss is not finite in the "
        "end "
        f"or its accuracy below {LOST:g} %.",
        "Each run: `unisono train bench/asynchronous_task.py --simulate N --algorithm A --local-batch 64 --lr 0.05`, with "
        "`--set optimizer.momentum=0.9` where it says momentum.",
    ]
