"""Do trainings still give the same bits? Reference trainings, through the command line alone, of one checkout and of another.

    python -m bench.reference_trainings record --source BEFORE --out before.json       # BEFORE/src is what runs
    python -m bench.reference_trainings record --source . --out after.json
    python -m bench.reference_trainings compare before.json after.json                 # 1 if anything differs

Records of two machines, or of two versions of PyTorch, may differ by themselves: record both on one. Measures no time.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from safetensors.torch import load_file

from bench.groups import ROOT
from bench.machine import describe_machine
from bench.progress import Progress
from bench.reference_cases import REFERENCES, Reference
from tests.system.processes import plain_environment

FILES = ROOT / "bench" / "references"
LIMIT_S = 300.0
ENDS = (0, 75)
"""Done, and stopped by --max-steps."""
TIMES = ("samples_per_s", "wall_s", "data_wait_s", "updates_per_s")
REAL_TIMES = ("waiting", "server_load")
"""Of the machine too, unless the clock is virtual."""
SHOWN = 3


def main() -> int:
    """Local, blocking."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    recording = verbs.add_parser("record", help="run all references on a checkout")
    recording.add_argument("--source", type=Path, required=True, metavar="DIR", help="a checkout; a copy of DIR/src is what runs")
    recording.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    recording.add_argument("--only", default="", metavar="TEXT", help="those whose name holds it")
    recording.add_argument("--jobs", type=int, default=2, metavar="J", help="references at the same time (default 2)")
    comparing = verbs.add_parser("compare", help="print a table of what is the same; 1 if anything differs")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    args = parser.parse_args()
    if args.verb == "compare":
        table, same = compared(json.loads(args.before.read_text()), json.loads(args.after.read_text()))
        print(table)
        return 0 if same else 1
    args.out.write_text(json.dumps(recorded(args.source, args.only, args.jobs), indent=1) + "\n")
    return 0


# ---- record --------------------------------------------------------------------------------------------------------------


def recorded(source: Path, only: str, num_jobs: int) -> dict[str, Any]:
    """Local, blocking: what each reference gave. Ends the program where a command failed."""
    progress, began = Progress(), monotonic()
    asked = [one for one in REFERENCES if only in one.name]
    with tempfile.TemporaryDirectory(prefix="unisono-references-") as place, ThreadPoolExecutor(num_jobs) as pool:
        shutil.copytree(source / "src", Path(place, "src"))  # so that edits meanwhile do not count, and nothing is written there
        results = list(pool.map(partial(_run, Path(place), progress), asked))
    if failed := [one for one in results if isinstance(one, str)]:
        raise SystemExit("\n".join(failed))
    found = {one.name: result for one, result in zip(asked, results, strict=True)}
    described = subprocess.run(["git", "-C", str(source), "describe", "--always", "--dirty"], capture_output=True, text=True)
    progress.keep(f"{len(found)} references in {monotonic() - began:.0f} s")
    machine = {**describe_machine(), "PyTorch": str(torch.__version__)}
    return {"commit": described.stdout.strip(), "machine": machine, "references": found}


def _run(place: Path, progress: Progress, reference: Reference) -> dict[str, Any] | str:
    """Local, blocking: the commands of one reference in a new folder, and what they left; a text where one of them failed."""
    folder, began = Path(tempfile.mkdtemp(dir=place)), monotonic()
    shutil.copytree(FILES, folder, dirs_exist_ok=True)
    codes = []
    for command in reference.commands:
        done = _called(command, folder, place / "src", reference)
        if done.returncode not in ENDS:
            return f"{reference.name}: unisono {command}\nended with {done.returncode} and printed:\n{done.stdout}"
        codes.append(done.returncode)
    runs = {str(file.parent.relative_to(folder)): _left(file.parent) for file in sorted(folder.rglob("summary.json"))}
    equal = {f"{one} = {other}": _learned(runs[one]) == _learned(runs[other]) for one, other in reference.equal}
    files = {str(file.relative_to(folder)): _content(file) for name in reference.files for file in sorted(folder.rglob(name))}
    progress.say(f"{reference.name}: {monotonic() - began:.0f} s")
    return {
        "commands": [
            f"{'' if reference.keras is None else f'KERAS_BACKEND={reference.keras} '}unisono {one}" for one in reference.commands
        ],
        "codes": codes,
        "runs": {
            name: {aspect: found for aspect, found in run.items() if aspect not in reference.without}
            for name, run in runs.items()
            if name not in reference.varies
        },
        "equal": equal,
        "files": files,
    }


