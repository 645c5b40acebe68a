"""`unisono verify`: train a run again with another number of workers and compare the weights, bit for bit."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unisono.errors import UsageError

DESCRIPTION = """Repeats a run that was trained with --shards, with another number of workers, and compares the hashes of all
weights: after each of the first steps, or after each epoch to the end. Shows the first step and tensor that differ."""
EPILOG = """examples:
  unisono verify runs/digits                 20 steps with another number of workers
  unisono verify runs/digits -n 4 --steps 100
  unisono verify runs/digits -n 1 --whole    the whole training, against its recorded hashes
exit codes: 0 the same bits, 1 a difference, 2 a mistake in the command"""

DEFAULT_STEPS = 20
OVERRIDES = ("--checkpoint-every", "never", "--restarts", "0", "--time-limit", "365d")
"""Appended to the command of the run; of an option that is given twice the last one counts."""


@dataclass(frozen=True)
class TrainedRun:
    """A finished run that is to be verified."""

    path: Path
    command: Sequence[str]
    """The command as typed, without `unisono train` and the task."""
    task: Path
    directory: Path
    num_workers: int
    summary: Mapping[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Local: adds the options of the verb."""
    parser.add_argument("run", metavar="RUN", help="the run directory")
    parser.add_argument(
        "-n", type=int, metavar="N", help="number of workers of the new training (default 1, or 2 if the run had 1)"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--steps", type=int, metavar="K", help=f"compare the first K steps (default {DEFAULT_STEPS})")
    how.add_argument(
        "--whole", action="store_true", help="repeat the whole training and compare with the hashes that the run recorded"
    )
    parser.add_argument("--task", metavar="TASK.py", help="path of the task file, if it has moved")
    parser.add_argument("--engine", metavar="E", help="how the workers communicate: auto (default), single, shm, gloo or mpi")


def main(args: argparse.Namespace, argv: Sequence[str] = ()) -> int:  # noqa: ARG001 - as every verb is called
    """Local, blocking: trains a run again and prints the comparison; returns the exit code."""
    from unisono.cluster.resolve import current_topology

    if current_topology().launcher != "local":
        raise UsageError("unisono verify starts its workers itself; run it once, without srun, mpirun or torchrun")
    for option, value in (("-n", args.n), ("--steps", args.steps)):
        if value is not None and value < 1:
            raise UsageError(f"{option} must be at least 1; received {value}")
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))  # so that nothing is left behind
    run = read_trained_run(Path(args.run), args.task)
    num_workers = args.n or (2 if run.num_workers == 1 else 1)
    with tempfile.TemporaryDirectory(prefix="unisono-verify-") as folder:
        if args.whole:
            return _compare_results(run, Path(folder), num_workers, args.engine)
        return _compare_steps(run, Path(folder), num_workers, args.engine, args.steps or DEFAULT_STEPS)


def read_trained_run(path: Path, task: str | None) -> TrainedRun:
    """Local: reads the run in a directory; refuses one whose bits depend on the number of workers."""
    from unisono.task.task_file import check_file
    from unisono.training.run_folder.provenance import provenance, sources_of
    from unisono.training.run_folder.run_directory import differences
    from unisono.training.run_folder.run_status import describe_unfinished

    try:
        summary = json.loads((path / "summary.json").read_text())
    except FileNotFoundError:
        raise UsageError(f"{path} {describe_unfinished(path)}") from None
    except ValueError as error:
        raise UsageError(f"{path / 'summary.json'} is not valid JSON ({error}); train the run again") from error
    if summary["config"]["settings"].get("shards") is None:
        raise UsageError(
            f"{path} was trained without --shards, so its bits depend on the number of workers and cannot be compared; "
            "train it with --shards S"
        )
    if summary["accepted_changes"]:
        raise UsageError(
            f"{path} was resumed with changed settings ({summary['accepted_changes'][0]}); no single command reproduces it"
        )
    made = summary["provenance"]
    command = made["command"]
    if not command or command[:2] != ["unisono", "train"]:
        raise UsageError(f"{path} was not trained by `unisono train`, so its command is not known; train it with `unisono train`")
    directory = Path(made["directory"]) if task is None else Path.cwd()
    file = Path(made["task"]["file"] if task is None else task).resolve()
    check_file(file)
    sources = sources_of(provenance(file)["task"])
    if changed := list(differences(summary["config"]["sources"], sources, "sources")):
        raise UsageError(f"the task of {path} has changed since it was trained: {changed[0]}; restore it, or train it again")
    if not directory.is_dir():
        raise UsageError(
            f"{directory}, where {path} was trained, does not exist here; give --task, and run this where the task finds its data"
        )
    as_typed = summary["config"]["task_file"]
    return TrainedRun(path, [word for word in command[2:] if word != as_typed], file, directory, summary["num_workers"], summary)


