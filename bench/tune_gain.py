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
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.groups import ROOT
from bench.machine import command_line, describe_machine, describe_moment
from bench.record import write_json
from bench.rounds import markdown_table

LEAST_REMOVED = 0.25
OPTIONS: Mapping[str, Sequence[str]] = {
    "digits": ("-n", "4", "--workers", "1", "--folds", "3", "--trials", "24"),
    "indian_pines": ("-n", "2", "--workers", "1", "--folds", "3", "--trials", "30"),
}
METRIC = "test_accuracy"
NOT_MEASURED = (
    "Other searches than the default, more trials, GPUs. The defaults were written down before the search was tried, not changed "
    "since; they are those of a first try by hand."
)


def main() -> None:
    """Local, blocking: search, train, and publish what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=tuple(OPTIONS), default="digits")
    parser.add_argument("--data", metavar="DIR", help="the folder with the files of the scene (indian_pines)")
    parser.add_argument("--seeds", type=int, default=5, metavar="S", help="divisions of the data, a search for each (default 5)")
    parser.add_argument("--starts", type=int, default=3, metavar="K", help="random starts of each training at the end (default 3)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", metavar="DIR")
    args = parser.parse_args()
    moment = describe_moment()
    searches = []
    for seed in range(1, args.seeds + 1):
        with tempfile.TemporaryDirectory(prefix="unisono-bench-") as folder:
            searches.append(_search(args.task, args.data, seed, args.starts, Path(folder)))
            if seed == 1:
                args.out.mkdir(parents=True, exist_ok=True)
                report = args.out / f"tune_{args.task}_report.html"
                shutil.copy(Path(folder) / "study" / "report.html", report)
                looked = _look_at(report)
        print(_table(searches), flush=True)
    command = command_line().replace(args.data, "DIR") if args.data else command_line()
    result = {
        "command": command,
        "browser": looked,
        "machine": describe_machine(),
        "moment": moment,
        "task": args.task,
        "searches": searches,
    }
    write_json(args.out / f"tune_{args.task}.json", result)
    (args.out / f"tune_{args.task}.md").write_text(_page(result))
    _draw(searches, args.out / f"tune_{args.task}.png")


def _search(task: str, data: str | None, seed: int, starts: int, folder: Path) -> dict[str, Any]:
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
    from unisono.tuning.result import best_of, read

    about, study = read(folder)
    _, best = best_of(folder)
    assert best.result is not None
    default = study.trials[0].result
    spans = [
        (attempt.began_s, trial.result.took_s)
        for trial in study.trials.values()
        if trial.result is not None and (attempt := trial.attempts.get(trial.result.attempt)) is not None
    ]
    return {
        "worker_hours": sum(trial.result.took_s for trial in study.trials.values() if trial.result is not None)
        * about["workers"]
        / 3600,
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


def _table(searches: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            str(one["seed"]),
            f"{_error(one, 'default'):.2%}",
            f"{_error(one, 'found'):.2%}",
            f"{1 - _error(one, 'found') / _error(one, 'default'):.0%}" if _error(one, "default") else "",
            f"{one['worker_hours'] * 60:.1f}",
            f"{one['wall_s']:.0f} s",
        ]
        for one in searches
    ]
    mean = [statistics.fmean(_error(one, which) for one in searches) for which in ("default", "found")]
    rows.append(["mean", f"{mean[0]:.2%}", f"{mean[1]:.2%}", f"{removed(searches):.0%}", "", ""])
    header = ["seed", "test error, default", "test error, found", "removed", "worker-minutes of the search", "its time"]
    return markdown_table(header, rows)


def _page(result: Mapping[str, Any]) -> str:
    searches, task = result["searches"], result["task"]
    share = removed(searches)
    verdict = f"**{'holds' if share >= LEAST_REMOVED else 'MISSED'}**: at least {LEAST_REMOVED:.0%} of the error is removed"
    if task != "digits":
        gains = sum(_error(one, "found") < _error(one, "default") for one in searches)
        rises = f"accuracy on spatially disjoint pixels rises, here for {gains} of {len(searches)} seeds"
        verdict = f"**{'holds' if share > 0 else 'MISSED'}**: {rises}"
    best = "\n".join(
        f"- seed {one['seed']}: " + ", ".join(f"{name} {value}" for name, value in one["best"]["values"].items())
        for one in searches
    )
    machine = "\n".join(f"- {name}: {value}" for name, value in result["machine"].items())
    versions = ", ".join(f"{name} {version}" for name, version in searches[0]["versions"].items())
    picture = f"[picture](tune_{task}_report.png)"
    seen = f", opened in {result['browser']} without an error on its console ({picture})" if result["browser"] else ""
    return f"""# {task}: what a search gains on data that it never saw

`{result["command"]}`; for each seed `{searches[0]["command"]}`

{_table(searches)}

{verdict} ({share:.0%} in the mean). Each error is the mean of {len(searches[0]["accuracy"]["default"])} trainings from other random
starts on all that is not test data, {searches[0]["num_test"]} test samples for each seed. No fold has a test sample in it.

![errors](tune_{task}.png)

The report of the first search: [tune_{task}_report.html](tune_{task}_report.html){seen}.

## What was found

{best}

## Not measured

{NOT_MEASURED}

## Where

{machine}
- {result["moment"]}
- {versions}

Raw data, every trial: [tune_{task}.json](tune_{task}.json)
"""


def _draw(searches: Sequence[Mapping[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.add_subplot()
    for name, colour, shift in (("default", "#D55E00", -0.12), ("found", "#0072B2", 0.12)):
        for at, one in enumerate(searches):
            values = [100 * (1 - value) for value in one["accuracy"][name]]
            axes.plot([at + shift] * len(values), values, "o", color=colour, ms=4, alpha=0.5)
            axes.plot(
                [at + shift - 0.08, at + shift + 0.08],
                [100 * _error(one, name)] * 2,
                color=colour,
                lw=2,
                label=f"{name} settings" if not at else None,
            )
    axes.set(xlabel="seed", ylabel="test error, %", xticks=range(len(searches)), xticklabels=[one["seed"] for one in searches])
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    main()
