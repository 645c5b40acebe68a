"""What does a search gain? The error on test data that it never saw, of the task's own settings and of those that were found.

    python -m bench.tune_gain                                             # digits, five seeds
    python -m bench.tune_gain --task indian_pines --data DIR --seeds 3    # DIR holds the two files of the scene

For every seed, which divides the data anew: `unisono tune` as a user types it; then, with the task's own settings and with the best
that were found, trainings on all that is not test data, from several random starts each.
Writes tune_digits.* or tune_indian_pines.*.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.bounds import Bound, judge
from bench.figure import COLOURS, Line, Panel, Picture
from bench.groups import ROOT, temporary_folder
from bench.measurement import begin, guarded
from bench.options import parse, parser_of
from bench.page import Page, Result, Table

LEAST_REMOVED = 25.0
OPTIONS: Mapping[str, Sequence[str]] = {
    "digits": ("-n", "4", "--workers", "1", "--folds", "3", "--trials", "24"),
    "indian_pines": ("-n", "2", "--workers", "1", "--folds", "3", "--trials", "30"),
}
METRIC = "test_accuracy"
NOT_MEASURED = ("Other searches than the default, more trials, GPUs.",)


def main() -> None:
    """Local, blocking: search, train, and publish what came of it."""
    parser = parser_of("tune_gain", __doc__)
    parser.add_argument("--task", choices=tuple(OPTIONS), default="digits")
    parser.add_argument("--data", metavar="DIR", help="the folder with the files of the scene (indian_pines)")
    parser.add_argument("--seeds", type=int, default=5, metavar="S", help="divisions of the data, a search for each (default 5)")
    parser.add_argument("--starts", type=int, default=3, metavar="K", help="random starts of each training at the end (default 3)")
    args = parse(parser)
    measurement = begin(f"tune_{args.task}", args, page_of)
    seeds = range(1, 2 if args.quick else args.seeds + 1)
    record = measurement.record({"starts": args.starts})
    for seed in seeds:
        if record.lacks(str(seed)):
            record.add(str(seed), _search(args, seed))
    searches = list(record.asked().values())
    measurement.finish(browser=searches[0].pop("browser"), task=args.task, not_measured=NOT_MEASURED, searches=searches)


def _search(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Local, blocking: one search with its trainings; the report of the first seed is kept and looked at."""
    with temporary_folder() as folder:
        found = _searched(args.task, args.data, seed, args.starts, folder)
        if seed == 1:
            args.out.mkdir(parents=True, exist_ok=True)
            report = args.out / f"tune_{args.task}_report.html"
            shutil.copy(folder / "study" / "report.html", report)
            found["browser"] = _look_at(report)
    return found


def _searched(task: str, data: str | None, seed: int, starts: int, folder: Path) -> dict[str, Any]:
    fixed = ("--set", f"data.seed={seed}", *(("--set", f"data.folder={data}") if data else ()))
    file = f"examples/{task}.py"
    command = ("tune", file, *OPTIONS[task], "--seed", str(seed), *fixed, "--out", str(folder / "study"))
    _unisono(command)
    study = json.loads((folder / "study" / "study.json").read_text())
    found = _journal(folder / "study")
    rows: dict[str, list[float]] = {"default": [], "found": []}
    for start in range(starts):
        for name, options in (("default", ("--all-data", *fixed)), ("found", ("--from-study", str(folder / "study")))):
            out = folder / f"{name}-{start}"
            _unisono(("train", file, *options, "--set", f"seed={start}", "--out", str(out), "--quiet"))
            summary = json.loads((out / "summary.json").read_text())
            rows[name].append(summary["metrics"][METRIC])
    return {
        "seed": seed,
        "command": " ".join(("unisono", *command)).replace(str(folder), "FOLDER").replace(data or "\0", "DIR"),
        "accuracy": rows,
        "num_test": summary["split"]["num_samples"]["test"],
        "versions": study["made_by"],
        **found,
    }


