"""The ways that `bench.horovod` compares: programs written for Horovod on Unisono, gloo's own calls, and Horovod itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.contenders import horovod_itself
from bench.contenders.contender import NOISE, Contender
from bench.contenders.training import WAYS, Way
from bench.groups import Launch, RankSlot, one_by_one

OURS = "unisono.horovod"
AGAIN = f"{OURS} A/A"
ITSELF = "horovod"
NUM_TENSORS = 200
_MODULE, _ITS_MODULE = "unisono.horovod.torch", "horovod.torch"


def _started(module: str, engine: str, slot: RankSlot, num_ranks: int, program: str, *arguments: str) -> list[Launch]:
    if module == _ITS_MODULE:
        return horovod_itself.started_by_horovod(slot.program(program, *arguments, module), num_ranks)
    return slot.unisono_run(num_ranks, engine, program, *arguments, module)


def _training(module: str, case: str, data: Path, num_ranks: int, slot: RankSlot) -> list[Launch]:
    return _started(module, "auto", slot, num_ranks, "train_horovod", case, str(data))


def _tensors(module: str, engine: str, num_ranks: int, slot: RankSlot) -> list[Launch]:
    return _started(module, engine, slot, num_ranks, "many_tensors", str(NUM_TENSORS))


def _gloo(how: str, num_ranks: int, slot: RankSlot) -> list[Launch]:
    program, device = slot.program("many_tensors", str(NUM_TENSORS)), {"GLOO_SOCKET_IFNAME": "lo"}
    return one_by_one(program, num_ranks, str(slot.folder / "store"), how, variables=device)


_OUR_TRAINING = (
    Way(OURS, "ours", "the loop by hand with `DistributedOptimizer` of `unisono.horovod.torch`", partial(_training, _MODULE)),
    Way(AGAIN, "noise", NOISE, partial(_training, _MODULE)),
)
TRAINING: Sequence[Way] = (*_OUR_TRAINING, *(way for way in WAYS if way.kind == "ddp"))
_BUILT = f"{horovod_itself.RELEASE}, built here with C++ 20 in the place of 14, over its gloo"
_ABOUT = f"the same loop with Horovod itself ({_BUILT})"
TRAINING_ITSELF: Sequence[Way] = (
    *_OUR_TRAINING,
    Way(ITSELF, "horovod", _ABOUT, partial(_training, _ITS_MODULE), horovod_itself.make),
)


_OUR_TENSORS = (
    Contender(
        OURS, "ours", "`allreduce_async_` of each, then `synchronize`, through shared memory", partial(_tensors, _MODULE, "auto")
    ),
    Contender(AGAIN, "noise", NOISE, partial(_tensors, _MODULE, "auto")),
)
TENSORS: Sequence[Contender] = (
    *_OUR_TENSORS,
    Contender(f"{OURS} on gloo", "other", "the same with `--engine gloo`", partial(_tensors, _MODULE, "gloo")),
    Contender("gloo, one by one", "gloo", "`torch.distributed.all_reduce` of each, blocking", partial(_gloo, "one by one")),
    Contender(
        "gloo, in flight", "gloo", "`all_reduce(async_op=True)` of each, then all are waited for", partial(_gloo, "in flight")
    ),
)
TENSORS_ITSELF: Sequence[Contender] = (
    *_OUR_TENSORS,
    Contender(
        ITSELF,
        "horovod",
        f"the same calls of Horovod itself ({_BUILT})",
        partial(_tensors, _ITS_MODULE, "auto"),
        horovod_itself.make,
    ),
)
"""Horovod's processes do not sleep while they wait for their turn, so it is measured apart: only we are disturbed by it."""
