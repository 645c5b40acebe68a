"""The ways to save a training that `bench.checkpoint` compares. What they run is in `bench/ranks/save_*.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.contenders.contender import Contender, nothing
from bench.contenders.training import HOME
from bench.groups import ONE_THREAD, Launch, Seat


@dataclass(frozen=True)
class Way:
    """One way to save."""

    name: str
    kind: str
    about: str
    synced: bool
    """Whether it waits until the disk has the bytes; otherwise they are in the memory of the system when it is done."""
    module: str
    more: tuple[str, ...] = ()
    python: str = sys.executable
    prepare: Callable[[], None] = nothing

    def contender(self, threads: int, folder: Path, period: int) -> Contender:
        """Pure: this way, with so many threads, saving into `folder` every `period` steps."""
        own = folder / self.name.replace("/", "").replace(" ", "-")
        return Contender(self.name, self.kind, self.about, partial(self._start, threads, own, period), self.prepare)

    def _start(self, threads: int, folder: Path, period: int, num_ranks: int, seat: Seat) -> list[Launch]:  # noqa: ARG002
        command = [self.python, "-m", self.module, *seat.arguments, str(folder), str(period), *self.more]
        return [Launch(command, dict.fromkeys(ONE_THREAD, str(threads)))]


OURS = "unisono"
BY_HAND = "torch.save"
_UNISONO = "bench.ranks.save_unisono"
_TORCH = "bench.ranks.save_torch"

WAYS: Sequence[Way] = (
    Way(
        OURS,
        "ours",
        "`Trainer.run` with its `Saving` every N steps, as `unisono train --checkpoint-every` has it: the state is copied, a "
        "thread writes the copy, hashes it, syncs files and directories, renames, and removes the oldest of more than three",
        True,
        _UNISONO,
    ),
    Way("unisono A/A", "noise", "the same again in another process: what the two rows differ by is noise", True, _UNISONO),
    Way(
        BY_HAND,
        "hand",
        "`torch.save` of the `state_dict`s of model and optimiser to a new file, in a loop by hand; older files are removed "
        "between the turns",
        False,
        _TORCH,
    ),
    Way("torch.save, synced", "other", "the same, and `fsync` of the file before the training goes on", True, _TORCH, ("sync",)),
    Way(
        "lightning",
        "lightning",
        "Lightning's `Trainer` with `ModelCheckpoint(every_n_train_steps=N)`, without logger, progress bar and summary; it removes "
        "the file before",
        False,
        "bench.ranks.save_lightning",
        python=HOME.python,
        prepare=HOME.make,
    ),
    Way(
        "dcp async",
        "other",
        "`torch.distributed.checkpoint.async_save` of what `get_state_dict` gives, without process group, to a new folder, in a "
        "loop by hand that first waits for the save before; older folders are removed between the turns",
        True,
        "bench.ranks.save_dcp",
    ),
)
