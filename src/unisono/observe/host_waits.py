"""Counts how often a training step waits for the GPU, and in which line (`--monitor`): `.item()`, `.cpu()`, `nonzero()`, ...

Torch itself says so: in its mode for finding such calls it warns in each operation that waits for the device, and a warning costs
some microseconds. What waits in other ways is not counted: `torch.cuda.synchronize()`, waits for events, by which the sums of
earlier steps are read, and collectives.
"""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from threading import get_ident
from types import FrameType
from typing import Any, NamedTuple, TextIO

MESSAGE = "called a synchronizing CUDA operation"
"""What torch's warning begins with."""
WARNS = 1
"""The mode in which torch warns; in mode 0 it does not look."""
PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
ALGORITHMS = f"{PACKAGE}algorithms{os.sep}"
STEPS = frozenset({"step", "compute"})
"""Methods of algorithms that compute a training step, or the batch of a worker that has a server."""
MOST_PLACES = 5
"""Lines that a summary names."""


class SyncMode(NamedTuple):
    """How torch's mode is read and set."""

    read: Callable[[], int]
    write: Callable[[int], None]


def sync_mode_of(device: str) -> SyncMode | None:
    """Local: torch's mode for this device; None where there is no GPU to wait for."""
    if not device.startswith("cuda"):
        return None
    import torch

    return SyncMode(torch.cuda.get_sync_debug_mode, torch.cuda.set_sync_debug_mode)


class HostWaits:
    """Counts the waits of one thread, from `begin` until `end`. Local. It changes no number, but sets a mode of the whole process,
    and takes the warnings of that mode; all others are shown as before."""

    def __init__(self, mode: SyncMode) -> None:
        self._mode = mode
        self._held = ExitStack()
        self._thread = 0
        self._show: Callable[..., Any] = warnings.showwarning
        self._places: Counter[str] = Counter()
        self.counts = False
        """Whether waits are counted, or were: not where users have set the mode for themselves."""

    def begin(self) -> None:
        """Counts the waits of the calling thread from now on."""
        if self._mode.read():
            return
        self.counts, self._thread = True, get_ident()
        self._set(WARNS)
        self._held.callback(self._set, 0)
        self._held.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("always", message=MESSAGE)
        self._show = warnings.showwarning
        warnings.showwarning = self._note

    def end(self) -> None:
        """Sets everything as it was before `begin`."""
        self._held.close()

    def summary(self, num_steps: int) -> dict[str, Any]:
        """Returns the number of waits, of the steps in which they were counted, and the lines with the most of them."""
        return {"num": self._places.total(), "num_steps": num_steps, "places": dict(self._places.most_common(MOST_PLACES))}

    def _set(self, mode: int) -> None:
        """Sets torch's mode without its remark that it does not see every kind of wait."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._mode.write(mode)

    def _note(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        """Stands in the place of `warnings.showwarning`."""
        if not str(message).startswith(MESSAGE):
            self._show(message, category, filename, lineno, file, line)
        elif get_ident() == self._thread and (place := place_in_step(sys._getframe(1))):
            self._places[place] += 1


def place_in_step(frame: FrameType | None) -> str:
    """Local: the line of the innermost code outside of torch that a training step runs, that of a user if there is any; empty
    outside of training steps: evaluations and checkpoints may wait."""
    import torch

    of_others = str(Path(torch.__file__).parent), inspect.getfile(warnings.catch_warnings)
    of_user = of_ours = ""
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if file.startswith(PACKAGE):
            of_ours = of_ours or f"{file}, line {frame.f_lineno}"
            if name in STEPS and file.startswith(ALGORITHMS):
                return of_user or of_ours
        elif not of_user and not file.startswith(of_others):
            of_user = f"{file}, line {frame.f_lineno}"
        frame = frame.f_back
    return ""