def _look_at(report: Path) -> str | None:
    """Open the report in a browser without a screen and keep a picture of it; what it was, and None where there is none."""
    browser = shutil.which("chromium")
    if browser is None:
        return None
    quiet = (browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr")
    picture = (f"--screenshot={report.with_suffix('.png')}", "--window-size=1100,4400")
    done = subprocess.run([*quiet, *picture, report.resolve().as_uri()], check=True, capture_output=True, text=True)
    told = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    drawn = subprocess.run([*quiet, "--dump-dom", report.resolve().as_uri()], check=True, capture_output=True, text=True).stdout
    if told or drawn.count("<svg") < 5:
        raise RuntimeError(f"the report does not open as it should: {told or 'pictures are missing'}")
    return subprocess.run([browser, "--version"], check=True, capture_output=True, text=True).stdout.strip()


def _unisono(arguments: Sequence[str]) -> None:
    subprocess.run([sys.executable, "-m", "unisono", *arguments], cwd=ROOT, check=True)


def _journal(folder: Path) -> dict[str, Any]:
    """What the search cost, and what it found."""
    from unisono.tuning.study.result import best_of, load_study

    about, study = load_study(folder)
    _, best = best_of(folder)
    assert best.result is not None
    default = study.trials[0].result
    ended = [
        (trial.attempts.get(trial.result.attempt), trial.result) for trial in study.trials.values() if trial.result is not None
    ]
    spans = [(attempt.began_s, result.took_s) for attempt, result in ended if attempt is not None]
    return {
        "worker_hours": sum(result.took_s for _, result in ended) * about["workers"] / 3600,
        "wall_s": max(one + took_s for one, took_s in spans) - min(one for one, _ in spans),
        "num_trials": len(study.trials),
        "best": {"trial": best.number, "values": dict(best.values or {}), "folds": list(best.result.values)},
        "default_on_folds": list(default.values) if default is not None else None,
        "trials": [
            {
                "number": trial.number,
                "values": dict(trial.values or {}),
                "state": trial.state,
                "result": list(trial.result.values) if trial.result is not None else None,
            }
            for trial in study.trials.values()
        ],
    }


def _error(search: Mapping[str, Any], which: str) -> float:
    return 1 - statistics.fmean(search["accuracy"][which])


def removed(searches: Sequence[Mapping[str, Any]]) -> float:
    """Pure: the share of the default's error, in the mean over all seeds, that the search removes."""
    before, after = (statistics.fmean(_error(one, which) for one in searches) for which in ("default", "found"))
    return 1 - after / before


def page_of(result: Result) -> Page:
    """Pure: the page of these raw data."""
    searches, task, share = result["searches"], result["task"], 100 * removed(result["searches"])
    bound = judge("mean of all seeds", share, "% of the error removed", at_least=LEAST_REMOVED)
    if task != "digits":
        gains = sum(_error(one, "found") < _error(one, "default") for one in searches)
        where, verdict = "accuracy on spatially disjoint pixels", "holds" if share > 0 else "MISSED"
        bound = Bound(
            where, f"{share:.2f} % of the error removed; it rises for {gains} of {len(searches)} seeds", "above 0", verdict
        )
    seen = f", opened in {result['browser']} without an error on its console ([picture](tune_{task}_report.png))"
    return Page(
        question=f"How much of the test error of {task} does a search with folds remove?",
        answer=f"{share:.0f} % in the mean, on data that it never saw.",
        result={"sittings": [result["moment"]] if "moment" in result else [], **result},
        setup=f"For each seed, which divides the data anew: `{searches[0]['command']}`. Each error is the mean of "
        f"{len(searches[0]['accuracy']['default'])} trainings from other random starts on all that is not test data, "
        f"{searches[0]['num_test']} test samples for each seed. No fold has a test sample in it.",
        tables=[_table(searches)],
        bounds=[bound],
        picture=_picture(task, searches),
        lists={
            "What was found": [
                f"seed {one['seed']}: " + ", ".join(f"{name} {value}" for name, value in one["best"]["values"].items())
                for one in searches
            ],
            "The report of the first search": [
                f"[tune_{task}_report.html](tune_{task}_report.html){seen if result['browser'] else ''}"
            ],
        },
        reading=[
            "The defaults were written down before the search was tried, and not changed since; they are those of a first try by "
            "hand."
        ],
        versions={"trainings": searches[0]["versions"]},
        not_measured=NOT_MEASURED,
        raw="every trial",
    )


def _table(searches: Sequence[Result]) -> Table:
    rows = []
    for one in searches:
        before, after = _error(one, "default"), _error(one, "found")
        less = f"{1 - after / before:.0%}" if before else ""
        rows.append(
            [str(one["seed"]), f"{before:.2%}", f"{after:.2%}", less, f"{one['worker_hours'] * 60:.1f}", f"{one['wall_s']:.0f} s"]
        )
    mean = [statistics.fmean(_error(one, which) for one in searches) for which in ("default", "found")]
    rows.append(["mean", f"{mean[0]:.2%}", f"{mean[1]:.2%}", f"{removed(searches):.0%}", "", ""])
    header = ["seed", "test error, default", "test error, found", "removed", "worker-minutes of the search", "its time"]
    return Table(header, rows)


def _picture(task: str, searches: Sequence[Result]) -> Picture:
    lines = []
    for name, colour, aside in (("default", COLOURS[3], -0.12), ("found", COLOURS[0], 0.12)):
        places, errors = [at + aside for at in range(len(searches))], [100 * _error(one, name) for one in searches]
        means = {"color": colour, "marker": "_", "markersize": 18, "linestyle": ""}
        lines.append(Line(f"{name} settings, mean", places, errors, look=means))
        points = [(at, 100 * (1 - value)) for at, one in zip(places, searches, strict=True) for value in one["accuracy"][name]]
        dots = {"color": colour, "marker": "o", "linestyle": "", "alpha": 0.5}
        lines.append(Line(f"{name} settings", [at for at, _ in points], [error for _, error in points], look=dots))
    seeds = [one["seed"] for one in searches]
    settings = {"xticks": range(len(seeds)), "xticklabels": seeds, "ylim": (0, None)}
    return Picture(f"{task}: error on test data", [[Panel("", "seed", "test error, %", lines, settings=settings)]])


if __name__ == "__main__":
    sys.exit(guarded(main))
