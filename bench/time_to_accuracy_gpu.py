"""How long does one GPU need until a network reads 99 % of the MNIST test images? The median of ten seeds.

    python -m bench.time_to_accuracy_gpu --mnist DIR --out FOLDER      # on the machine with the GPU; a quarter of a minute a seed
    python -m bench.time_to_accuracy_gpu --page FOLDER/mnist_gpu.json  # anywhere: page and picture from what was measured
    python -m bench.time_to_accuracy_gpu --mnist DIR --quick           # few images, on the CPU: a look whether it works

Runs `unisono train bench/mnist_gpu_task.py --target 0.99`, once for each seed, one after the other; DIR holds the four files.
mnist_gpu.json is written after every run.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.bounds import Bound, judge
from bench.contenders.gpu import OPTIONS, OURS
from bench.figure import Line, Picture, of_accuracy
from bench.gpu import describe_gpu
from bench.groups import ROOT, temporary_folder
from bench.measurement import begin, guarded
from bench.options import parse, parser_of
from bench.page import Page, Result, Table, one_line
from bench.record import write_json
from bench.rounds import estimate
from bench.trainings import METRIC

TASK = "bench/mnist_gpu_task.py"
TARGET, MOST_S = 0.99, 0.5
LIMIT_S = 300.0
KEPT = (
    "reason",
    "steps",
    "num_samples",
    "epochs",
    "device",
    "num_parameters",
    "global_batch",
    "wall_s",
    "train_s",
    "time_to_target_s",
)
NOT_MEASURED = (
    "Other GPUs; a data set that does not lie in the memory of the GPU.",
    "How far the recipe was chosen by the test images: batch, epochs and width were, among a few, with seeds 0 to 9 on a CPU.",
)


def main() -> None:
    """Local, blocking: train, or make the page."""
    parser = parser_of("time_to_accuracy_gpu", __doc__)
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="0 to N - 1 (default 10)")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--mnist", type=Path, metavar="DIR", help="the folder with the four files (unisono data get mnist)")
    parser.add_argument("--compile", default="auto", choices=("auto", "on", "off"))
    parser.add_argument("--page", type=Path, metavar="FILE", help="make the page from these raw data")
    args = parse(parser, device="cpu", seeds="1")
    if args.page:
        write_json(args.out / "mnist_gpu.json", json.loads(args.page.read_text()))
        args.page_only = True
    measurement = begin("mnist_gpu", args, page_of)
    if args.mnist is None:
        parser.error("--mnist DIR is needed: the folder with the four files of MNIST (unisono data get mnist)")
    options, left_out = known_options({**OPTIONS[OURS], "compile": args.compile, "device": args.device})
    record = measurement.record({"options": options, "target": TARGET})
    more: dict[str, Any] = {"left_out": left_out, "not_measured": NOT_MEASURED, "machine": describe_gpu()}
    for seed in range(args.seeds):
        if record.lacks(key := f"seed {seed}"):
            record.add(key, run(seed, args.mnist.resolve(), options, args.quick))
            measurement.progress.keep(f"{key}: {told_of(record.blocks[key])}")
        measurement.write(runs=record.asked(), **more)
    record.finish()
    print(*page_of(json.loads((args.out / "mnist_gpu.json").read_text())).tables, sep="\n\n")
    measurement.progress.keep(f"written to {args.out}/mnist_gpu.json after {measurement.watch}; --page makes a page of it")


def known_options(options: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Local: those that this version has as it reads them on the command line, and the names of the others."""
    from unisono.start_training import TRAIN_OPTIONS
    from unisono.task.options import keywords_of

    known = keywords_of(*TRAIN_OPTIONS)
    words = [word for name, value in options.items() if name in known for word in (f"--{name}", str(value))]
    return words, [name for name in options if name not in known]


