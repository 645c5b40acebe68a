"""The ways to train that `bench.train` compares. What their ranks run is in `bench/ranks/train_*.py`."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.contenders.contender import NOISE, Contender
from bench.environments import Environment
from bench.groups import Launch, RankSlot

HOME = Environment("training", ("lightning", "accelerate"), sees_main=True)
"""Lightning and Accelerate, with the PyTorch of our own environment."""

Start = Callable[[str, Path, int, RankSlot], list[Launch]]


@dataclass(frozen=True)
class Way(Contender):
    """One way to train, at the numbers of workers where it makes sense; given the name of the case and the file of its data."""

    workers: tuple[int, ...] = (1, 2)


def start_unisono(case: str, data: Path, num_ranks: int, slot: RankSlot, shards: int | None = None) -> list[Launch]:
    arguments = [case, str(data), str(slot.folder), *([] if shards is None else [str(shards)])]
    if num_ranks == 1:
        return [Launch(slot.program("train_unisono", *arguments))]
    return slot.unisono_run(num_ranks, "auto", "train_unisono", *arguments)


def of_checkout(checkout: Path) -> Way:
    """Pure: Unisono as it is in another checkout, to see what a change costs. Its ranks run that checkout's own program."""
    home = checkout.resolve()

    def start(case: str, data: Path, num_ranks: int, slot: RankSlot) -> list[Launch]:
        return [
            Launch(["env", "--chdir", str(home), *launch.command], {"PYTHONPATH": str(home / "src")})
            for launch in start_unisono(case, data, num_ranks, slot)
        ]

    return Way("checkout", "other", "`Trainer.train` of another checkout, started in the same way", start)


def started_as_by_torchrun(python: str, module: str, *more: str) -> Start:
    """Ranks that find each other as torchrun tells them to."""

    def start(case: str, data: Path, num_ranks: int, slot: RankSlot) -> list[Launch]:
        port = free_port()
        return [
            Launch(
                [*slot.program(module, case, str(data), python=python), str(rank), str(num_ranks), *more],
                _torchrun(rank, num_ranks, port) if num_ranks > 1 else {},
            )
            for rank in range(num_ranks)
        ]

    return start


def _torchrun(rank: int, size: int, port: int) -> dict[str, str]:
    return {
        **dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(size)),
        "TORCHELASTIC_RUN_ID": "bench",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }


def free_port() -> int:
    """Local: on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


OURS = "unisono"
BY_HAND = "by hand"
_UNISONO = "`Trainer.train` with loader, algorithm, accuracy, console and metrics.jsonl as `unisono train` has them"
_TORCH = "train_torch"

WAYS: Sequence[Way] = (
    Way(OURS, "ours", _UNISONO, start_unisono),
    Way("unisono A/A", "noise", NOISE, start_unisono),
    Way(
        BY_HAND,
        "hand",
        "a plain PyTorch loop that learns and does nothing else; its loss and accuracy stay unknown",
        started_as_by_torchrun(sys.executable, _TORCH),
        workers=(1,),
    ),
    Way(
        "by hand, followed",
        "other",
        "the same loop that also knows loss and accuracy in every step, as Unisono does, and prints them after an epoch",
        started_as_by_torchrun(sys.executable, _TORCH, "follow"),
        workers=(1,),
    ),
    Way(
        "ddp",
        "ddp",
        "the loop by hand with `DistributedDataParallel(model, gradient_as_bucket_view=True)` over gloo",
        started_as_by_torchrun(sys.executable, _TORCH),
        workers=(2,),
    ),
    Way(
        "ddp, bound",
        "ddp",
        "the same, each rank bound to its part of the CPUs as Unisono binds its workers",
        started_as_by_torchrun(sys.executable, _TORCH, "bind"),
        workers=(2,),
    ),
    Way(
        "lightning",
        "lightning",
        "`Trainer(barebones=True)` of Lightning: no logger, no checkpoint, no progress bar; at 2 workers its DDP over gloo",
        started_as_by_torchrun(HOME.python, "train_lightning"),
        HOME.make,
    ),
    Way(
        "accelerate",
        "other",
        "the loop by hand with model, optimiser and backward pass of Accelerate; at 2 workers its DDP over gloo",
        started_as_by_torchrun(HOME.python, "train_accelerate"),
        HOME.make,
    ),
)
