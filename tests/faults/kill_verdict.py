"""Whether a run that was killed and restored is the run that nobody disturbed. What is not so is said in sentences."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from unisono.files.manifest import DamagedFolder, read_manifest
from unisono.observe.jsonl import read_lines

TOLERANCE = 1e-5
"""Of weights on another number of workers: the norm of the difference, relative to that of the tensor."""
LOSS_TOLERANCE = 1e-4
TIMES = frozenset({"wall_s", "samples_per_s", "data_wait_s", "updates_per_s", "waiting", "server_load", "virtual_s"})
FILES = frozenset(
    {"config.json", "metrics.jsonl", "summary.json", "status.json", "weights.safetensors", "best.safetensors", "curves.png"}
)


@dataclass(frozen=True)
class Run:
    """A finished run, as far as it is compared."""

    summary: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]
    weights: Path
    best: Path
    calls: str
    """The record of the calls of a server; empty where there is none."""

    @classmethod
    def read(cls, out: Path) -> Run:
        """Local, blocking."""
        summary = json.loads((out / "summary.json").read_text())
        rows = [row for row in read_lines(out / "metrics.jsonl") if row["event"] in ("step", "epoch")]
        weights, best, calls = (out / name for name in ("weights.safetensors", "best.safetensors", "arrivals.txt"))
        text = calls.read_text() if calls.exists() else ""
        return cls(without_times(summary), tuple(without_times(row) for row in rows), weights, best, text)


def problems(out: Path, reference: Run, same_workers: bool) -> Iterator[str]:
    """Local, blocking: all that is wrong with a run that says it is finished; nothing if it is as it should be."""
    if missing := FILES - {path.name for path in out.iterdir()}:
        yield f"it says that it is finished, without {', '.join(sorted(missing))}"
        return
    run = Run.read(out)
    yield from _left_over(out)
    yield from _status(out)
    yield from _rows(run, reference)
    yield from (_same if same_workers else _close)(run, reference)


def damaged_checkpoints(out: Path) -> Iterator[str]:
    """Local, blocking: checkpoints with a good name that are not whole."""
    for path in (out / "checkpoints").glob("step-*"):
        try:
            read_manifest(path)
        except DamagedFolder as error:
            yield f"{path.name} is damaged: {error}"


def without_times(row: Mapping[str, Any]) -> dict[str, Any]:
    """Pure: also in what it holds."""
    kept = {name: value for name, value in row.items() if name not in TIMES}
    return {name: without_times(value) if isinstance(value, Mapping) else value for name, value in kept.items()}


def _left_over(out: Path) -> Iterator[str]:
    for path in sorted(out.rglob(".*")):
        if path != out / ".lock":
            yield f"{path.relative_to(out)} is left"
    yield from damaged_checkpoints(out)


def _status(out: Path) -> Iterator[str]:
    status = json.loads((out / "status.json").read_text())
    if (status["state"], status["exit_code"]) != ("finished", 0):
        yield f"status.json says {status['state']} with exit code {status['exit_code']}"
    if not all(life["end_unix_s"] for life in status["lives"]):
        yield "status.json has an attempt without an end"


def _rows(run: Run, reference: Run) -> Iterator[str]:
    for event in ("step", "epoch"):
        found = [row[event] for row in run.rows if row["event"] == event]
        wanted = [row[event] for row in reference.rows if row["event"] == event]
        if found != wanted:
            absent, twice = sorted({*wanted} - {*found}), sorted({one for one in found if found.count(one) > 1})
            yield f"metrics.jsonl: {event}s {absent} are missing, {twice} are there more than once ({len(found)} of {len(wanted)})"


def _same(run: Run, reference: Run) -> Iterator[str]:
    if run.calls != reference.calls:
        yield f"arrivals.txt has {run.calls.count(chr(10))} lines, the replay's {reference.calls.count(chr(10))}, or another order"
    for name in ("weights_sha256", "best_weights_sha256", "metrics", "steps", "epochs", "best_epoch", "reason"):
        if run.summary[name] != reference.summary[name]:
            yield f"{name} is {run.summary[name]}, undisturbed {reference.summary[name]}"
    for found, wanted in zip(run.summary["history"], reference.summary["history"], strict=True):
        if without_times(found) != without_times(wanted):
            yield f"epoch {wanted['epoch']} of the history is {without_times(found)}, undisturbed {without_times(wanted)}"
    by_step = {(row["event"], row["step"]): row for row in reference.rows}
    if others := [row for row in run.rows if row != by_step.get((row["event"], row["step"]))]:
        yield f"metrics.jsonl: {len(others)} rows differ, the first is {others[0]}"
    for name in ("weights", "best"):
        if off := deviation(getattr(run, name), getattr(reference, name)):
            yield f"{name}.safetensors differs by {off:.1e} of the norm of a tensor"


def _close(run: Run, reference: Run) -> Iterator[str]:
    if (off := deviation(run.weights, reference.weights)) > TOLERANCE:
        yield f"weights differ by {off:.1e} of their norm"
    for found, wanted in zip(run.rows, reference.rows, strict=False):
        if found["event"] == "step" and not math.isclose(
            found["loss"], wanted["loss"], rel_tol=LOSS_TOLERANCE, abs_tol=LOSS_TOLERANCE
        ):
            yield f"the loss of step {found['step']} is {found['loss']}, undisturbed {wanted['loss']}"
            return


def deviation(file: Path, reference: Path) -> float:
    """Local: the largest difference of a tensor between two files, as its norm relative to that of the tensor."""
    found, wanted = load_file(file), load_file(reference)
    assert found.keys() == wanted.keys()
    pairs = [(found[name].double(), wanted[name].double()) for name in wanted]
    return max(float((one - other).norm() / other.norm()) if other.norm() else float(one.norm()) for one, other in pairs)