def run(seed: int, mnist: Path, options: Sequence[str], is_quick: bool) -> dict[str, Any]:
    """Blocking: one training; where it fails, why."""
    few = ["--set", "data.most=2000"] if is_quick else []
    with temporary_folder() as folder:
        out = folder / "run"
        words = ["train", TASK, "--seed", str(seed), "--target", str(TARGET), "--set", f"data.mnist={mnist}", *few, *options]
        command = [sys.executable, "-m", "unisono", *words, "--checkpoint-every", "never", "--out", str(out)]
        began = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        command_s = time.perf_counter() - began
        if done.returncode:
            return {"seed": seed, "failure": one_line((done.stdout + done.stderr)[-600:])}
        summary = json.loads((out / "summary.json").read_text())
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    first = next(line for line in lines if line.get("event") == "step")
    return {
        "seed": seed,
        "command_s": command_s,
        "first_step_s": first["wall_s"],
        **{name: summary[name] for name in KEPT},
        "epochs_done": [{"epoch": row["epoch"] + 1, "wall_s": row["wall_s"], **row["metrics"]} for row in summary["history"]],
        "versions": summary["versions"],
        "said": [line for line in done.stdout.splitlines() if "epoch" not in line][:20],
    }


def training_s(one: Mapping[str, Any]) -> float:
    """Pure: seconds from the end of the first step to the end of the evaluation that found 99 %, with the first step counted like
    the others; infinite where none found it."""
    if one.get("time_to_target_s") is None:
        return float("inf")
    later = float(one["time_to_target_s"]) - float(one["first_step_s"])
    return later * int(one["steps"]) / max(1, int(one["steps"]) - 1)


def told_of(one: Mapping[str, Any]) -> str:
    """Pure: a run in a few words."""
    if "failure" in one:
        return f"failed: {one['failure']}"
    accuracy = 100 * one["epochs_done"][-1][METRIC]
    return f"{accuracy:.2f} % after {one['steps']} steps, {training_s(one):.3f} s of training, command {one['command_s']:.1f} s"


def page_of(result: Result) -> Page:
    """Pure: the page of these raw data."""
    runs = list(result["runs"].values())
    done = [one for one in runs if "failure" not in one]
    times = [training_s(one) for one in runs]
    reached = [value for value in times if value < float("inf")]
    bounds = [_of_seeds(len(reached), len(runs))]
    median = statistics.median(times) if times else float("inf")
    if len(reached) == len(runs):
        bounds.append(judge("training, median", estimate(np.asarray(reached)), "s", at_most=MOST_S))
    else:
        bounds.append(
            Bound("training, median", f"{median:.2f} s", f"at most {MOST_S:g}", "holds" if median <= MOST_S else "MISSED")
        )
    command_s = statistics.median(one["command_s"] for one in done) if done else float("inf")
    rows = [
        {
            "seed": str(one["seed"]),
            "test accuracy, %": f"{100 * one['epochs_done'][-1][METRIC]:.2f}",
            "epochs": str(len(one["epochs_done"])),
            "samples": f"{one['num_samples']:,}",
            "training, s": f"{training_s(one):.3f}",
            "before it, s": f"{one['first_step_s']:.1f}",
            "whole command, s": f"{one['command_s']:.1f}",
        }
        for one in done
    ]
    lines = [
        Line(
            f"seed {one['seed']}",
            [row["wall_s"] - one["first_step_s"] for row in one["epochs_done"]],
            [100 * row[METRIC] for row in one["epochs_done"]],
        )
        for one in done
    ]
    return Page(
        question="How long does one GPU need until a network reads 99 % of the MNIST test images?",
        answer=f"{median:.2f} s of training, the median of {len(runs)} seeds; the whole command takes {command_s:.0f} s.",
        result={**result, "absent": {f"seed {one['seed']}": one["failure"] for one in runs if "failure" in one}},
        setup=f"`unisono train {TASK}` with a target of 99 %, once for each seed; {len(runs) - len(done)} runs failed.",
        tables=[Table.of(rows)],
        bounds=bounds,
        picture=Picture("Test accuracy after each epoch", [[of_accuracy("", "seconds of training", lines, 100 * TARGET)]]),
        reading=[
            "*Training* is from the first step to the end of the evaluation that found 99 %; all evaluations are in it. The first "
            "step counts as long as the others: capture and compilation fall into it or come before it.",
            "*Before it*: from the moment when data and model are there to the end of the first step, with capture and "
            "compilation. *Whole command*: from the start of Python to its end.",
        ],
        raw="every epoch of every run",
    )


def _of_seeds(num_reached: int, num_runs: int) -> Bound:
    """Every seed must get there."""
    verdict = "holds" if num_reached == num_runs else "MISSED"
    return Bound("seeds that reach 99 %", f"{num_reached} of {num_runs}", f"{num_runs}", verdict)


if __name__ == "__main__":
    sys.exit(guarded(main))
