"""Programs written for Horovod, run on Unisono as they are: its own tests of horovod.torch and horovod.tensorflow, its examples for
PyTorch, and an MNIST script with each backend of Keras.

    git clone https://github.com/horovod/horovod
    python -m bench.horovod_programs --checkout horovod --mnist DIR            # all; torchvision is needed for two of the examples
    python -m bench.horovod_programs --mnist DIR --parts lectures              # one part; the others on the page stay as they are

Writes horovod_programs.md and horovod_programs.json, which keeps the last lines of each program. A program that was run before is
replaced; so several machines can add to one page.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import string
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from bench.groups import ROOT, temporary_folder
from bench.machine import describe_machine, describe_moment
from bench.options import some_of
from bench.page import Page, Result, Table
from bench.progress import Progress
from bench.record import write_json
from unisono.testing.ranks import mpirun

PARTS = ("suite", "tensorflow", "examples", "lectures")
BACKENDS = ("torch", "tensorflow", "jax")
UNISONO = (sys.executable, "-m", "unisono")
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull)
LIMIT_S = 7200.0
NUM_LINES = 40
"""The last lines that are kept."""
SHOWN = {
    "suite": "`test/parallel/test_torch.py` of Horovod. Its tests of GPUs are skipped: they want a GPU for each process.",
    "tensorflow": "`test/parallel/test_tensorflow.py` of Horovod, which is for TensorFlow 1 and 2 with Keras 2.",
    "examples": "Example scripts of Horovod, unmodified.",
    "lectures": "A lecture's MNIST script with Keras, 2 processes, real MNIST, 12 / 2 epochs; test accuracy after each. Sittings C "
    "and E ran the lecture's own code; today's `examples/lectures/mpcdf/keras_mnist.py` has the same network and settings.",
}
HIDE_MUON = '''
"""The suite makes each optimiser of PyTorch for a model with biases, which Muon refuses by itself; it is younger than the suite."""
import torch

every = torch.optim.Optimizer.__subclasses__
torch.optim.Optimizer.__subclasses__ = staticmethod(lambda: [one for one in every() if one.__name__ != "Muon"])
'''
NOT_SHOWN = (
    "Several GPUs, several machines. The GPU rows are of one process.",
    "The other files of `test/parallel`, and all other folders of Horovod's tests.",
    "`pytorch_imagenet_resnet50.py`, `pytorch_lightning_mnist.py`, and all examples that are not for PyTorch.",
)


@dataclass(frozen=True)
class Case:
    """One program as it is typed."""

    part: str
    name: str
    command: Sequence[str]
    result: str
    """What it says that it has done: a regular expression, each match of which is kept."""
    environment: Mapping[str, str] = field(default_factory=dict)


def suite(checkout: Path, folder: Path) -> Iterator[Case]:
    """Local: Horovod's own tests on each engine."""
    (folder / "hide_muon.py").write_text(HIDE_MUON)
    search = _with_mock(folder)
    tests = [*PYTEST, "-p", "hide_muon"]
    file = str(checkout.resolve() / "test" / "parallel" / "test_torch.py")
    start = mpirun()
    for engine in ("shm", "gloo", *(("mpi",) if start else ())):
        for size in (2, 4):
            program = ["--engine", engine, "--", *tests, file]
            command = [*UNISONO, "run", "--horovod", "-n", str(size), *program]
            if engine == "mpi" and start is not None:
                by_mpi = [start, "-n", str(size), "--allow-run-as-root", "--map-by", ":OVERSUBSCRIBE"]
                command = [*by_mpi, *UNISONO, "run", "--horovod", *program]
            environment = {"PYTHONPATH": search, "CUDA_VISIBLE_DEVICES": ""}
            yield Case("suite", f"{engine}, {size} processes", command, r"\d+ (?:failed|passed).*(?= in )", environment)


