"""Time of a training step, one thread in each worker: Unisono against loops by hand, DistributedDataParallel, Lightning and
Accelerate, interleaved in one run. What they need is installed under .venv-bench/.

    python -m bench.train                    # everything; about a quarter of an hour on two cores that do nothing else
    python -m bench.train --quick            # a look whether it works: few epochs, no judgement
    python -m bench.train --cases digits --workers 1 --only 'unisono;by hand' --out runs/look
    python -m bench.train --only 'unisono;unisono A/A' --against ../before --out runs/change   # and the code of another checkout

Writes train.md (tables, bounds, how it was measured) and train.json (every epoch).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from bench.blocks import Blocks, described
from bench.bounds import Requirement, told
from bench.contenders.training import BY_HAND, OURS, WAYS, Way, of_checkout
from bench.groups import Group, GroupFailed, temporary_folder
from bench.measurement import begin, guarded
from bench.options import add_choice, parse, parser_of
from bench.page import INTERLEAVED, Page, Result, Table, compared
from bench.rounds import Samples, difference, restored
from bench.sizes import show_count
from bench.training_cases import CASES, Case, write_data

WORKERS = (1, 2)
LEARNED = 0.5 * math.log(10)
"""Loss of ten classes that shows that something was learned: half of what guessing costs."""


@dataclass(frozen=True)
class Effort:
    """How often."""

    rounds: int
    epochs: int
    """Timed in a turn."""
    warm_up: int
    """Epochs before the first turn."""


FULL: Mapping[str, Effort] = {"mnist_cnn": Effort(40, 1, 5), "digits": Effort(100, 5, 30)}
QUICK: Mapping[str, Effort] = {"mnist_cnn": Effort(1, 1, 8), "digits": Effort(3, 1, 30)}

NOT_MEASURED = (
    "More workers than 2, more than one thread in a worker, more than one machine, GPUs.",
    "Real images in `mnist_cnn`: they are ten patterns with noise, of MNIST's shape, which every contender learns at once; "
    "only time is compared.",
    "Data that must be read or changed on the way: all samples lie in memory, and everybody takes whole batches out of one tensor "
    "or array. A `DataLoader` that collects samples one by one, as many users of the peers have it, would be slower.",
    "Start-up, evaluation, checkpoints, learning rates that change, gradient clipping, mixed precision, compiled models.",
)


def main() -> None:
    """Local, blocking: measure what is asked for and publish it."""
    parser = parser_of("train", __doc__)
    add_choice(parser, "--cases", list(CASES))
    add_choice(parser, "--workers", list(map(str, WORKERS)))
    add_choice(parser, "--only", [way.name for way in WAYS], ";", (OURS,))
    parser.add_argument("--against", type=Path, metavar="DIR", help="a checkout of other code, compared as one more contender")
    args = parse(parser)
    effort, wanted = QUICK if args.quick else FULL, [way for way in WAYS if way.name in args.only]
    if args.against:
        wanted.append(of_checkout(args.against))
    settings = {**settings_of((CASES[name] for name in args.cases), effort), "contenders": [way.name for way in wanted]}
    blocks = Blocks(begin("train", args, page_of), settings, (OURS,))
    with temporary_folder() as folder:
        for name, workers in product(args.cases, map(int, args.workers)):
            measure(blocks, CASES[name], workers, wanted, effort[name], folder)
    able = [way for way in wanted if way.name not in blocks.absent]
    blocks.finish(ours=OURS, by_hand=BY_HAND, contenders=described(able), not_measured=NOT_MEASURED)


def settings_of(cases: Iterable[Case], effort: Mapping[str, Effort]) -> dict[str, Any]:
    """Pure: what the raw data say of these cases."""
    by_name = {case.name: case for case in cases}
    return {
        "effort": {name: asdict(effort[name]) for name in by_name},
        "cases": {name: asdict(case) for name, case in by_name.items()},
    }


def measure(blocks: Blocks, case: Case, workers: int, ways: Iterable[Way], effort: Effort, folder: Path) -> None:
    """Blocking: one block, whose data are written into the folder."""
    data = folder / f"{case.name}.npz"
    write_data(case, data)
    contenders = blocks.able(way.given(case.name, data) for way in ways if workers in way.workers)
    blocks.apart(
        block_key(case, workers),
        {"case": case.name, "workers": workers},
        {workers: contenders},
        [("time", {"num_epochs": effort.warm_up})],
        ("time", {"num_epochs": effort.epochs}),
        effort.rounds,
        after=losses_after,
    )


def losses_after(groups: Mapping[str, Group]) -> dict[str, Any]:
    """Blocking: what each training has reached."""
    return {"loss_after": {name: loss_after(group) for name, group in groups.items()}}


def loss_after(group: Group) -> float:
    """Blocking: the mean loss that the training has reached; refuses one that has not learned, or whose replicas differ."""
    states: list[dict[str, Any]] = group.ask("state")
    if len({state["weights"] for state in states}) > 1:
        raise GroupFailed(f"{group.name}: the ranks hold different weights, so they did not train together")
    if any(state["threads"] != 1 for state in states):
        raise GroupFailed(f"{group.name}: a rank uses {max(state['threads'] for state in states)} threads, not 1")
    loss = float(states[0]["loss"])
    if not loss < LEARNED:
        raise GroupFailed(f"{group.name}: the loss is {loss:.3f} at the end; it did not learn")
    return loss


def block_key(case: Case, workers: int) -> str:
    """Pure: what a block is called in the raw data."""
    return f"{case.name}, {show_count(workers, 'worker')}"


BOUNDS: Mapping[str, tuple[Requirement, ...]] = {
    "mnist_cnn, 1 worker": (Requirement("hand", times_as_long=1.03),),
    "mnist_cnn, 2 workers": (Requirement("ddp", times_as_fast=1.0),),
    "digits, 1 worker": (Requirement("hand", longer_us=100.0),),
    "digits, 2 workers": (Requirement("ddp", times_as_fast=2.0), Requirement("lightning", times_as_fast=2.0)),
}


def page_of(result: Result) -> Page:
    """Pure: the page of these raw data."""
    blocks = {key: (block, restored(block["times_us"])) for key, block in result["blocks"].items()}
    kinds = {name: one["kind"] for name, one in result["contenders"].items()}
    bounds = [
        asked.judge(key, samples, kinds, result["ours"]) for key, (_, samples) in blocks.items() for asked in BOUNDS.get(key, ())
    ]
    return Page(
        question="What does a step of training cost, against loops by hand, DistributedDataParallel, Lightning and Accelerate?",
        answer=f"A step of Unisono: {told(bounds)}.",
        result=result,
        setup="The same model, optimiser, data in memory, global batch and number of steps for all, one thread in each worker. "
        "Every contender has its own processes, all alive during the whole block and asleep unless it is their turn. That they "
        "learn, and that the replicas of one training hold equal weights, is checked at the end.",
        tables=[_table(result, block, samples) for block, samples in blocks.values()],
        bounds=bounds,
        reading=[
            *efforts(result),
            "What is timed is from the end of an epoch to the end of the next: with Unisono also the line on the console, the "
            "lines of metrics.jsonl and the sums of the epoch. No evaluation. The time of an epoch is that of its slowest rank.",
            INTERLEAVED,
            "Where two contenders are of the kind that a bound names, the faster one counts.",
            "Numbers too small for float32's usual form count as zero in all processes (`torch.set_flush_denormal`): how many a "
            "training makes is chance, and they slow it down.",
        ],
        raw="`times_us[contender][rank][round][epoch]`, the time of an epoch divided by its steps",
    )


def efforts(result: Result) -> list[str]:
    """Pure: how often each case was timed."""
    cases = result["settings"]["cases"]
    return [
        f"{name}: {one['warm_up']} epochs to warm up, then {one['rounds']} rounds; a turn is one epoch that is not timed and "
        f"{one['epochs']} timed of {cases[name]['steps']} steps."
        for name, one in result["settings"]["effort"].items()
    ]


def _table(result: Result, block: Mapping[str, Any], samples: Mapping[str, Samples]) -> Table:
    """One worker is compared with the loop by hand, several with ours."""
    base = result["by_hand"] if result["by_hand"] in samples else result["ours"]

    def longer(name: str) -> str:
        return "0" if name == base else f"{difference(samples[name], samples[base]):.0f}"

    columns = {f"longer than {base}, us": longer, "loss at the end": lambda name: f"{block['loss_after'][name]:.3f}"}
    case = result["settings"]["cases"][block["case"]]
    about = f"A step of `{block['case']}`: {case['about']}; global batch {case['global_batch']}, {case['optimizer']}."
    workers = show_count(block["workers"], "worker")
    return compared(workers, samples, base, about, columns, f"{block['case']}, {workers}")


if __name__ == "__main__":
    sys.exit(guarded(main))
