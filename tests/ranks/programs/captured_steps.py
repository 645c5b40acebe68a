"""Trains with recorded steps, with steps that cannot be recorded, and as a CPU does, on all ranks; prints what is left on each.

One line for each rank and case, JSON: {"case", "rank", "bits": [hash of the weights for each way], "steps": [sums of the steps for
each way, the same text], "reasons": [why steps were not recorded], "repeated": number of repetitions}.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

import unisono as un
from tests.unit.model.torch.tape import RefusingRecorder, TapeRecorder
from tests.unit.training.device_path import HOST, LABELS, PICTURES, RESIDENT, Train, task_of, train_with
from tests.unit.training.odd_models import Breaks, Unused, marked, with_first
from unisono.comm.base import Communicator
from unisono.model.flat import hash_of

NUM = 57
MOMENTUM = {"optimizer_options": {"momentum": 0.9}}


def few() -> un.Splits:
    """Three steps, the last of a single sample: one of two ranks has none when the update would be recorded."""
    return un.Splits(un.Arrays(PICTURES[:NUM], LABELS[:NUM]).map_inputs(un.Scale(1 / 64)))


CASES: dict[str, dict[str, Any]] = {
    "sgd": {"task": task_of(**MOMENTUM)},
    "adam": {"task": task_of(optimizer="adam", accumulate=2, clip_norm=0.5)},
    "a rank without samples": {"task": task_of(data=few, global_batch=28, epochs=4)},
    "shards": {"task": task_of(shards=3)},
    "local_sgd": {"task": task_of(), "algorithm": "local_sgd"},
    "nan": {"task": with_first(Breaks, data=marked), "on_nan": "skip"},
    "unused": {"task": with_first(Unused)},
}


def shown(train: Train, comm: Communicator, name: str) -> str:
    case, tape = CASES[name], TapeRecorder()
    ways = [(tape, RESIDENT), (tape, HOST), (RefusingRecorder(), HOST), (None, HOST)]
    task, options = case["task"], {key: value for key, value in case.items() if key != "task"}
    found = [train(task, recorder, data, comm=comm, **options) for recorder, data in ways]
    return json.dumps(
        {
            "case": name,
            "rank": comm.rank,
            "bits": [hash_of(one.weights) for one in found],
            "steps": [str([(step.step, step.loss) for step in one.steps]) for one in found],
            "reasons": [one.captured.reason for one in found[:2]],
            "repeated": tape.num_repeated,
        }
    )


def main() -> None:
    with pytest.MonkeyPatch.context() as patched, un.connect(time_limit_s=60.0, quiet=True) as comm:
        train = train_with(patched)
        for name in CASES:
            print(f"{shown(train, comm, name)}\n", end="", flush=True)


if __name__ == "__main__":
    main()
