"""The ways to save a training that `bench.checkpoint` compares. What they run is in `bench/ranks/save_*.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.contenders.contender import Contender
from bench.contenders.training import HOME
from bench.groups import ONE_THREAD, Launch, RankSlot


@dataclass(frozen=True)
class Way(Contender):
    """One way to save; given the number of threads, a folder for all, and every how many steps it saves."""

    synced: bool = True
    """Whether it waits until the disk has the bytes; otherwise they are in the memory of the system when it is done."""


def _running(module: str, *more: str, python: str = sys.executable) -> Callable[..., list[Launch]]:
    def start(threads: int, folder: Path, period: int, num_ranks: int, slot: RankSlot) -> list[Launch]:  # noqa: ARG001
        own = folder / slot.group.replace("/", "").replace(" ", "-")
        return [Launch(slot.program(module, str(own), str(period), *more, python=python), dict.fromkeys(ONE_THREAD, str(threads)))]

    return start


OURS = "unisono"
BY_HAND = "torch.save"

WAYS: Sequence[Way] = (
    Way(
        OURS,
        "ours",
        "`Trainer.train` with its `Saving` every N steps, as `unisono train --checkpoint-every` has it: the state is copied, a "
        "thread writes the copy, hashes it, syncs files and directories, renames, and removes the oldest of more than three",
        _running("save_unisono"),
    ),
    Way(
        "unisono A/A", "noise", "the same again in another process: what the two rows differ by is noise", _running("save_unisono")
    ),
    Way(
        BY_HAND,
        "hand",
        "`torch.save` of the `state_dict`s of model and optimiser to a new file, in a loop by hand; older files are removed "
        "between the turns",
        _running("save_torch"),
        synced=False,
    ),
    Way(
        "torch.save, synced",
        "other",
        "the same, and `fsync` of the file before the training goes on",
        _running("save_torch", "sync"),
    ),
    Way(
        "lightning",
        "lightning",
        "Lightning's `Trainer` with `ModelCheckpoint(every_n_train_steps=N)`, without logger, progress bar and summary; it removes "
        "the file before",
        _running("save_lightning", python=HOME.python),
        HOME.make,
        synced=False,
    ),
    Way(
        "dcp async",
        "other",
        "`torch.distributed.checkpoint.async_save` of what `get_state_dict` gives, without process group, to a new folder, in a "
        "loop by hand that first waits for the save before; older folders are removed between the turns",
        _running("save_dcp"),
    ),
)
