"""How long until `mnist_cnn` reads 99 % of the MNIST test images, on one worker and on two, and where does it end?

    python -m bench.time_to_accuracy --data DIR            # DIR/mnist holds the four files (unisono data get mnist)
    python -m bench.time_to_accuracy --data DIR --workers 2 --epochs 3

Runs examples/mnist_cnn.py as users do, once for each number of workers, one after the other, each to its last epoch. Writes
mnist_cnn.md, mnist_cnn.json (every epoch of every run) and mnist_cnn.png.
"""

from __future__ import annotations

import argparse
import json
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

TARGET, LEAST, HOPED = 0.99, 0.993, 0.995
METRIC = "val_accuracy"
NOT_MEASURED = (
    "One run for each number of workers: how far times and the epoch that first reaches 99 % move from run to run is not known. "
    "Other seeds, other machines, GPUs and several nodes are not measured here."
)


def main() -> None:
    """Local, blocking: train, and publish what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, metavar="DIR", help="the folder that holds the folder mnist")
    parser.add_argument("--workers", default="1,2", metavar="N,N", help="numbers of workers, one run each (default 1,2)")
    parser.add_argument("--epochs", metavar="E", help="fewer epochs than the example's, for a try")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", metavar="DIR")
    args = parser.parse_args()
    runs = [_run(int(workers), args.data, args.epochs) for workers in args.workers.split(",")]
    command = command_line().replace(args.data, "DIR")
    result = {"command": command, "machine": describe_machine(), "target": TARGET, "runs": runs}
    args.out.mkdir(parents=True, exist_ok=True)
    write_json(args.out / "mnist_cnn.json", result)
    (args.out / "mnist_cnn.md").write_text(_page(result))
    _draw(runs, args.out / "mnist_cnn.png")
    print(_table(runs))


def _run(workers: int, data: str, epochs: str | None) -> dict[str, Any]:
    moment = describe_moment()
    with tempfile.TemporaryDirectory(prefix="unisono-bench-") as folder:
        command = [
            sys.executable,
            "-m",
            "unisono",
            "train",
            "examples/mnist_cnn.py",
            "-n",
            str(workers),
            "--set",
            f"data.root={data}",
        ]
        command += ["--out", f"{folder}/run", *(("--epochs", epochs) if epochs else ())]
        subprocess.run(command, cwd=ROOT, check=True)
        summary = json.loads((Path(folder) / "run" / "summary.json").read_text())
    kept = ("num_workers", "threads", "engine", "global_batch", "steps", "samples_per_s", "wall_s", "train_s", "data_wait_s")
    return {
        **{name: summary[name] for name in kept},
        "moment": moment,
        "settings": summary["config"]["settings"],
        "versions": summary["versions"],
        "weights_sha256": summary["weights_sha256"],
        "epochs": [{"epoch": row["epoch"] + 1, "wall_s": row["wall_s"], **row["metrics"]} for row in summary["history"]],
    }


def reached(run: Mapping[str, Any], target: float = TARGET) -> tuple[int, float] | None:
    """Pure: the first epoch that was this good, and the seconds until its end; None if there was none."""
    return next(((row["epoch"], row["wall_s"]) for row in run["epochs"] if row[METRIC] >= target), None)


def _table(runs: Sequence[Mapping[str, Any]]) -> str:
    header = ["workers", "threads each", "to 99 %", "test accuracy at the end", "best epoch", "samples/s", "whole run"]
    rows = []
    for run in runs:
        when = reached(run)
        rows.append(
            [
                str(run["num_workers"]),
                str(run["threads"]),
                f"{when[1]:.0f} s (epoch {when[0]})" if when else "not reached",
                f"{run['epochs'][-1][METRIC]:.2%}",
                f"{max(row[METRIC] for row in run['epochs']):.2%}",
                f"{run['samples_per_s']:.0f}",
                f"{run['wall_s']:.0f} s",
            ]
        )
    return markdown_table(header, rows)


def _page(result: Mapping[str, Any]) -> str:
    runs = result["runs"]
    lowest = min(run["epochs"][-1][METRIC] for run in runs)
    verdict = "holds" if lowest >= LEAST else "MISSED"
    hoped = "reached too" if lowest >= HOPED else "not reached by all"
    settings = runs[0]["settings"]
    told = ("optimizer", "lr", "schedule", "global_batch", "epochs", "augment", "seed")
    machine = "\n".join(f"- {name}: {value}" for name, value in result["machine"].items())
    moments = "\n".join(f"- {run['num_workers']} workers: {run['moment']}" for run in runs)
    versions = ", ".join(f"{name} {version}" for name, version in runs[0]["versions"].items())
    return f"""# mnist_cnn: time to 99 %, and where it ends

`{result["command"]}`

{_table(runs)}

**{verdict}**: at least {LEAST:.1%} of the 10,000 test images with the last weights of every run (hoped for {HOPED:.1%}: {hoped}).

![accuracy over time](mnist_cnn.png)

Times begin when the training begins, after the packages are loaded and the data read, and hold the evaluations. The last epoch
counts.
The learning rate was chosen among three by their test accuracy at the end, on a GPU; nothing else was chosen by the test images.
Settings: {", ".join(f"{name} {settings[name]}" for name in told)}.
Workers use other dropout masks, so their weights differ; everything else is the same mathematics.

All workers together have the same cores: {result["machine"]["cores"]}.

## Not measured

{NOT_MEASURED}

## Where

{machine}
{moments}
- {versions}

Raw data: [mnist_cnn.json](mnist_cnn.json)
"""


def _draw(runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.add_subplot()
    for run in runs:
        plural = "" if run["num_workers"] == 1 else "s"
        times = [row["wall_s"] for row in run["epochs"]]
        axes.plot(
            times, [100 * row[METRIC] for row in run["epochs"]], marker="o", ms=3, label=f"{run['num_workers']} worker{plural}"
        )
    axes.axhline(100 * TARGET, color="0.4", lw=1, ls=":", label="99 %")
    axes.set(xlabel="seconds", ylabel="test accuracy, %", ylim=(97, 100))
    axes.legend()
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    main()