def _train(run: TrainedRun, out: Path, num_workers: int, engine: str | None, *options: str) -> Path:
    """Local, blocking: repeats the training in a directory of its own."""
    command = [sys.executable, "-m", "unisono.cli", "train", str(run.task), *run.command, *OVERRIDES, "--out", str(out)]
    if "data_seed" not in run.summary["config"]["settings"]:  # an older version, which seeded nothing for `data`
        command += ["--set", "data_seed=none"]
    command += ["-n", str(num_workers), "--engine", engine or "auto", *options]
    print(f"unisono verify: {run.task.name} with {_workers(num_workers)}", flush=True)
    done = subprocess.run(command, cwd=run.directory, check=False)
    if done.returncode not in (0, 75):
        raise UsageError(
            f"the training with {_workers(num_workers)} ended with exit code {done.returncode}; see its error message above"
        )
    return out


def _compare_steps(run: TrainedRun, folder: Path, num_workers: int, engine: str | None, steps: int) -> int:
    """Trains the first steps again and compares the hashes of all tensors with the run's; returns 0 if all are equal, else 1."""
    from unisono.training.run_folder.hash_record import FILE, first_difference, read_hashes

    recorded = run.path / FILE
    options = ("--hash-every", "1", "--max-steps", str(steps))
    if recorded.exists():
        there = read_hashes(recorded)
    else:
        there = read_hashes(_train(run, folder / "as-it-was", run.num_workers, None, *options) / FILE)
        shutil.rmtree(folder / "as-it-was")
    again = _train(run, folder / "again", num_workers, engine, *options)
    _report_changes(run, again)
    here = read_hashes(again / FILE)
    compared = sorted(there.keys() & here.keys())
    if not compared:
        raise UsageError(
            f"{recorded} has hashes of steps {', '.join(map(str, list(there)[:5]))}, ... but none of the first {steps}; "
            f"give --steps {min(there, default=1)} or more, or --whole"
        )
    found = first_difference(there, here)
    both = f"{_workers(run.num_workers)} and {_workers(num_workers)}"
    if found is not None:
        step, names = found
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        print(
            f"DIFFERENT: {run.path} after step {step}: {names[0]}{more}: {there[step].get(names[0])} with "
            f"{_workers(run.num_workers)}, {here[step].get(names[0])} with {_workers(num_workers)}"
        )
        return 1
    how = (
        ""
        if recorded.exists()
        else " (of two new trainings, as the run recorded no hashes of steps; --whole compares with the run itself)"
    )
    print(f"the same bits: {run.path}, {len(compared)} steps up to step {compared[-1]}, with {both}{how}")
    return 0


def _compare_results(run: TrainedRun, folder: Path, num_workers: int, engine: str | None) -> int:
    """Repeats the whole training and compares the weights after each epoch and at the end; returns 0 if equal, else 1."""
    cut_short = ("--max-steps", str(run.summary["steps"])) if run.summary["reason"] == "interrupted" else ()
    out = _train(run, folder / "again", num_workers, engine, *cut_short)
    _report_changes(run, out)
    again = json.loads((out / "summary.json").read_text())
    for there, here in zip(run.summary["history"], again["history"], strict=False):
        if there["weights"] != here["weights"]:
            print(
                f"DIFFERENT: {run.path} after epoch {there['epoch'] + 1}: {there['weights']} with {_workers(run.num_workers)}, "
                f"{here['weights']} with {_workers(num_workers)}; --steps K shows the step and the tensor"
            )
            return 1
    if (run.summary["steps"], run.summary["weights_sha256"]) != (again["steps"], again["weights_sha256"]):
        print(f"DIFFERENT: {run.path} ended with other weights than the training with {_workers(num_workers)}")
        return 1
    print(
        f"the same bits: {run.path}, all {again['steps']} steps, with {_workers(run.num_workers)} and {_workers(num_workers)}: "
        f"{again['weights_sha256']}"
    )
    return 0


def _report_changes(run: TrainedRun, again: Path) -> None:
    """Prints what has changed since the run was trained, which may explain a difference."""
    from unisono.data.data_differences import describe_changed_values
    from unisono.training.determinism import describe_changes
    from unisono.training.run_folder.run_directory import differences

    now = json.loads((again / "summary.json").read_text())
    there, here = ({**one["config"]["samples"]} for one in (run.summary, now))
    values = describe_changed_values(there.pop("values", {}), here.pop("values"))
    changed = [*differences(there, here, "samples"), *(f"the values of {one} have changed" for one in values)]
    for text in (*describe_changes(run.summary["promise"], now["promise"]), *changed):
        print(f"warning: {text}; different bits are to be expected")


def _workers(number: int) -> str:
    """Returns '1 worker' or '4 workers'."""
    return f"{number} worker{'s' if number != 1 else ''}"
