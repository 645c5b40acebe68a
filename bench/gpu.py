"""How many samples a second does a GPU learn from? Unisono against loops by hand (compiled, captured, eager), a DataLoader loop and
Lightning, in bf16, interleaved in one run on one GPU.

    python -m bench.gpu --seconds 540 --out FOLDER              # on the machine with the GPU: measures, writes FOLDER/gpu.json
    python -m bench.gpu --cases resnet50,host --out OTHER       # some cases; --seconds is the time for all that are asked for
    python -m bench.gpu --page FOLDER/gpu.json OTHER/gpu.json   # anywhere: page and picture from what was measured
    python -m bench.gpu --quick                                 # tiny images on the CPU: a look whether it works

gpu.json is written after every case, so what was measured is there if the time ends. A contender that fails leaves, and the file
says why. Needs PyTorch, and Lightning for its row; nothing is installed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.blocks import Ask, Field, described
from bench.contenders.gpu import QUICK_WORKERS, WORKERS, Way, ways
from bench.gpu_cases import CASES
from bench.gpu_page import merged, page_of
from bench.groups import Conductor, GroupFailed
from bench.machine import stolen_s
from bench.measurement import Measurement, begin, guarded
from bench.options import add_choice, parse, parser_of
from bench.page import one_line
from bench.record import write_json

NOT_MEASURED = (
    "Other GPUs, several GPUs, other versions of PyTorch.",
    "Images that are read from files or changed at random on the way; evaluations and checkpoints within the turns.",
    "Start-up and compilation, which come before the turns.",
    "float32 and TF32.",
)
LEAST_ROUNDS, MOST_ROUNDS = 4, 30
MOST_LETTERS = 400
"""Of why a contender left: the end of a traceback, where the error is."""
STARTING_S = 45.0
"""A case is not begun with less time left than its processes need to start."""


@dataclass(frozen=True)
class Effort:
    """How long."""

    turn_s: float
    num_calls: int
    """Timed parts of a turn."""
    warm_s: float


FULL, QUICK = Effort(0.6, 2, 1.0), Effort(0.05, 1, 0.05)


def main() -> None:
    """Local, blocking: measure what is asked for, or make the page."""
    names = [way.name for way in ways(WORKERS, "", {})]
    parser = parser_of("gpu", __doc__)
    add_choice(parser, "--cases", list(CASES))
    add_choice(parser, "--only", names, ";")
    parser.add_argument("--seconds", type=float, default=540.0, metavar="S", help="for everything (default 540)")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu only with --quick")
    parser.add_argument("--hand-mode", default="default", metavar="MODE", help="mode of torch.compile in the loop by hand")
    parser.add_argument("--compile", default="auto", choices=("auto", "on", "off"), help="of Unisono")
    parser.add_argument("--page", type=Path, nargs="+", metavar="FILE", help="make the page from these raw data")
    args = parse(parser, device="cpu")
    if args.page:
        args.out.mkdir(parents=True, exist_ok=True)
        write_json(args.out / "gpu.json", merged([json.loads(path.read_text()) for path in args.page]))
        args.page_only = True
    measurement = begin("gpu", args, page_of)
    if args.device == "cpu" and not args.quick:
        parser.error("--device cpu shows only whether it works; give --quick too")
    is_small, effort = args.device == "cpu", QUICK if args.quick else FULL
    # On a CPU nothing is compiled: it takes minutes, and shows nothing of a GPU.
    all_ways = ways(QUICK_WORKERS if is_small else WORKERS, args.hand_mode, {"compile": args.compile})
    wanted = [on_cpu(way) if is_small else way for way in all_ways if way.name in args.only]
    settings = {
        "effort": asdict(effort),
        "device": args.device,
        "cases": {name: asdict(CASES[name].small() if is_small else CASES[name]) for name in args.cases},
    }
    record, until = measurement.record(settings), time.monotonic() + args.seconds
    more: dict[str, Any] = {"contenders": described(wanted), "not_measured": NOT_MEASURED, "machine": describe_gpu()}
    for number, name in enumerate(args.cases):
        left_s = until - time.monotonic()
        if left_s < (0 if args.quick else STARTING_S):
            measurement.progress.keep(f"{name}: not measured, as only {left_s:.0f} s were left")
            continue
        if record.lacks(name):
            share_s = left_s / (len(args.cases) - number)
            record.add(name, measure(measurement, name, wanted, args.device, effort, time.monotonic() + share_s))
        measurement.write(blocks=record.asked(), **more)
    record.finish()
    print("\n\n".join(map(str, page_of(json.loads((args.out / "gpu.json").read_text())).tables)))
    measurement.progress.keep(f"written to {args.out}/gpu.json after {measurement.watch}; --page makes a page of it")


def on_cpu(way: Way) -> Way:
    """Pure: the same without torch.compile."""
    how = json.loads(json.dumps(way.how))
    how["options"].update({"compile_mode": None} if how["kind"] == "hand" else {})
    how["options"].update({"compile": "off"} if how["kind"] == "unisono" else {})
    return Way(**{**vars(way), "how": how})


def measure(measurement: Measurement, key: str, wanted: Sequence[Way], device: str, effort: Effort, until: float) -> dict[str, Any]:
    """Blocking: one case. Contenders load and compile at the same time, warm up one by one, and then take turns."""
    case, progress = CASES[key], measurement.progress
    contenders = [way.given(way.how, case, device, device == "cpu") for way in wanted if key not in way.without]
    with Conductor() as conductor:
        field, began = Field(conductor, progress, ()), time.monotonic()
        field.start(contenders, 1)
        field.ask_together(key, "prepare")
        prepared = time.monotonic()
        field.ask_each(key, ("warm", {"seconds": effort.warm_s}))
        warmed = time.monotonic()
        turn: Ask = ("time", {"seconds": effort.turn_s, "num_calls": effort.num_calls})
        field.ask_each(key, turn)
        round_s = time.monotonic() - warmed
        num_rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, int((until - time.monotonic()) / max(round_s, 1e-3))))
        if effort is QUICK:
            num_rounds = 2
        progress.keep(f"{key}: prepared in {prepared - began:.0f} s, warm after {warmed - prepared:.0f} s more")
        progress.keep(f"{key}: {num_rounds} rounds of {round_s:.1f} s")
        found = field.measure(key, (), turn, (), num_rounds, (field.idle_shares(), stolen_s()))
        states = {name: state_of(field, name) for name in field.groups}
    size = case.small() if device == "cpu" else case
    failed = {name: why[-MOST_LETTERS:] for name, why in found["failed"].items()}
    return {"case": key, "batch": size.batch, "rounds": num_rounds, **found, "failed": failed, "states": states}


def state_of(field: Field, name: str) -> Mapping[str, Any]:
    """Blocking: what a contender has reached; where it cannot tell, why."""
    try:
        state: Mapping[str, Any] = field.groups[name].ask("state")[0]
    except GroupFailed as error:
        return {"failed": one_line(error)}
    return state


def describe_gpu() -> dict[str, str]:
    """Local: the GPU and its driver, where there is one."""
    if not shutil.which("nvidia-smi"):
        return {}
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    run = partial(subprocess.run, capture_output=True, text=True, timeout=60, check=False)
    cells = run(query).stdout.strip().split("\n")[0].split(", ")
    return dict(zip(("gpu", "memory of the GPU", "driver"), cells, strict=False)) if len(cells) == 3 else {}


if __name__ == "__main__":
    sys.exit(guarded(main))
