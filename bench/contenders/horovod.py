"""The ways that `bench.horovod` compares: programs written for Horovod on Unisono, gloo's own calls, and Horovod itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench.contenders import horovod_itself
from bench.contenders.contender import NOISE, Contender
from bench.contenders.training import WAYS, Way
from bench.groups import Launch, Seat

OURS = "unisono.horovod"
AGAIN = f"{OURS} A/A"
ITSELF = "horovod"
NUM_TENSORS = 200
_MODULE = "unisono.horovod.torch"


def _on_unisono(program: Sequence[str], num_ranks: int, engine: str = "auto") -> list[Launch]:
    run = [sys.executable, "-m", "unisono", "run", "-n", str(num_ranks), "--threads", "1", "--engine", engine]
    return [Launch([*run, "-m", *program], {})]


def _start_training(case: str, data: Path, num_ranks: int, seat: Seat) -> list[Launch]:
    return _on_unisono(["bench.ranks.train_horovod", *seat.arguments, case, str(data), _MODULE], num_ranks)


def _start_training_itself(case: str, data: Path, num_ranks: int, seat: Seat) -> list[Launch]:
    program = ["bench.ranks.train_horovod", *seat.arguments, case, str(data), "horovod.torch"]
    return horovod_itself.started_by_horovod(program, num_ranks)


_OUR_TRAINING = (
    Way(OURS, "ours", "the loop by hand with `DistributedOptimizer` of `unisono.horovod.torch`", (2,), _start_training),
    Way(AGAIN, "noise", NOISE, (2,), _start_training),
)
TRAINING: Sequence[Way] = (*_OUR_TRAINING, *(way for way in WAYS if way.kind == "ddp"))
_BUILT = f"{horovod_itself.RELEASE}, built here with C++ 20 in the place of 14, over its gloo"
_ABOUT = f"the same loop with Horovod itself ({_BUILT})"
TRAINING_ITSELF: Sequence[Way] = (*_OUR_TRAINING, Way(ITSELF, "horovod", _ABOUT, (2,), _start_training_itself, horovod_itself.make))


def _start_tensors(engine: str, num_ranks: int, seat: Seat) -> list[Launch]:
    program = ["bench.ranks.tensors_horovod", *seat.arguments, _MODULE, str(NUM_TENSORS)]
    return _on_unisono(program, num_ranks, engine)


def _start_tensors_itself(num_ranks: int, seat: Seat) -> list[Launch]:
    program = ["bench.ranks.tensors_horovod", *seat.arguments, "horovod.torch", str(NUM_TENSORS)]
    return horovod_itself.started_by_horovod(program, num_ranks)


def _gloo(how: str) -> Callable[[int, Seat], list[Launch]]:
    def start(num_ranks: int, seat: Seat) -> list[Launch]:
        program = [sys.executable, "-m", "bench.ranks.tensors_gloo", *seat.arguments]
        store = str(seat.folder / "store")
        return [
            Launch([*program, str(rank), str(num_ranks), store, str(NUM_TENSORS), how], {"GLOO_SOCKET_IFNAME": "lo"})
            for rank in range(num_ranks)
        ]

    return start


_OUR_TENSORS = (
    Contender(
        OURS, "ours", "`allreduce_async_` of each, then `synchronize`, through shared memory", partial(_start_tensors, "auto")
    ),
    Contender(AGAIN, "noise", NOISE, partial(_start_tensors, "auto")),
)
TENSORS: Sequence[Contender] = (
    *_OUR_TENSORS,
    Contender(f"{OURS} on gloo", "other", "the same with `--engine gloo`", partial(_start_tensors, "gloo")),
    Contender("gloo, one by one", "gloo", "`torch.distributed.all_reduce` of each, blocking", _gloo("one by one")),
    Contender("gloo, in flight", "gloo", "`all_reduce(async_op=True)` of each, then all are waited for", _gloo("in flight")),
)
TENSORS_ITSELF: Sequence[Contender] = (
    *_OUR_TENSORS,
    Contender(ITSELF, "horovod", f"the same calls of Horovod itself ({_BUILT})", _start_tensors_itself, horovod_itself.make),
)
"""Horovod's processes do not sleep while they wait for their turn, so it is measured apart: only we are disturbed by it."""
