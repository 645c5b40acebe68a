"""Does the trained model depend on the number of workers? One table of hashes: cases x workers x engines, and runs that are killed.

    python -m bench.invariance --mnist DIR       # DIR holds the files of MNIST (unisono data get mnist); about 20 minutes
    python -m bench.invariance --gpu             # 1 to 4 processes that share one GPU, 4 shards; writes invariance_gpu.*
    python -m bench.invariance --quick           # fewer workers, one engine, no MNIST

Writes invariance.md and invariance.json (every run: hash of its weights, of each epoch, its metrics). Measures no time.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.bounds import Bound
from bench.groups import ROOT, temporary_folder
from bench.measurement import begin, guarded
from bench.options import parse, parser_of
from bench.page import Page, Result, Table
from bench.record import Record

TASK = ROOT / "bench" / "sharded_task.py"
MPIRUN = Path(sys.executable).parent / "mpirun"
WORKERS = (1, 2, 3, 4, 5, 8)
ENGINES = ("shm", "mpi", "gloo")
CHANGES = (4, 3, 1, 8)
"""Workers of a run that is killed in the middle of an epoch after each but the last."""
LIMIT_S = 300
SHOWN = ("torch", "mkl", "onednn", "cpu_capability", "threads", "gpu", "cuda", "cudnn", "cublas_workspace")
"""Of the conditions of the promise."""
NOT_CHECKED = (
    "Other CPUs: all runs were made on one machine. What different CPUs agree on under --portable is in concepts-invariance.md.",
    "GPUs: see invariance_gpu.md.",
    "Several nodes: all workers were processes of one machine, and gloo went over its loopback.",
    "Values that a LightningModule logs by itself: they agree to rounding only.",
)


NOT_CHECKED_ON_GPU = (
    "Other GPUs, several GPUs, NCCL between processes; processes share one GPU here and their sums go through the host's memory.",
    "Other versions of PyTorch, CUDA and cuDNN; networks that use operations other than those of the cases.",
)


@dataclass(frozen=True)
class Case:
    """One training that is to end with the same bits everywhere."""

    name: str
    options: Sequence[str]
    num_shards: int = 8
    needs_mnist: bool = False


CASES = (
    Case("MLP, dropout, SGD with momentum, 8 shards of 8", ("--set", "optimizer.momentum=0.9")),
    Case("MLP, dropout, Adam, 8 shards of one sample", ("--set", "optimizer=adam", "--global-batch", "8", "--epochs", "1")),
    Case("batch-norm, Adam, 8 shards of 8", ("--set", "model.kind=norm", "--set", "optimizer=adam")),
    Case(
        "batch-norm, SGD with momentum, 12 shards of 4 and 5",
        ("--set", "model.kind=norm", "--set", "optimizer.momentum=0.9", "--global-batch", "52", "--shards", "12"),
        num_shards=12,
    ),
    Case(
        "MNIST CNN, dropout, Adam, 8 shards of 8",
        ("--set", "model.kind=cnn", "--set", "optimizer=adam", "--lr", "0.001"),
        needs_mnist=True,
    ),
)


def main() -> int:
    """Local, blocking: train, and publish the table. 1 if two hashes of a case differ."""
    parser = parser_of("invariance", __doc__)
    parser.add_argument("--mnist", type=Path, metavar="DIR", help="the folder of MNIST; without it that case is left out")
    parser.add_argument("--gpu", action="store_true", help="processes that share the GPU of this machine, 4 shards")
    args = parse(parser)
    measurement = begin("invariance_gpu" if args.gpu else "invariance", args, page_of)
    record = measurement.record({"mnist": args.mnist is not None})
    for case in CASES[::2] if args.gpu else CASES:
        if case.needs_mnist and args.mnist is None:
            continue
        options = [*case.options, *(("--set", f"data.mnist={args.mnist.resolve()}") if case.needs_mnist else ())]
        options += ["--shards", "4", "--device", "cuda"] if args.gpu else []
        name = re.sub(r"\d+ shards.*", "4 shards", case.name) if args.gpu else case.name
        for workers, engine in _divisions(args.quick, args.gpu):
            _row(record, name, str(workers), engine, partial(_run, options, workers, engine))
        if not args.gpu:
            changes = (2, 1, 3) if args.quick else CHANGES
            killed = partial(_killed, options, changes, case.num_shards)
            _row(record, name, " -> ".join(map(str, changes)), "shm, killed", killed)
    rows = list(record.asked().values())
    left_out = [f"{case.name}: left out, as --mnist was not given." for case in CASES if case.needs_mnist and args.mnist is None]
    measurement.finish(not_checked=[*left_out, *(NOT_CHECKED_ON_GPU if args.gpu else NOT_CHECKED)], rows=rows)
    return 0 if all(len(hashes) == 1 for hashes in _hashes(rows).values()) else 1


def _row(record: Record, case: str, workers: str, engine: str, run: Callable[[], dict[str, Any]]) -> None:
    """One run that the record lacks."""
    if record.lacks(key := f"{case}: {workers} workers, {engine}"):
        record.add(key, {"case": case, "workers": workers, "engine": engine, **run()})


def _divisions(quick: bool, gpu: bool) -> Iterator[tuple[int, str]]:
    if gpu:
        yield from ((1, "auto"), (2, "shm"), (3, "shm"), (4, "shm"))
        return
    yield 1, "single"
    for engine in ENGINES[:1] if quick else ENGINES:
        for workers in (2, 3) if quick else WORKERS[1:]:
            yield workers, engine


def _run(options: Sequence[str], workers: int, engine: str) -> dict[str, Any]:
    with temporary_folder() as folder:
        _attempt(folder, options, workers, engine)
        return _found(folder)


def _killed(options: Sequence[str], changes: Sequence[int], num_shards: int) -> dict[str, Any]:
    """Each attempt but the last is killed, in the middle of an epoch, when it has computed so many shards."""
    with temporary_folder() as folder:
        for number, workers in enumerate(changes):
            is_last = number == len(changes) - 1
            if not is_last:
                (folder / "kill-at").write_text(str(3 * -(-num_shards // workers) + 1))
            _attempt(folder, options, workers, "shm" if workers > 1 else "single", killed=not is_last)
        return _found(folder)


def _attempt(folder: Path, options: Sequence[str], workers: int, engine: str, killed: bool = False) -> None:
    command = [sys.executable, "-m", "unisono", "train", str(TASK), *options, "--engine", engine, "-n", str(workers)]
    if engine == "mpi":
        as_root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
        command = [str(MPIRUN), *as_root, "--oversubscribe", "-n", str(workers), *command]
    command += ["--out", "run", "--quiet", "--checkpoint-every", "2"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    was_killed = done.returncode not in (0, 2) and not (folder / "kill-at").exists()
    if (done.returncode != 0) != killed or (killed and not was_killed):
        raise SystemExit(f"{' '.join(command)} ended with exit code {done.returncode}:\n{done.stdout}{done.stderr}")


def _found(folder: Path) -> dict[str, Any]:
    summary = json.loads((folder / "run" / "summary.json").read_text())
    lives = json.loads((folder / "run" / "status.json").read_text())["lives"]
    return {
        "weights_sha256": summary["weights_sha256"],
        "epochs": [epoch["weights"] for epoch in summary["history"]],
        "metrics": summary["metrics"],
        "first_steps": [life["first_step"] for life in lives],
        "promise": summary["promise"],
    }


def _hashes(rows: Sequence[dict[str, Any]]) -> dict[str, set[tuple[str, str]]]:
    """Case -> what its runs ended with: weights, and all metrics."""
    found: dict[str, set[tuple[str, str]]] = {}
    for row in rows:
        found.setdefault(row["case"], set()).add((row["weights_sha256"], json.dumps(row["metrics"])))
    return found


def page_of(result: Result) -> Page:
    """Pure: the page of these raw data."""
    rows, hashes = result["rows"], _hashes(result["rows"])
    tables, bounds = [], []
    for case, ends in hashes.items():
        own = [row for row in rows if row["case"] == case]
        cells = [
            [row["workers"], row["engine"], ", ".join(map(str, row["first_steps"])), f"`{row['weights_sha256']}`"] for row in own
        ]
        tables.append(Table(["workers", "engine", "began at steps", "SHA-256 of the weights"], cells, f"{case}:"))
        bounds.append(Bound(case, f"{len(ends)} different ends of {len(own)} runs", "1", "holds" if len(ends) == 1 else "MISSED"))
    are_equal = all(len(ends) == 1 for ends in hashes.values())
    conditions = {name: rows[0]["promise"][name] for name in SHOWN if name in rows[0]["promise"]}
    return Page(
        question="Does the trained model depend on the number of workers?",
        answer=f"{'No: in every case all runs end' if are_equal else 'Yes: not all runs of a case end'} with the same weights and "
        f"metrics, to the last bit ({len(rows)} runs).",
        result={**result, "machine": {**result["machine"], **conditions}},
        measures_time=False,
        setup="Each run is one `unisono train bench/sharded_task.py --shards ...`; the hash is the SHA-256 of the final weights. A "
        "run is equal to the others of its case where weights and all metrics are the same to the last bit.",
        tables=tables,
        bounds=bounds,
        not_measured=result["not_checked"],
        raw="every run, with its metrics and the conditions of the promise",
    )


if __name__ == "__main__":
    sys.exit(guarded(main))
