"""Programs of others, moved to Unisono as a user would move them: run in one process, run on two workers, and compared.

    git clone https://github.com/pytorch/examples DIR/pytorch/examples        # the others alike, by owner and name: see the page
    python -m bench.programs_of_others --checkout DIR                         # all
    python -m bench.programs_of_others --checkout DIR --only vae --only dcgan  # some; the others on the page stay as they are

Nothing is downloaded: small random data of the same shapes stand in for those of the programs. A program is passed if its weights,
losses and metrics on two workers are those of one process without Unisono, refused if Unisono says that it cannot do it, and wrong
otherwise. Writes programs_of_others.md and programs_of_others.json. The exit code is 1 if a program is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from bench.groups import ONE_THREAD, ROOT, temporary_folder
from bench.machine import describe_machine, describe_moment
from bench.others import FAMILIES, find, programs
from bench.others.program import BEFORE, WEIGHTS, Program
from bench.page import Page, Result, Table, one_line
from bench.progress import Progress
from bench.record import write_json

NAME = "programs_of_others"
NUM_WORKERS = 2
LIMIT_S = 180.0
PASSED, NOTED, DOCUMENTED, REFUSED = "passed", "differs, and says so", "differs, as documented", "refused"
WRONG, OWN_ERROR = "wrong", "its own error"
NOTE = re.compile(r"(?:(?<=unisono: )|(?<=\[0\] )(?!unisono: )).*so the result depends on the number of workers.*")
NOISE = 1e-3
"""Of what the training moved most: tensors that moved less, as they have no gradient but rounding, are compared with this."""
TITLES = {
    "keras_io": "Examples and guides of keras.io, on Keras 3",
    "tensorflow_tutorials": "Tutorials of tf.distribute with a strategy of their own",
    "pytorch_examples": "Examples of PyTorch, with their own loops",
    "lightning_examples": "Examples of Lightning",
    "optuna_examples": "Examples of Optuna, 6 trials, 2 at a time",
}
NOT_SHOWN = (
    "The real data, their sizes, and how well the programs learn.",
    "Dropout, augmentation and shuffling, which are random in another way on two workers; they are off in both runs.",
    "More than two workers, several machines, GPUs.",
    "All other programs of these repositories. Horovod's are on [their own page](horovod_programs.md).",
)


def run(program: Program, checkout: Path, folder: Path) -> dict[str, Any]:
    """Local, blocking: what came of it."""
    began = time.monotonic()
    moved = _run(program, checkout, folder, "moved")
    refusals = sorted(folder.glob("refused-*.json"))
    found: dict[str, Any] = {"family": program.family, "name": program.name}
    if refusals:
        found |= {"verdict": REFUSED, "says": json.loads(refusals[0].read_text())}
    else:
        plain = _run(program, checkout, folder, "plain")
        found |= _verdict(program, folder, moved, plain)
    return {**found, "seconds": round(time.monotonic() - began, 1)}


def _verdict(program: Program, folder: Path, moved: str, plain: str) -> dict[str, Any]:
    """Local: by the numbers of both runs; empty text means that a run ended well."""
    if plain:
        return {"verdict": OWN_ERROR, "says": plain}
    if moved:
        return {"verdict": WRONG, "says": moved}
    one = _load(folder / "plain-0.npz")
    ranks = [_load(folder / f"moved-{rank}.npz") for rank in range(_size(program))]
    differences = [difference for rank in ranks for difference in compared(one, rank, program.not_compared)]
    worst, name = max(differences, default=(float("inf"), "nothing was compared"))
    weights = sum(array.size for key, array in one.items() if key.startswith(WEIGHTS))
    numbers = sum(array.size for key, array in one.items() if not key.startswith((WEIGHTS, BEFORE)))
    verdict, says = PASSED, ""
    if not worst <= program.limit:
        note = NOTE.search("\n".join(log.read_text(errors="replace") for log in folder.glob("moved-*.txt")))
        differs = f"{name} differs by {worst:.1e}"
        verdict, says = (NOTED, note[0]) if note else (DOCUMENTED, program.documented) if program.documented else (WRONG, differs)
    return {"verdict": verdict, "weights": weights, "numbers": numbers, "difference": worst, "says": says}


def _size(program: Program) -> int:
    return 1 if program.family == "optuna_examples" else NUM_WORKERS


def _load(file: Path) -> dict[str, Any]:
    with np.load(file) as found:
        return dict(found)


def compared(one: Mapping[str, Any], other: Mapping[str, Any], but: str = "") -> list[tuple[float, str]]:
    """Pure: how much each array of two runs differs: weights relative to how far the training moved them, numbers to their size."""
    names = [name for name in one if not name.startswith(BEFORE) and not (but and re.search(but, name))]
    if missing := [name for name in names if name not in other or one[name].shape != other[name].shape]:
        return [(float("inf"), f"{missing[0]}, which is not in both runs,")]
    sizes = {name: float(np.linalg.norm(one[name] - one.get(name.replace(WEIGHTS, BEFORE, 1), 0.0))) for name in names}
    sizes |= {name: float(np.linalg.norm(one[name])) for name in names if not name.startswith(WEIGHTS)}
    most = max((size for name, size in sizes.items() if name.startswith(WEIGHTS)), default=0.0)
    found = []
    for name in names:
        size = max(sizes[name], NOISE * most) if name.startswith(WEIGHTS) else sizes[name]
        distance = float(np.linalg.norm(other[name] - one[name]))
        found.append((distance / size if size else (float("inf") if distance else 0.0), name))
    return found


def _run(program: Program, checkout: Path, folder: Path, mode: str) -> str:
    """Local, blocking: runs it; the last line of its error, or nothing."""
    stage = [sys.executable, "-m", "bench.others.stage", str(checkout), str(folder), program.name, mode]
    search = os.pathsep.join(
        [str(ROOT), str(ROOT / "bench" / "others" / "stand_ins"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    variables = {**os.environ, **ONE_THREAD, "PYTHONPATH": search, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    variables |= {"MPLBACKEND": "agg", **program.environment}
    commands, environments = [stage], [variables]
    if program.needs.startswith("TF_CONFIG"):
        configs = _tf_configs()
        ranks = range(NUM_WORKERS if mode == "moved" else 1)
        commands, environments = [stage for _ in ranks], [{**variables, "TF_CONFIG": configs[rank]} for rank in ranks]
    elif mode == "moved" and _size(program) > 1:
        commands = [[sys.executable, "-m", "unisono", "run", "-n", str(NUM_WORKERS), "--threads", "1", "--", *stage]]
    logs = [folder / f"{mode}-{number}.txt" for number in range(len(commands))]
    started = []
    for command, environment, log in zip(commands, environments, logs, strict=True):
        with log.open("wb") as out:
            started.append(subprocess.Popen(command, env=environment, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT))
    deadline = time.monotonic() + LIMIT_S
    try:
        codes = [process.wait(max(0.1, deadline - time.monotonic())) for process in started]
    except subprocess.TimeoutExpired:
        codes = [124]
    finally:
        for process in started:
            process.kill()
            process.wait()
    lines = [line for log in logs for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return _last_error(lines) if any(codes) else ""


def _tf_configs() -> list[str]:
    """Local: TF_CONFIG of every worker."""
    ports = []
    for _ in range(NUM_WORKERS):
        with socket.socket() as one:
            one.bind(("localhost", 0))
            ports.append(one.getsockname()[1])
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    return [json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}}) for rank in range(NUM_WORKERS)]


def _last_error(lines: Sequence[str]) -> str:
    """Pure: the line that says what went wrong."""
    named = [line for line in lines if re.search(r"(Error|Exception|error)\b.*:", line)]
    return one_line((named or list(lines) or ["it said nothing"])[-1])


def page_of(result: Result) -> Page:
    """Pure: the page of these raw data."""
    runs, tables = result["runs"], []
    for family in FAMILIES:
        rows = [_row(one) for one in runs if one["family"] == family]
        if rows:
            tables.append(
                Table(
                    ["program", "stands in for its data", "moved by", "verdict", "weights", "numbers", "difference"],
                    rows,
                    TITLES[family],
                    num_names=4,
                )
            )
    counts = Counter(one["verdict"] for one in runs)
    reasons = [f"{one['name']}: {one_line(one['says'])}" for one in runs if one["says"]]
    answer = f"{counts[PASSED]} of {len(runs)} do, {counts[REFUSED]} are refused with the reason, {counts[NOTED]} differ and say so"
    answer = f"{answer}, {counts[DOCUMENTED]} differ as documented, {counts[WRONG]} are wrong"
    return Page(
        question="Do programs that others wrote compute on two workers what they compute in one process?",
        answer=f"{answer}; by themselves fail {counts[OWN_ERROR]}." if counts[OWN_ERROR] else f"{answer}.",
        tables=tables,
        reading=[
            "*Passed*: on two workers each weight at the end, and each loss and metric that the program reports about all data, is "
            "that of one process without Unisono. *Weights* and *numbers* say how many were compared.",
            "*Difference* is the largest of all ranks: of a tensor of weights relative to how far the training moved it, of the "
            "others relative to their size. Programs of PyTorch, Lightning and Optuna run in float64 and may differ by 1e-9, those "
            f"of Keras and TensorFlow in float32 by {float(find('mnist_convnet').limit):g}.",
            "Programs are shortened (1 to 3 epochs), and dropout, augmentation and shuffling are off in both runs. Every change of "
            "their text stands in bench/others.",
        ],
        lists={"Why not passed": reasons, "Upstream": [f"{name}: {commit}" for name, commit in result["commits"].items()]},
        versions={"programs": result["versions"]},
        result={**result, "runs": {}},
        not_measured=NOT_SHOWN,
        measures_time=False,
        raw="each run with its verdict, and the commits of the programs",
    )


def _row(one: Mapping[str, Any]) -> list[str]:
    program = find(one["name"])
    counts = (
        [f"{one['weights']:,}", f"{one['numbers']:,}", f"{one['difference']:.0e}"] if one.get("numbers") is not None else ["-"] * 3
    )
    return [one["name"], program.stand_in, program.moved, f"**{one['verdict']}**", *counts]


def main() -> int:
    """Local, blocking: the exit code, 1 if a program is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, metavar="DIR", help="holds the repositories as OWNER/NAME")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a program or family; left out, all")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", metavar="DIR")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the files of the runs here")
    parser.add_argument("--page-only", action="store_true", help="run nothing; write the page again from the raw data")
    args = parser.parse_args()
    file = args.out / f"{NAME}.json"
    if args.page_only:
        print(page_of(json.loads(file.read_text())).publish(NAME, args.out))
        return 0
    if args.checkout is None:
        parser.error("--checkout DIR is needed: the folder with the repositories as OWNER/NAME")
    chosen = [one for one in programs() if not args.only or {one.name, one.family} & set(args.only)]
    if not chosen:
        parser.error(f"--only: there is no program {', '.join(args.only)}")
    progress = Progress()
    before = json.loads(file.read_text()) if args.only and file.exists() else {"runs": [], "sittings": []}
    ran: dict[str, Any] = {one["name"]: one for one in before["runs"]}
    with temporary_folder() as temporary:
        for number, program in enumerate(chosen):
            place = (args.keep or temporary).resolve() / re.sub(r"\W+", "_", program.name)
            place.mkdir(parents=True)
            ran[program.name] = run(program, args.checkout.resolve(), place)
            one = ran[program.name]
            said = f"{one['verdict']} {one.get('difference', '')} {one['says']} ({one['seconds']} s)"
            progress.keep(f"{number + 1} of {len(chosen)}: {program.name}: {said}")
    runs = [ran[one.name] for one in programs() if one.name in ran]
    result = {
        "command": "python -m bench.programs_of_others --checkout DIR",
        "machine": describe_machine(),
        "sittings": [*before["sittings"], describe_moment()],
        "versions": _versions(),
        "commits": {name: _commit(args.checkout / name) for name in dict.fromkeys(one.repository for one in programs())},
        "runs": runs,
    }
    write_json(file, result)
    print(page_of(result).publish(NAME, args.out))
    return int(any(one["verdict"] == WRONG for one in runs))


def _commit(folder: Path) -> str:
    """Local: the commit of a clone, or what the file COMMIT says of plain folders."""
    if (note := folder / "COMMIT").exists():
        return note.read_text().strip()
    done = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _versions() -> dict[str, str]:
    found = {}
    for name in ("torch", "keras", "tensorflow-cpu", "jax", "lightning", "optuna"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main())