def _called(command: str, folder: Path, source: Path, reference: Reference) -> subprocess.CompletedProcess[str]:
    environment = {
        **plain_environment(),
        "PYTHONPATH": str(source),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        **({} if reference.keras is None else {"KERAS_BACKEND": reference.keras}),
    }
    words = shlex.split(command.format(python=sys.executable))
    return subprocess.run(
        [sys.executable, "-m", "unisono", *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )


# ---- what a command has left ---------------------------------------------------------------------------------------------


def _left(run: Path) -> dict[str, Any]:
    """Local: all of a run directory that is a function of the command, by aspect."""
    summary = json.loads((run / "summary.json").read_text())
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    states = sorted(run.glob("checkpoints/step-*/state.safetensors"))
    hashes = run / "hashes.jsonl"
    return {
        "weights": summary.get("weights_sha256"),
        "epochs": [_timeless(row, "num_servers" in summary) for row in summary["history"]],
        "steps": [[row["step"], row["loss"], row["lr"]] for row in rows if row["event"] == "step"],
        "end": {name: summary[name] for name in ("reason", "steps", "epochs", "best_epoch", "num_workers")},
        "metrics": _without_times(summary["metrics"]),
        "state": _hash_of_state(states[-1]) if states else None,
        "hashes": _sha256(hashes) if hashes.exists() else None,
        "config": {name: value for name, value in json.loads((run / "config.json").read_text()).items() if name != "task_file"},
        "files": sorted(str(file.relative_to(run)) for file in run.rglob("*") if file.is_file()),
    }


def _timeless(row: Mapping[str, Any], has_server: bool) -> dict[str, Any]:
    """Pure: an epoch of the history. A real server serves while an epoch is evaluated; at which step it is told is chance."""
    chance = ("step", "lr") if has_server and "virtual_s" not in row["metrics"] else ()
    kept = {name: value for name, value in _without_times(row).items() if name not in chance}
    return {**kept, "metrics": _without_times(row["metrics"])}


def _without_times(found: Mapping[str, Any]) -> dict[str, Any]:
    of_this_machine = TIMES if "virtual_s" in found else (*TIMES, *REAL_TIMES)
    return {name: value for name, value in found.items() if name not in of_this_machine}


def _learned(run: Mapping[str, Any]) -> list[Any]:
    """Pure: what two runs have in common that learned the same, however they did it."""
    return [run["weights"], *(row["weights"] for row in run["epochs"])]


def _hash_of_state(file: Path) -> str:
    """Local: of all tensors by name. Workers of a server keep theirs in one file of torch.save's, whose bytes are new each time."""
    found = hashlib.sha256()
    for name, held in sorted(load_file(file).items()):
        if held.dtype == torch.uint8 and held.numpy()[:2].tobytes() == b"PK":
            _add(found, name, torch.load(io.BytesIO(held.numpy().tobytes()), weights_only=True))
        else:
            _add(found, name, held)
    return found.hexdigest()


def _add(found: hashlib._Hash, name: str, value: Any) -> None:
    if isinstance(value, Mapping):
        for key, part in value.items():
            _add(found, f"{name}/{key}", part)
    elif isinstance(value, (list, tuple)):
        _add(found, name, dict(enumerate(value)))
    elif isinstance(value, torch.Tensor):
        plain = value.contiguous().flatten().view(torch.uint8) if value.numel() else value
        found.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode() + plain.numpy().tobytes())
    else:
        found.update(f"{name} {value!r} ".encode())


def _content(file: Path) -> Any:
    return _without_times(json.loads(file.read_text())) if file.suffix == ".json" else _sha256(file)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


# ---- compare -------------------------------------------------------------------------------------------------------------


def compared(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, bool]:
    """Pure: a table with a line for each run, below it the first differences of each, and whether there are none."""
    lines, told = ["| reference | run | weights | epochs | |", "|---|---|---|---|---|"], []
    there, here = before["references"], after["references"]
    for name in [*there, *(name for name in here if name not in there)]:
        if name not in there or name not in here:
            lines.append(f"| {name} | | | | only {'after' if name in here else 'before'} |")
            told.append(f"{name}: recorded only {'after' if name in here else 'before'}")
            continue
        found = list(differences(there[name], here[name]))
        for run, left in there[name]["runs"].items():
            other = here[name]["runs"].get(run)
            is_same = left == other
            lines.append(
                f"| {name} | {run} | {(left['weights'] or '')[:12]} | {len(left['epochs'])} | {'same' if is_same else 'DIFFERS'} |"
            )
        lines += [f"| {name} | {pair} | | | {'holds' if holds else 'NO'} |" for pair, holds in here[name]["equal"].items()]
        lines += [
            f"| {name} | {file} | | | {'same' if content == here[name]['files'].get(file) else 'DIFFERS'} |"
            for file, content in there[name]["files"].items()
        ]
        told += [f"{name}: {one}" for one in found[:SHOWN]]
        told += [f"{name}: {len(found) - SHOWN} more"] * (len(found) > SHOWN)
        told += [f"{name}: {pair} does not hold" for pair, holds in here[name]["equal"].items() if not holds]
    if before["machine"] != after["machine"]:
        told = [*told, *(["note: the machines differ, and so may the bits"] if told else ())]
    total = f"{sum(len(one['runs']) for one in there.values())} runs of {len(there)} references: "
    verdict = "nothing differs" if not told else f"{len(told)} differences"
    return "\n".join([*lines, "", *told, total + verdict]), not told


def differences(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """Pure: the places at which two values of JSON differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from differences(before.get(key), after.get(key), f"{place}.{key}" if place else key)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, pair in enumerate(zip(before, after, strict=True)):
            yield from differences(*pair, f"{place}[{number}]")
    elif before != after:
        yield f"{place}: {_short(before)} before, {_short(after)} after"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 70 else f"{text[:67]}..."


if __name__ == "__main__":
    sys.exit(main())