def tensorflow(checkout: Path, folder: Path) -> Iterator[Case]:
    """Local: Horovod's own tests of its operations on TensorFlow."""
    file = str(checkout.resolve() / "test" / "parallel" / "test_tensorflow.py")
    command = [*UNISONO, "run", "--horovod", "-n", "2", "--engine", "shm", "--", *PYTEST, file]
    environment = {"PYTHONPATH": _with_mock(folder), "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    yield Case("tensorflow", "shm, 2 processes", command, r"\d+ (?:failed|passed).*(?= in )|^FAILED .*?(?= - )", environment)


def _with_mock(folder: Path) -> str:
    """Local: where Python looks for modules, with `mock`, which the tests import: this module of Python since long."""
    (folder / "mock.py").write_text("from unittest.mock import *\n")
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def examples(checkout: Path, mnist: Path, folder: Path) -> Iterator[Case]:
    """Local: those for PyTorch."""
    pytorch, adasum = checkout.resolve() / "examples" / "pytorch", checkout.resolve() / "examples" / "adasum"
    for op in ("Average", "Adasum"):
        line = ["-np", "4", sys.executable, str(adasum / "adasum_small_model.py"), "--op", op]
        yield Case("examples", f"adasum_small_model, {op}", [*UNISONO, "horovodrun", *line], r"1\.0 (?:Average|Adasum) .*")
    if find_spec("torchvision") is None:
        return
    raw = folder / "MNIST" / "raw"  # where torchvision looks for it
    raw.mkdir(parents=True)
    for packed in mnist.glob("*.gz"):
        (raw / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    digits, network = str(pytorch / "pytorch_mnist.py"), str(pytorch / "pytorch_synthetic_benchmark.py")
    accuracy, speed = r"Test set: .*", r"Total img/sec.*"
    on_cpu: Sequence[tuple[str, str, Sequence[str], str]] = (
        ("MNIST", "2", [digits, "--epochs", "2"], accuracy),
        ("MNIST, float16 and predivide", "2", [digits, "--epochs", "1", "--fp16-allreduce", *PREDIVIDED], accuracy),
        ("MNIST, Adasum", "2", [digits, "--epochs", "1", "--use-adasum"], accuracy),
        ("MNIST, which calls horovod.run itself", "1", [digits, "--epochs", "1", "--num-proc", "2"], accuracy),
        ("synthetic benchmark", "2", [network, *SHORT], speed),
        ("synthetic benchmark, Adasum", "4", [network, *SHORT, "--use-adasum"], speed),
    )
    for name, size, words, result in on_cpu:
        data = ["--data-dir", str(folder)] if words[0] == digits else []
        yield Case("examples", name, [*UNISONO, "horovodrun", "-np", size, sys.executable, *words, "--no-cuda", *data], result)
    if torch.cuda.is_available():
        on_gpu = [*UNISONO, "horovodrun", "-np", "1", sys.executable]
        yield Case("examples", "MNIST, GPU", [*on_gpu, digits, "--epochs", "2", "--data-dir", str(folder)], accuracy)
        yield Case("examples", "synthetic benchmark, GPU", [*on_gpu, network, "--num-iters", "3"], speed)


PREDIVIDED = ("--gradient-predivide-factor", "2")
SHORT = ("--model", "resnet18", "--batch-size", "4", "--num-warmup-batches", "2", "--num-batches-per-iter", "2", "--num-iters", "3")


def lectures(mnist: Path, backends: Sequence[str]) -> Iterator[Case]:
    """Local: the MNIST script, in which each rank reads the data and trains 12 / 2 epochs."""
    script = str(ROOT / "examples" / "lectures" / "mpcdf" / "keras_mnist.py")
    for backend in backends:
        environment = {"KERAS_BACKEND": backend, "UNISONO_DATA": str(mnist.resolve().parent), "TF_CPP_MIN_LOG_LEVEL": "3"}
        if backend == "torch":
            environment["KERAS_TORCH_DEVICE"] = "cpu"  # the script wants a GPU for each process, or none
        command = [*UNISONO, "horovodrun", "-np", "2", sys.executable, script]
        yield Case("lectures", f"Keras on {backend}", command, r"(?<=val_accuracy: )\S+|Test accuracy: .*", environment)


def run(case: Case, folder: Path, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Local, blocking: what came of it."""
    began = time.monotonic()
    environment = {**os.environ, **case.environment}
    try:
        done = subprocess.run(case.command, cwd=folder, env=environment, capture_output=True, timeout=limit_s, errors="replace")
        code, said = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        code, said = 124, (error.stdout or b"").decode(errors="replace") + f"\nended after {limit_s:g} s"
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said)  # colours
    lines = [line.strip() for line in re.split(r"[\r\n\x08]", plain) if line.strip()]
    # What follows in a list of folders is what this process has inherited.
    variables = [f"{name}={value.split(os.pathsep)[0]}" for name, value in case.environment.items()]
    return {
        "part": case.part,
        "name": case.name,
        "command": " ".join([*variables, *case.command]),
        "code": code,
        "seconds": round(time.monotonic() - began, 1),
        "found": re.findall(case.result, "\n".join(lines)),
        "last_lines": lines[-NUM_LINES:],
    }


def without_paths(run: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    """Pure: the same with names in the place of folders of this machine."""
    text = json.dumps(run, ensure_ascii=False)
    for place, name in sorted(places.items(), key=lambda pair: -len(pair[0])):
        text = text.replace(place, name)
    cleaned: dict[str, Any] = json.loads(text)
    return cleaned


def publish(result: Result, out: Path) -> str:
    """Local: write both files; returns the tables."""
    used = {name: one for name, one in result["sittings"].items() if any(run["sitting"] == name for run in result["runs"])}
    write_json(out / "horovod_programs.json", {"sittings": used, "runs": result["runs"]})
    return page_of(result).publish("horovod_programs", out)


def page_of(result: Result) -> Page:
    """Pure: the page of these raw data."""
    runs, tables = result["runs"], []
    for part in PARTS:
        rows = [
            [run["name"], str(run["code"]), "; ".join(shortened(run["found"])), f"{run['seconds']:.0f}", run["sitting"]]
            for run in runs
            if run["part"] == part
        ]
        if rows:
            tables.append(Table(["program", "exit code", "says", "s", "sitting"], rows, SHOWN[part]))
    of_sittings = {
        f"Sitting {name}": [f"{key}: {value}" for key, value in one.items()]
        for name, one in result["sittings"].items()
        if any(run["sitting"] == name for run in runs)
    }
    return Page(
        question="Do Horovod's own tests, its examples for PyTorch and a lecture's script run on Unisono as they are?",
        answer=f"{sum(run['code'] == 0 for run in runs)} of {len(runs)} programs end without an error.",
        tables=tables,
        reading=[
            "Every process says its result, so a line may be there several times; equal ones are shown once, in the order in which "
            "they came.",
            "Three of the suite's tests make every optimiser that PyTorch has. Muon, which is younger than the suite, refuses "
            "biases by itself; it is hidden from them, and nothing else is changed.",
            "In the tests of TensorFlow 15 subtests fail. 11 of them, in graph mode, wait for another class than "
            "[UnknownError](../how-to/horovod-tensorflow.md) when ranks disagree; the other 4, of two tests, use names that "
            "Keras 3 does not have.",
            "`mock`, which the suite imports, is the module `unittest.mock` of Python.",
            "`test_global_barrier_op` wants a barrier to take 5 s on every rank, as rank 0 sleeps 5 s before it. A rank that looks "
            "at its clock a little later than rank 0 measures a little less; on a busy machine it fails now and then.",
        ],
        lists={**of_sittings, "How to repeat it": [f"{run['name']}: `{run['command']}`" for run in runs]},
        not_measured=NOT_SHOWN,
        raw="the last lines of each program",
    )


def shortened(found: Sequence[str]) -> list[str]:
    """Pure: each line once, without what runs of the same program differ by."""
    return list(dict.fromkeys(line.replace("|", "/").strip() for line in found))


def main() -> int:
    """Local, blocking: the exit code, 1 if a program failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, metavar="DIR", help="a checkout of github.com/horovod/horovod (suite, examples)")
    parser.add_argument("--mnist", type=Path, metavar="DIR", help="the folder with the four files of MNIST (examples, lectures)")
    parser.add_argument(
        "--parts", type=some_of(PARTS, ","), default=PARTS, metavar="P,P", help="suite, tensorflow, examples, lectures"
    )
    parser.add_argument("--backends", type=some_of(BACKENDS, ","), default=BACKENDS, metavar="B,B", help="of Keras, for lectures")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", metavar="DIR")
    parser.add_argument("--page-only", action="store_true", help="run nothing; write the page again from the raw data")
    args = parser.parse_args()
    if args.page_only:
        print(page_of(json.loads((args.out / "horovod_programs.json").read_text())).publish("horovod_programs", args.out))
        return 0
    if args.checkout is None and set(PARTS[:3]) & set(args.parts):
        parser.error("--checkout DIR is needed for suite, tensorflow and examples: git clone https://github.com/horovod/horovod")
    if args.mnist is None and {"examples", "lectures"} & set(args.parts):
        parser.error("--mnist DIR is needed for examples and lectures: the folder with the four files (unisono data get mnist)")
    with temporary_folder() as folder:
        cases = [
            *(suite(args.checkout, folder) if "suite" in args.parts else ()),
            *(tensorflow(args.checkout, folder) if "tensorflow" in args.parts else ()),
            *(examples(args.checkout, args.mnist, folder) if "examples" in args.parts else ()),
            *(lectures(args.mnist, args.backends) if "lectures" in args.parts else ()),
        ]
        places = {sys.executable: "python", str(ROOT): ".", str(folder): "TMP", sys.prefix: "PREFIX"}
        places |= {str(one.resolve()): title for one, title in ((args.checkout, "horovod"), (args.mnist, "DIR/mnist")) if one}
        places |= {str(args.mnist.resolve().parent): "DIR"} if args.mnist else {}
        return _run_all(cases, folder, args.out, places)


def _run_all(cases: Sequence[Case], folder: Path, out: Path, places: Mapping[str, str]) -> int:
    progress, file = Progress(), out / "horovod_programs.json"
    result: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"sittings": {}, "runs": []}
    sitting = next(letter for letter in string.ascii_uppercase if letter not in result["sittings"])
    result["sittings"][sitting] = {**describe_machine(), **_versions(), **describe_moment()}
    failed = []
    for number, case in enumerate(cases):
        progress.keep(f"{number + 1} of {len(cases)}: {case.part}: {case.name}")
        found = {**without_paths(run(case, folder), places), "sitting": sitting}
        if found["code"]:
            failed.append(case.name)
            progress.keep("\n".join(found["last_lines"]))
        same = [place for place, old in enumerate(result["runs"]) if (old["part"], old["name"]) == (case.part, case.name)]
        if same:
            result["runs"][same[0]] = found
        else:
            result["runs"].append(found)
        shown = publish(result, out)
    print(shown)
    return 1 if failed else 0


def _versions() -> dict[str, str]:
    found = {}
    for name in ("torch", "torchvision", "keras", "tensorflow", "tensorflow-cpu", "jax", "mpi4py"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    found["GPU"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return found


if __name__ == "__main__":
    sys.exit(main())
